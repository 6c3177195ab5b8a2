/* Promise c: any flipped bit, any cut, any missing, exchanged, doubled or stale file of a
 * step is found, and named, before it reaches a model: verify reports it, and load
 * refuses or takes the step before. */
#include "base/clock.h"
#include "base/hash.h"
#include "core/parity/reconstruction.h"
#include "lib/acts.h"
#include "lib/sample.h"
#include "lib/slower.h"
#include "lib/step_files.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

#define WORLD_SIZE 3
#define STEP "step-00000002"

static bool whole_campaign;  /* --long */
static uint64_t numbers = 1; /* --seed */
static size_t explored;

/* A run with steps 1 and 2 of three ranks, and the bytes of every file of step 2. */
struct run {
    struct dcp_store store;
    struct step_files files;
    int parity;
};

static struct run *make_run(enum dcp_codec codec, int parity)
{
    struct run *run = calloc(1, sizeof *run);
    struct acts acts = {
        .layout = "dim0", .world_size = WORLD_SIZE, .small = true, .codec = codec
    };
    const struct dcp_export consolidated = { "pytorch_model.bin", "torch", -1 };
    const struct dcp_save_options more = { .consolidated = &consolidated,
                                           .parity = parity };

    assert_non_null(run);
    assert_int_equal(dcp_store_mem(&run->store, NULL), 0);
    run->parity = parity;
    acts.store = &run->store;
    acts.more = &more;
    for (acts.step = 1; acts.step <= 2; acts.step++) {
        acts.salt = (unsigned)acts.step;
        assert_int_equal(acts_save(&acts), 0);
    }
    step_files_read(&run->files, &run->store, STEP);
    assert_int_equal(run->files.n, 2 * WORLD_SIZE + 2 + parity);
    return run;
}

static void free_run(struct run *run)
{
    step_files_free(&run->files);
    dcp_store_free(&run->store);
    free(run);
}

/* --- what is said of it --- */

struct report {
    size_t n, n_ranges; /* that name a tensor and some of its elements */
    struct dcp_finding last;
    char file[80], tensor[80];
};

static void hear(void *self, const struct dcp_finding *finding)
{
    struct report *report = self;

    report->n++;
    report->n_ranges +=
        finding->tensor && finding->begin >= 0 && finding->begin < finding->end;
    if (report->file[0] && !finding->file)
        return;
    report->last = *finding;
    snprintf(report->file, sizeof report->file, "%s", finding->file ? finding->file : "");
    snprintf(report->tensor, sizeof report->tensor, "%s",
             finding->tensor ? finding->tensor : "");
}

/* Verify says no, naming the file in its report or in its sentence. */
static struct report check_verify(struct run *run, const char *file)
{
    struct report report = { 0 };
    const struct dcp_verify_options options = { .finding = hear,
                                                .self = &report,
                                                .threads = 1 };
    const struct dcp_source source = { &run->store, STEP, true };
    struct dcp_error err = { 0 };

    int rc = dcp_verify(&source, &options, NULL, &err);
    assert_int_equal(rc, DCP_E_CORRUPT);
    if (report.n)
        assert_string_equal(report.file, file);
    else
        assert_non_null(strstr(err.message, file));
    return report;
}

/* Load gives step 2 or, when that is refused, step 1: always the right bytes. */
static int64_t check_load(struct run *run)
{
    struct acts acts = { .store = &run->store,
                         .layout = "zero3",
                         .world_size = 1,
                         .step = -1,
                         .salt = 2,
                         .small = true };

    assert_int_equal(acts_load(&acts), 0);
    if (acts.loaded_step == 1) {
        acts.salt = 1;
        acts.step = 1;
        assert_int_equal(acts_load(&acts), 0);
        /* Asked for by its number, it is refused with a reason. */
        acts.step = 2;
        assert_int_equal(acts_load(&acts), DCP_E_CORRUPT);
        assert_true(acts.err.message[0]);
        acts.loaded_step = 1;
        acts.wrong = 0;
    }
    assert_int_equal(acts.wrong, 0);
    return acts.loaded_step;
}

static bool is_manifest(const char *name)
{
    size_t n = strlen(name);
    return (n > 5 && !strcmp(name + n - 5, ".json")) ||
           (n > 7 && !strcmp(name + n - 7, ".pieces"));
}

/* --- bits --- */

/* Flips the bits of bytes begin .. end of a file, one at a time: all with --long, else a
 * seeded `share` in 64 of them. `want`: the step that is loaded then. */
static size_t flip_bytes(struct run *run, size_t f, size_t begin, size_t end, int share,
                         int64_t want)
{
    const char *name = run->files.files[f].name;
    unsigned char *data = run->files.files[f].data;
    size_t n_flips = 0;

    for (size_t at = begin; at < end; at++)
        for (int bit = 0; bit < 8; bit++) {
            if (!whole_campaign && acts_pick(&numbers, 64 * SLOWER) >= share)
                continue;
            data[at] ^= (unsigned char)(1 << bit);
            step_files_restore(&run->files, f);
            check_verify(run, name);
            if (n_flips++ % 256 == 0)
                assert_int_equal(check_load(run), want);
            data[at] ^= (unsigned char)(1 << bit);
        }
    step_files_restore(&run->files, f);
    explored += n_flips;
    return n_flips;
}

/* Every bit of the manifests and of the headers. */
static void every_bit_of_metadata(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 0);
    size_t n_flips = 0;

    for (size_t f = 0; f < run->files.n; f++) {
        const char *name = run->files.files[f].name;
        const unsigned char *data = run->files.files[f].data;
        if (is_manifest(name))
            n_flips += flip_bytes(run, f, 0, run->files.files[f].n, 8, 1);
        else if (strstr(name, "shard-")) /* the length of the header, and the header */
            n_flips += flip_bytes(run, f, 0, 8 + (size_t)(data[0] | data[1] << 8), 4, 2);
    }
    assert_true(n_flips > 1000 / SLOWER);
    assert_int_equal(check_load(run), 2);
    free_run(run);
}

/* Every bit of heads, trailers and tails of parity files. */
static void every_bit_of_parity(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 1);
    size_t f = step_files_find(&run->files, "parity-00000-of-00001.bin");
    struct dcp_reconstruction *rebuilt;
    size_t n_flips = 0;

    assert_int_equal(dcp_reconstruction_open(&run->store, STEP, &rebuilt, NULL), 0);
    const struct dcp_parity *parity = dcp_reconstruction_parity(rebuilt);
    size_t head = parity->head_bytes, end = dcp_parity_bytes(parity, 0);
    n_flips += flip_bytes(run, f, 0, head, 1, 2);
    for (uint64_t s = 0; s < parity->groups[0].n_stripes; s++) {
        size_t at = dcp_parity_record_at(parity, 0, s) + DCP_PARITY_UNIT;
        n_flips += flip_bytes(run, f, at, at + parity->groups[0].trailer_bytes, 16, 2);
    }
    n_flips += flip_bytes(run, f, end, run->files.files[f].n, 1, 2);
    dcp_reconstruction_free(rebuilt);
    assert_true(n_flips > 100);
    free_run(run);
}

/* Sampled bits of the data: the report names tensor, elements and bytes. */
static void bits_of_data(enum dcp_codec codec)
{
    struct run *run = make_run(codec, 0);
    const struct dcp_source source = { &run->store, STEP, true };
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_format_find("native")->index(&source, catalog, NULL), 0);
    for (size_t p = 0; p < catalog->n_pieces; p += SLOWER) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
        size_t f = step_files_find(&run->files, catalog->files[piece->file].name);
        for (uint64_t k = 0; k < 3 && piece->stored_size; k++) {
            size_t at = (size_t)(piece->offset + k * (piece->stored_size - 1) / 2);
            run->files.files[f].data[at] ^= (unsigned char)(1 << (p + k) % 8);
            step_files_restore(&run->files, f);
            struct report report = check_verify(run, run->files.files[f].name);
            assert_int_equal(report.n, 1);
            assert_string_equal(report.tensor, tensor->name);
            assert_true(report.last.offset <= at &&
                        at < report.last.offset + report.last.size_bytes);
            assert_true(report.last.begin >= 0 && report.last.begin < report.last.end &&
                        report.last.end <= tensor->n_elems);
            assert_string_equal(report.last.what, "the block digest differs");
            assert_int_equal(check_load(run), 1);
            run->files.files[f].data[at] ^= (unsigned char)(1 << (p + k) % 8);
        }
        step_files_restore(&run->files, f);
    }
    dcp_catalog_free(catalog);
    free_run(run);
}

/* Bits anywhere in the shards and the parity: each is found and named, and what is loaded
 * is right. */
static void many_bits_of_data(void **state)
{
    (void)state;
    const long n = whole_campaign ? 100000 : 4000 / SLOWER;

    for (int parity = 0; parity <= 1; parity++) {
        struct run *run = make_run(DCP_CODEC_NONE, parity);
        for (long i = 0; i < n / 2; i++) {
            size_t f = (size_t)acts_pick(&numbers, (int64_t)run->files.n);
            size_t at = (size_t)acts_pick(&numbers, (int64_t)run->files.files[f].n);
            unsigned char bit = (unsigned char)(1 << acts_pick(&numbers, 8));
            run->files.files[f].data[at] ^= bit;
            step_files_restore(&run->files, f);
            check_verify(run, run->files.files[f].name);
            if (i % 64 == 0)
                check_load(run);
            run->files.files[f].data[at] ^= bit;
            step_files_restore(&run->files, f);
        }
        explored += (size_t)n / 2;
        free_run(run);
    }
}

static void sampled_bits_of_data(void **state)
{
    (void)state;
    bits_of_data(DCP_CODEC_NONE);
    bits_of_data(DCP_CODEC_ZSTD);
    bits_of_data(DCP_CODEC_PLANES);
    bits_of_data(DCP_CODEC_SPLIT);
}

/* --- sizes --- */

/* Every length with --long; else some, and each of the last ones. */
static void cut_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 0);

    for (size_t f = 0; f < run->files.n; f++) {
        size_t n = run->files.files[f].n;
        unsigned char *longer = calloc(1, n + 1);
        for (size_t cut = 0; cut < n; cut++) {
            if (!whole_campaign && cut + 64 < n &&
                acts_pick(&numbers, (int64_t)n) > 200 / SLOWER)
                continue;
            step_files_put(&run->files, run->files.files[f].name,
                           run->files.files[f].data, cut);
            check_verify(run, run->files.files[f].name);
            if (cut % 64 == 0)
                assert_int_equal(check_load(run), 1);
            explored++;
        }
        assert_non_null(longer);
        memcpy(longer, run->files.files[f].data, n);
        step_files_put(&run->files, run->files.files[f].name, longer, n + 1);
        check_verify(run, run->files.files[f].name);
        assert_int_equal(check_load(run), 1);
        free(longer);
        step_files_restore(&run->files, f);
    }
    assert_int_equal(check_load(run), 2);
    free_run(run);
}

static void missing_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 0);

    for (size_t f = 0; f < run->files.n; f++) {
        step_files_remove(&run->files, run->files.files[f].name);
        struct report report = check_verify(run, run->files.files[f].name);
        /* With a shard, or what says where its pieces lie, parts of tensors are lost. */
        assert_int_equal(report.n_ranges > 0,
                         !strncmp(run->files.files[f].name, "shard-", 6));
        assert_int_equal(check_load(run), 1);
        step_files_restore(&run->files, f);
    }
    free_run(run);
}

/* --- the wrong file --- */

/* Each file is in turn one of every other; only shards of one size could pass for each
 * other at a glance. */
static void exchanged_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 0);

    for (size_t f = 0; f < run->files.n; f++)
        for (size_t g = 0; g < run->files.n; g++) {
            if (f == g)
                continue;
            step_files_put(&run->files, run->files.files[f].name,
                           run->files.files[g].data, run->files.files[g].n);
            check_verify(run, run->files.files[f].name); /* one twice */
            step_files_put(&run->files, run->files.files[g].name,
                           run->files.files[f].data, run->files.files[f].n);
            struct report report = { 0 };
            const struct dcp_verify_options options = { .finding = hear,
                                                        .self = &report };
            const struct dcp_source source = { &run->store, STEP, true };
            assert_int_equal(dcp_verify(&source, &options, NULL, NULL), DCP_E_CORRUPT);
            check_load(run);
            step_files_restore(&run->files, f);
            step_files_restore(&run->files, g);
        }
    free_run(run);
}

/* Files of step 1 in step 2: same names, same sizes, other bytes. */
static void stale_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 0);

    for (size_t f = 0; f < run->files.n; f++) {
        char path[128];
        void *data;
        size_t n;
        snprintf(path, sizeof path, "step-00000001/%s", run->files.files[f].name);
        assert_int_equal(dcp_store_read_file(&run->store, path, 1 << 24, &data, &n, NULL),
                         0);
        assert_int_equal(n, run->files.files[f].n);
        step_files_put(&run->files, run->files.files[f].name, data, n);
        free(data);
        if (!strcmp(run->files.files[f].name, "manifest.json")) {
            /* It is right in itself; what it says of the others is not. */
            const struct dcp_source source = { &run->store, STEP, true };
            assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), DCP_E_CORRUPT);
        } else {
            check_verify(run, run->files.files[f].name);
        }
        /* The second file is no part of the state. */
        bool consolidated = !strcmp(run->files.files[f].name, "pytorch_model.bin");
        assert_int_equal(check_load(run), consolidated ? 2 : 1);
        step_files_restore(&run->files, f);
    }
    free_run(run);
}

/* All of step 1 under the name of step 2: every digest holds, but it is not step 2. */
static void a_step_under_another_name(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 0);
    const struct dcp_store_ops *ops = run->store.ops;
    struct dcp_context ctx = { .store = &run->store };
    struct dcp_step step;

    assert_int_equal(ops->remove(run->store.self, STEP, NULL), 0);
    assert_int_equal(ops->publish(run->store.self, "step-00000001", STEP, NULL), 0);
    assert_int_equal(dcp_find(&ctx, -1, &step, NULL), DCP_E_CORRUPT);
    free_run(run);
}

/* A fingerprint that is another, in a manifest whose own digest holds: the blocks are as
 * they should be, and still the tensor is not what was saved. */
static void another_fingerprint(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE, 0);
    size_t f = step_files_find(&run->files, "manifest.json"), n = run->files.files[f].n;
    char *text = (char *)run->files.files[f].data, digest[32];

    char *at = strstr(text, "\"crc64\":\"");
    assert_non_null(at);
    at[9] = at[9] == '0' ? '1' : '0';
    snprintf(digest, sizeof digest, ",\n\"digest\":\"%016" PRIx64 "\"}",
             dcp_hash_crc64(0, text, n - 31));
    memcpy(text + n - 31, digest, 30);
    step_files_restore(&run->files, f);
    struct report report = { 0 };
    const struct dcp_verify_options options = { .finding = hear, .self = &report };
    const struct dcp_source source = { &run->store, STEP, true };
    assert_int_equal(dcp_verify(&source, &options, NULL, NULL), DCP_E_CORRUPT);
    assert_int_equal(report.n, 1);
    assert_string_equal(report.last.what, "the fingerprint differs");
    assert_string_equal(report.tensor, "wte.weight");
    assert_int_equal(check_load(run), 1);
    free_run(run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_metadata),
        cmocka_unit_test(every_bit_of_parity),
        cmocka_unit_test(sampled_bits_of_data),
        cmocka_unit_test(many_bits_of_data),
        cmocka_unit_test(cut_files),
        cmocka_unit_test(missing_files),
        cmocka_unit_test(exchanged_files),
        cmocka_unit_test(stale_files),
        cmocka_unit_test(a_step_under_another_name),
        cmocka_unit_test(another_fingerprint),
    };
    double begin = dcp_clock_s();

    for (int i = 1; i < argc; i++) {
        whole_campaign |= !strcmp(argv[i], "--long");
        if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            numbers = strtoull(argv[++i], NULL, 10);
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("explored=%zu violations=%d seconds=%.1f\n", explored, failed,
           dcp_clock_s() - begin);
    return failed;
}
