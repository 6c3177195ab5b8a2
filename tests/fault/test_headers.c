/* Changes whose author made every digest again: only what the files say twice finds them.
 * The header of a shard, the shard manifest and the manifest are held against each other,
 * and against what docs/FORMAT.md asks. */
#include "base/hash.h"
#include "lib/step_files.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

#define STEP "step-00000007"
#define SHARD "shard-00000-of-00001.safetensors"
#define SHARD_MANIFEST "shard-00000-of-00001.pieces"
#define MANIFEST "manifest.json"

struct step {
    struct dcp_store store;
    struct step_files files;
};

static struct step *make_step(enum dcp_codec codec)
{
    struct step *step = calloc(1, sizeof *step);
    static float a[6] = { 1, 2, 3, 4, 5, 6 }, b[6] = { 7, 8, 9, 10, 11, 12 };
    static const int64_t shape[2] = { 2, 3 };
    const struct dcp_local_tensor locals[] = {
        { .name = "a.weight", .dtype = DCP_F32, .ndim = 2, .shape = shape, .data = a },
        { .name = "b.weight", .dtype = DCP_F32, .ndim = 2, .shape = shape, .data = b },
    };
    const struct dcp_state state = { .locals = locals, .n_locals = 2 };
    const struct dcp_save_options options = { .step = 7, .codec = codec };

    assert_non_null(step);
    assert_int_equal(dcp_store_mem(&step->store, NULL), 0);
    const struct dcp_context ctx = { .store = &step->store, .threads = 1 };
    assert_int_equal(dcp_save(&ctx, &options, &state, NULL, NULL), 0);
    step_files_read(&step->files, &step->store, STEP);
    return step;
}

static void free_step(struct step *step)
{
    step_files_free(&step->files);
    dcp_store_free(&step->store);
    free(step);
}

static unsigned char *find(unsigned char *data, size_t n, const char *text)
{
    unsigned char *at = memmem(data, n, text, strlen(text));

    assert_non_null(at);
    return at;
}

/* Puts a file as it is now in its place, and what the manifest says of it. */
static void reseal(struct step *step, const char *name, uint64_t old_crc)
{
    size_t f = step_files_find(&step->files, name);
    size_t m = step_files_find(&step->files, MANIFEST), n = step->files.files[m].n;
    unsigned char *manifest = step->files.files[m].data;
    char digest[32];

    if (f != m) {
        snprintf(digest, sizeof digest, "%016" PRIx64, old_crc);
        unsigned char *at = find(manifest, n, digest);
        snprintf(digest, sizeof digest, "%016" PRIx64,
                 dcp_hash_crc64(0, step->files.files[f].data, step->files.files[f].n));
        memcpy(at, digest, 16);
        step_files_restore(&step->files, f);
    }
    snprintf(digest, sizeof digest, ",\n\"digest\":\"%016" PRIx64,
             dcp_hash_crc64(0, manifest, n - 31));
    memcpy(manifest + n - 31, digest, 28);
    step_files_restore(&step->files, m);
}

struct report {
    size_t n;
    char file[80], tensor[80], what[160];
};

static void hear(void *self, const struct dcp_finding *finding)
{
    struct report *report = self;

    report->n++;
    snprintf(report->file, sizeof report->file, "%s", finding->file ? finding->file : "");
    snprintf(report->tensor, sizeof report->tensor, "%s",
             finding->tensor ? finding->tensor : "");
    snprintf(report->what, sizeof report->what, "%s", finding->what);
}

static int verify(struct step *step, double to, struct report *report,
                  struct dcp_error *err)
{
    const struct dcp_source source = { &step->store, STEP, true };
    const struct dcp_verify_options options = {
        .finding = hear, .self = report, .threads = 1, .to = to
    };

    *report = (struct report){ 0 };
    return dcp_verify(&source, &options, NULL, err);
}

/* A change of some bytes into as many others. */
struct change {
    const char *file, *from, *to;
    size_t n; /* findings; 0: it is refused before */
    const char *tensor, *what;
};

static void make_change(struct step *step, const char *file, const char *from,
                        const char *to)
{
    size_t f = step_files_find(&step->files, file), n = step->files.files[f].n;
    unsigned char *data = step->files.files[f].data;
    uint64_t crc = dcp_hash_crc64(0, data, n);

    assert_int_equal(strlen(from), strlen(to));
    memcpy(find(data, n, from), to, strlen(to));
    reseal(step, file, crc);
}

static void check_change(const struct change *change, enum dcp_codec codec)
{
    struct step *step = make_step(codec);
    struct report report;
    struct dcp_error err = { 0 };

    assert_int_equal(verify(step, 0, &report, &err), 0);
    make_change(step, change->file, change->from, change->to);
    for (int part = 0; part < 2; part++) {
        assert_int_equal(verify(step, part ? 0.5 : 0, &report, &err), DCP_E_CORRUPT);
        assert_int_equal(report.n, change->n);
        assert_string_equal(report.tensor, change->tensor);
        assert_string_equal(report.n ? report.file : "", report.n ? change->file : "");
        const char *said = report.n ? report.what : err.message;
        if (!strstr(said, change->what))
            fail_msg("'%s' is not in '%s'", change->what, said);
    }
    free_step(step);
}

static void headers_of_shards(void **state)
{
    (void)state;
    static const struct change changes[] = {
        { SHARD, "\"F32\",\"shape\":[2,3],\"data_offsets\":[24,48]",
          "\"I32\",\"shape\":[2,3],\"data_offsets\":[24,48]", 1, "b.weight",
          "another dtype" },
        { SHARD, "[2,3],\"data_offsets\":[0", "[3,2],\"data_offsets\":[0", 1, "a.weight",
          "another shape" },
        { SHARD, "[0,24]", "[0,23]", 1, "a.weight", "other bytes" },
        { SHARD, "[24,48]", "[00,24]", 1, "", "not valid JSON" },
        { SHARD, "\"b.weight\"", "\"c.weight\"", 2, "b.weight", "does not name it" },
        { SHARD, "\"format\":\"pt\"", "\"format\":\"tf\"", 1, "", "__metadata__" },
        { SHARD, "{\"__metadata__", "[\"__metadata__", 1, "", "not valid JSON" },
        { SHARD, "\xf8\x0f", "\xf7\x0f", 1, "", "a multiple of 4096" },
        { SHARD, "\xf8\x0f", "\xf8\xff", 1, "", "a length that it cannot have" },
    };

    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        check_change(&changes[i], DCP_CODEC_NONE);
    check_change(
        &(struct change){ SHARD, "\"U8\"", "\"I8\"", 1, "a.weight", "another dtype" },
        DCP_CODEC_ZSTD);
}

/* Two names exchanged: each piece has the bytes of the other. */
static void exchanged_names(void **state)
{
    (void)state;
    struct step *step = make_step(DCP_CODEC_NONE);
    struct report report;

    make_change(step, SHARD, "\"a.weight\"", "\"x.weight\"");
    make_change(step, SHARD, "\"b.weight\"", "\"a.weight\"");
    make_change(step, SHARD, "\"x.weight\"", "\"b.weight\"");
    assert_int_equal(verify(step, 0, &report, NULL), DCP_E_CORRUPT);
    assert_int_equal(report.n, 2);
    assert_string_equal(report.file, SHARD);
    assert_string_equal(report.what, "the header of its shard gives it other bytes");
    free_step(step);
}

/* Another header in place of the shard's, padded as that is, whose digests hold. */
static void put_header(struct step *step, const char *text)
{
    size_t f = step_files_find(&step->files, SHARD);
    unsigned char *data = step->files.files[f].data;
    uint64_t crc = dcp_hash_crc64(0, data, step->files.files[f].n);

    memset(data + 8, ' ', 4096 - 8);
    memcpy(data + 8, text, strlen(text));
    reseal(step, SHARD, crc);
}

/* A header that names nothing is one finding, however many tensors there are. */
static void an_empty_header(void **state)
{
    (void)state;
    struct step *step = make_step(DCP_CODEC_NONE);
    struct report report;
    static const char empty[] = "{\"__metadata__\":{\"format\":\"pt\"}}";

    put_header(step, empty);
    assert_int_equal(verify(step, 0, &report, NULL), DCP_E_CORRUPT);
    assert_int_equal(report.n, 1);
    assert_string_equal(report.file, SHARD);
    assert_string_equal(report.what, "its header names none of its tensors");
    free_step(step);
}

/* Bytes of the table of pieces: FORMAT.md, 4. */
enum {
    TABLE_VERSION = 8,
    TABLE_RANK = 12,
    TABLE_WORLD = 16,
    TABLE_STEP = 20,
    TABLE_FIRST = 28,
    TABLE_N = 36,
    FIRST_PIECE = 44,
    FIRST_HOW = FIRST_PIECE + 1,
    FIRST_CRC = FIRST_HOW + 1,
    SECOND_PIECE = FIRST_CRC + 16
};

static void change_byte(struct step *step, size_t at, unsigned char byte)
{
    size_t f = step_files_find(&step->files, SHARD_MANIFEST);
    unsigned char *data = step->files.files[f].data;
    uint64_t crc = dcp_hash_crc64(0, data, step->files.files[f].n);

    assert_true(at < step->files.files[f].n && data[at] != byte);
    data[at] = byte;
    reseal(step, SHARD_MANIFEST, crc);
}

/* A piece's own digest, beside those of its blocks: who reads all of it looks at it. */
static void a_digest_of_a_piece(void **state)
{
    (void)state;
    struct step *step = make_step(DCP_CODEC_NONE);
    size_t f = step_files_find(&step->files, SHARD_MANIFEST);
    struct report report;

    change_byte(step, FIRST_CRC, step->files.files[f].data[FIRST_CRC] ^ 1);
    assert_int_equal(verify(step, 0, &report, NULL), DCP_E_CORRUPT);
    assert_int_equal(report.n, 1);
    assert_string_equal(report.what, "the digest of the piece differs");
    free_step(step);
}

/* What a table cannot say of a step of two tensors, saved by one rank as step 7. */
static void tables(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        unsigned char byte;
        int rc;
        const char *what;
    } changes[] = {
        { 0, 'x', DCP_E_CORRUPT, "is no table of pieces" },
        { TABLE_VERSION, 2, DCP_E_UNSUPPORTED, "format version 2" },
        { TABLE_RANK, 1, DCP_E_CORRUPT, "another step, rank or world size" },
        { TABLE_WORLD, 2, DCP_E_CORRUPT, "another step, rank or world size" },
        { TABLE_STEP, 8, DCP_E_CORRUPT, "another step, rank or world size" },
        { TABLE_STEP + 7, 0x80, DCP_E_CORRUPT, "another step, rank or world size" },
        { TABLE_FIRST, 1, DCP_E_CORRUPT, "lies outside its shard" },
        { TABLE_FIRST + 7, 1, DCP_E_CORRUPT, "begins behind the end of its shard" },
        { TABLE_N, 1, DCP_E_CORRUPT, "does not end where its shard does" },
        { TABLE_N, 3, DCP_E_CORRUPT, "a piece that is not valid" },
        { FIRST_PIECE, 2, DCP_E_CORRUPT, "belongs to no tensor" },
        { FIRST_HOW, 0x40, DCP_E_UNSUPPORTED, "codec of a piece is unknown" },
        { FIRST_HOW, 0x03, DCP_E_CORRUPT, "a piece that is not valid" },
        { FIRST_HOW, 0x01, DCP_E_CORRUPT, "" },
        { FIRST_HOW, 0x02, DCP_E_CORRUPT, "" },
        { FIRST_HOW, 0x10, DCP_E_UNSUPPORTED, "codec of a piece" },
        { SECOND_PIECE, 0, DCP_E_CORRUPT, "" },
    };

    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct step *step = make_step(DCP_CODEC_NONE);
        struct dcp_error err = { 0 };
        struct report report;
        change_byte(step, changes[i].at, changes[i].byte);
        int rc = verify(step, 0, &report, &err);
        const char *said = report.n ? report.what : err.message;
        if (rc != changes[i].rc || !strstr(said, changes[i].what))
            fail_msg("byte %zu as %d: %d, '%s'", changes[i].at, changes[i].byte, rc,
                     said);
        free_step(step);
    }
}

/* What order, blanks and unknown members say is nothing. */
static void what_may_differ(void **state)
{
    (void)state;
    struct step *step = make_step(DCP_CODEC_NONE);
    struct report report;
    static const char other[] =
        "{\"b.weight\": {\"data_offsets\":[24,48],\"more\":1,\"shape\":[2,3],"
        "\"dtype\":\"F32\"},\n\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2, 3],"
        "\"data_offsets\":[0,24]},\"__metadata__\":{\"format\":\"pt\",\"by\":\"me\"}}";

    put_header(step, other);
    assert_int_equal(verify(step, 0, &report, NULL), 0);
    free_step(step);
}

static void manifests(void **state)
{
    (void)state;
    static const struct change changes[] = {
        { MANIFEST, "\"model\"", "[\"mod\"]", 0, "", "'role' must be" },
    };

    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        check_change(&changes[i], DCP_CODEC_NONE);
}

/* -1 says that the number is not known; there is no other below 0. The line feed behind
 * the head makes room for the sign. */
static void numbers_of_steps(void **state)
{
    (void)state;
    static const char rest[] =
        ",\"world\":1,\"layout\":\"\",\"mesh\":{\"dp\":1,\"tp\":1,\"pp\":1},";

    for (int number = -3; number < 0; number++) {
        struct step *step = make_step(DCP_CODEC_NONE);
        struct report report;
        struct dcp_error err = { 0 };
        char from[128], to[128];
        snprintf(from, sizeof from, "\"step\":7%s\n", rest);
        snprintf(to, sizeof to, "\"step\":%d%s", number, rest);
        make_change(step, MANIFEST, from, to);
        assert_int_equal(verify(step, 0, &report, &err), DCP_E_CORRUPT);
        assert_non_null(strstr(err.message, number < -1
                                                ? "as the number of the step"
                                                : "another step, rank or world size"));
        free_step(step);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_of_shards),
        cmocka_unit_test(exchanged_names),
        cmocka_unit_test(an_empty_header),
        cmocka_unit_test(what_may_differ),
        cmocka_unit_test(a_digest_of_a_piece),
        cmocka_unit_test(manifests),
        cmocka_unit_test(tables),
        cmocka_unit_test(numbers_of_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
