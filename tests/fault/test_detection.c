/* Promise c: any flipped bit, any cut, any missing, exchanged, doubled or stale file of a
 * step is found, and named, before it reaches a model: verify reports it, and load
 * refuses or takes the step before. */
#include "base/hash.h"
#include "lib/acts.h"
#include "lib/sample.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

#define WORLD 3
#define STEP "step-00000002"
#define MAX_FILES 16

/* A run with steps 1 and 2 of three ranks, and the bytes of every file of step 2. */
struct run {
    struct dcp_store store;
    struct {
        char name[80]; /* in the step */
        unsigned char *data;
        size_t n;
    } files[MAX_FILES];
    size_t n_files;
};

static void path_of(char out[128], const char *file)
{
    snprintf(out, 128, STEP "/%s", file);
}

static void put(struct run *run, const char *file, const void *data, size_t n)
{
    char path[128];

    path_of(path, file);
    run->store.ops->remove(run->store.self, path, NULL);
    assert_int_equal(dcp_store_write_file(&run->store, path, data, n, NULL), 0);
}

static void restore(struct run *run, size_t f)
{
    put(run, run->files[f].name, run->files[f].data, run->files[f].n);
}

static struct run *make_run(enum dcp_codec codec)
{
    struct run *run = calloc(1, sizeof *run);
    struct acts acts = {
        .layout = "dim0", .world = WORLD, .small = true, .codec = codec
    };
    struct dcp_store_entry *entries;
    const struct dcp_companion companion = { "pytorch_model.bin", "torch", -1 };
    const struct dcp_save_options more = { .companion = &companion };
    size_t n;

    assert_int_equal(dcp_store_mem(&run->store, NULL), 0);
    acts.store = &run->store;
    acts.more = &more;
    for (acts.step = 1; acts.step <= 2; acts.step++) {
        acts.salt = (unsigned)acts.step;
        assert_int_equal(acts_save(&acts), 0);
    }
    assert_int_equal(run->store.ops->list(run->store.self, STEP, &entries, &n, NULL), 0);
    assert_int_equal(n, 2 * WORLD + 2);
    for (size_t f = 0; f < n; f++) {
        char path[128];
        void *data;
        path_of(path, entries[f].name);
        snprintf(run->files[f].name, sizeof run->files[f].name, "%s", entries[f].name);
        assert_int_equal(dcp_store_read_file(&run->store, path, 1 << 24, &data,
                                             &run->files[f].n, NULL),
                         0);
        run->files[f].data = data;
    }
    run->n_files = n;
    dcp_store_list_free(entries, n);
    return run;
}

static void free_run(struct run *run)
{
    for (size_t f = 0; f < run->n_files; f++)
        free(run->files[f].data);
    dcp_store_free(&run->store);
    free(run);
}

static size_t file_named(const struct run *run, const char *name)
{
    for (size_t f = 0; f < run->n_files; f++)
        if (!strcmp(run->files[f].name, name))
            return f;
    fail_msg("no file %s", name);
    return 0;
}

/* --- what is said of it --- */

struct report {
    size_t n;
    struct dcp_damage last;
    char file[80], tensor[80];
};

static void hear(void *self, const struct dcp_damage *damage)
{
    struct report *report = self;

    report->n++;
    report->last = *damage;
    snprintf(report->file, sizeof report->file, "%s", damage->file ? damage->file : "");
    snprintf(report->tensor, sizeof report->tensor, "%s",
             damage->tensor ? damage->tensor : "");
}

/* Verify says no, naming the file in its report or in its sentence. */
static struct report check_verify(struct run *run, const char *file)
{
    struct report report = { 0 };
    const struct dcp_verify_options options = { .damage = hear,
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
                         .world = 1,
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
    return n > 5 && !strcmp(name + n - 5, ".json");
}

/* --- bits --- */

/* Every bit of the manifests and of a header. */
static void every_bit_of_metadata(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE);

    for (size_t f = 0; f < run->n_files; f++) {
        const char *name = run->files[f].name;
        bool manifest = is_manifest(name);
        if (!manifest && !strstr(name, "shard-"))
            continue;
        bool every = !strstr(name, "shard-") || strstr(name, "-00000-");
        size_t n = manifest ? run->files[f].n : 4096;
        unsigned char *data = malloc(run->files[f].n);
        assert_non_null(data);
        memcpy(data, run->files[f].data, run->files[f].n);
        for (size_t at = 0; at < n; at++)
            for (int bit = 0; bit < 8; bit++) {
                /* The other ranks' and the padding's are no different: some of them. */
                if ((!every || (!manifest && at > 800)) &&
                    (at % 61 || bit != (int)(at % 8)))
                    continue;
                data[at] ^= (unsigned char)(1 << bit);
                put(run, name, data, run->files[f].n);
                check_verify(run, name);
                if (at % 64 == 0)
                    assert_int_equal(check_load(run), manifest ? 1 : 2);
                data[at] ^= (unsigned char)(1 << bit);
            }
        restore(run, f);
        free(data);
    }
    assert_int_equal(check_load(run), 2);
    free_run(run);
}

/* Sampled bits of the data: the report names tensor, elements and bytes. */
static void bits_of_data(enum dcp_codec codec)
{
    struct run *run = make_run(codec);
    const struct dcp_source source = { &run->store, STEP, true };
    struct dcp_catalog *catalog;

    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_format_find("native")->index(&source, catalog, NULL), 0);
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
        size_t f = file_named(run, catalog->files[piece->file].name);
        for (uint64_t k = 0; k < 3 && piece->stored_size; k++) {
            size_t at = (size_t)(piece->offset + k * (piece->stored_size - 1) / 2);
            run->files[f].data[at] ^= (unsigned char)(1 << (p + k) % 8);
            restore(run, f);
            struct report report = check_verify(run, run->files[f].name);
            assert_int_equal(report.n, 1);
            assert_string_equal(report.tensor, tensor->name);
            assert_true(report.last.offset <= at &&
                        at < report.last.offset + report.last.size_bytes);
            assert_true(report.last.begin >= 0 && report.last.begin < report.last.end &&
                        report.last.end <= tensor->n_elems);
            assert_string_equal(report.last.what, "the block digest differs");
            assert_int_equal(check_load(run), 1);
            run->files[f].data[at] ^= (unsigned char)(1 << (p + k) % 8);
        }
        restore(run, f);
    }
    dcp_catalog_free(catalog);
    free_run(run);
}

static void sampled_bits_of_data(void **state)
{
    (void)state;
    bits_of_data(DCP_CODEC_NONE);
    bits_of_data(DCP_CODEC_ZSTD);
    bits_of_data(DCP_CODEC_PLANES);
}

/* --- sizes --- */

static void cut_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE);

    for (size_t f = 0; f < run->n_files; f++) {
        size_t n = run->files[f].n, stride = n / 150 + 1;
        for (size_t cut = 0; cut < n; cut += cut + stride < n ? stride : 1) {
            put(run, run->files[f].name, run->files[f].data, cut);
            check_verify(run, run->files[f].name);
            if (cut % 3 == 0)
                assert_int_equal(check_load(run), 1);
            if (cut + 3 * stride >= n && cut + stride < n)
                stride = 1; /* each of the last ones */
        }
        unsigned char *longer = calloc(1, n + 1);
        assert_non_null(longer);
        memcpy(longer, run->files[f].data, n);
        put(run, run->files[f].name, longer, n + 1);
        check_verify(run, run->files[f].name);
        assert_int_equal(check_load(run), 1);
        free(longer);
        restore(run, f);
    }
    assert_int_equal(check_load(run), 2);
    free_run(run);
}

static void missing_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE);

    for (size_t f = 0; f < run->n_files; f++) {
        char path[128];
        path_of(path, run->files[f].name);
        assert_int_equal(run->store.ops->remove(run->store.self, path, NULL), 0);
        check_verify(run, run->files[f].name);
        assert_int_equal(check_load(run), 1);
        restore(run, f);
    }
    free_run(run);
}

/* --- the wrong file --- */

/* Each file is in turn one of every other; only shards of one size could pass for each
 * other at a glance. */
static void exchanged_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE);

    for (size_t f = 0; f < run->n_files; f++)
        for (size_t g = 0; g < run->n_files; g++) {
            if (f == g)
                continue;
            put(run, run->files[f].name, run->files[g].data, run->files[g].n);
            check_verify(run, run->files[f].name); /* one twice */
            put(run, run->files[g].name, run->files[f].data, run->files[f].n);
            struct report report = { 0 };
            const struct dcp_verify_options options = { .damage = hear, .self = &report };
            const struct dcp_source source = { &run->store, STEP, true };
            assert_int_equal(dcp_verify(&source, &options, NULL, NULL), DCP_E_CORRUPT);
            check_load(run);
            restore(run, f);
            restore(run, g);
        }
    free_run(run);
}

/* Files of step 1 in step 2: same names, same sizes, other bytes. */
static void stale_files(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE);

    for (size_t f = 0; f < run->n_files; f++) {
        char path[128];
        void *data;
        size_t n;
        snprintf(path, sizeof path, "step-00000001/%s", run->files[f].name);
        assert_int_equal(dcp_store_read_file(&run->store, path, 1 << 24, &data, &n, NULL),
                         0);
        assert_int_equal(n, run->files[f].n);
        put(run, run->files[f].name, data, n);
        free(data);
        if (!strcmp(run->files[f].name, "manifest.json")) {
            /* It is right in itself; what it says of the others is not. */
            const struct dcp_source source = { &run->store, STEP, true };
            assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), DCP_E_CORRUPT);
        } else {
            check_verify(run, run->files[f].name);
        }
        /* The second file is no part of the state. */
        bool companion = !strcmp(run->files[f].name, "pytorch_model.bin");
        assert_int_equal(check_load(run), companion ? 2 : 1);
        restore(run, f);
    }
    free_run(run);
}

/* All of step 1 under the name of step 2: every digest holds, but it is not step 2. */
static void a_step_under_another_name(void **state)
{
    (void)state;
    struct run *run = make_run(DCP_CODEC_NONE);
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
    struct run *run = make_run(DCP_CODEC_NONE);
    size_t f = file_named(run, "manifest.json"), n = run->files[f].n;
    char *text = (char *)run->files[f].data, digest[32];

    char *at = strstr(text, "\"crc64\":\"");
    assert_non_null(at);
    at[9] = at[9] == '0' ? '1' : '0';
    snprintf(digest, sizeof digest, ",\n\"digest\":\"%016" PRIx64 "\"}",
             dcp_hash_crc64(0, text, n - 31));
    memcpy(text + n - 31, digest, 30);
    restore(run, f);
    struct report report = { 0 };
    const struct dcp_verify_options options = { .damage = hear, .self = &report };
    const struct dcp_source source = { &run->store, STEP, true };
    assert_int_equal(dcp_verify(&source, &options, NULL, NULL), DCP_E_CORRUPT);
    assert_int_equal(report.n, 1);
    assert_string_equal(report.last.what, "the fingerprint differs");
    assert_string_equal(report.tensor, "wte.weight");
    assert_int_equal(check_load(run), 1);
    free_run(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_metadata),
        cmocka_unit_test(sampled_bits_of_data),
        cmocka_unit_test(cut_files),
        cmocka_unit_test(missing_files),
        cmocka_unit_test(exchanged_files),
        cmocka_unit_test(stale_files),
        cmocka_unit_test(a_step_under_another_name),
        cmocka_unit_test(another_fingerprint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
