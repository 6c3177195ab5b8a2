/* labels: tsan */
/* What a reshard may change when it is asked to: dtypes, the selection, the format. Every
 * element is what it was, cast. */
#include "base/fs.h"
#include "lib/acts.h"
#include "lib/reshard_folder.h"
#include "lib/sample.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>

/* Every tensor of `path` holds the source's elements, cast. Returns how many there are.
 */
static size_t check_values(const char *source, const char *path, const char *format)
{
    struct dcp_location a, b;
    struct dcp_catalog *from, *to;
    struct dcp_reader *old, *new;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_location_open(source, &a, &err), 0);
    assert_int_equal(dcp_location_open(path, &b, &err), 0);
    assert_string_equal(b.format->name, format);
    assert_int_equal(dcp_location_index(&a, &from, &err), 0);
    assert_int_equal(dcp_location_index(&b, &to, &err), 0);
    assert_int_equal(dcp_reader_new(&a.source, from, 8 << 20, true, &old, &err), 0);
    assert_int_equal(dcp_reader_new(&b.source, to, 8 << 20, true, &new, &err), 0);
    for (size_t t = 0; t < to->n_tensors; t++) {
        const struct dcp_tensor *tensor = &to->tensors[t];
        int at = dcp_catalog_find(from, tensor->name);
        assert_in_range(at, 0, from->n_tensors - 1);
        size_t n = (size_t)tensor->n_elems, elem = dcp_dtype_size(tensor->dtype);
        unsigned char *raw = malloc(16 * n + 1), *want = malloc(16 * n + 1),
                      *got = malloc(16 * n + 1);
        assert_int_equal(dcp_reader_read(old, at, 0, tensor->n_elems, raw, &err), 0);
        assert_int_equal(dcp_reader_read(new, (int)t, 0, tensor->n_elems, got, &err), 0);
        assert_int_equal(
            dcp_cast(from->tensors[at].dtype, tensor->dtype, raw, want, n, &err), 0);
        assert_memory_equal(got, want, n * elem);
        free(raw);
        free(want);
        free(got);
    }
    size_t n = to->n_tensors;
    dcp_reader_free(old);
    dcp_reader_free(new);
    dcp_catalog_free(from);
    dcp_catalog_free(to);
    dcp_location_close(&a);
    dcp_location_close(&b);
    return n;
}

static void casts(void **state)
{
    struct reshard_folder *folder = *state;
    static const enum dcp_dtype dtypes[] = { DCP_F32, DCP_BF16, DCP_F16, DCP_F8_E4M3 };

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        struct dcp_reshard_options options = { .world_size = 2,
                                               .layout = "flat",
                                               .dtype = (int)dtypes[i],
                                               .weights = DCP_WEIGHTS_MODEL,
                                               .codec =
                                                   (enum dcp_codec)(i % DCP_N_CODECS),
                                               .force = true };
        reshard_folder_must_run(folder->source, folder->target, &options);
        assert_int_equal(check_values(folder->source, folder->target, "native"),
                         sample_n_tensors());
    }
}

static void selections(void **state)
{
    struct reshard_folder *folder = *state;
    static const char *const some[] = { "h.0.*", "one", NULL };
    static const char *const none[] = { "nothing*", NULL };
    struct dcp_reshard_options options = { .dtype = -1, .force = true, .select = some };
    struct dcp_error err = { 0 };

    reshard_folder_save(folder->source, "zero1", 3, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, folder->target, &options);
    assert_int_equal(reshard_folder_check(folder->target, "zero1", 3), 5);
    options.select = NULL;
    options.only = DCP_ONLY_OPTIM;
    reshard_folder_must_run(folder->source, folder->target, &options);
    assert_int_equal(reshard_folder_check(folder->target, "zero1", 3), 5);
    options.only = DCP_ONLY_MODEL;
    reshard_folder_must_run(folder->source, folder->target, &options);
    assert_int_equal(reshard_folder_check(folder->target, "zero1", 3),
                     sample_n_tensors() - 5);
    options.select = none;
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, &err),
                     DCP_E_MISMATCH);
    assert_int_equal(reshard_folder_check(folder->target, "zero1", 3),
                     sample_n_tensors() - 5);
}

static void exports(void **state)
{
    struct reshard_folder *folder = *state;
    static const char *const formats[] = { "torch", "safetensors" };
    struct dcp_reshard_options back = { .world_size = 4, .layout = "dim0", .dtype = -1 };
    char again[600];

    reshard_folder_save(folder->source, "flat", 7, DCP_CODEC_PLANES);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        struct dcp_reshard_options options = { .format = formats[i],
                                               .dtype = -1,
                                               .only = DCP_ONLY_MODEL };
        snprintf(folder->target, sizeof folder->target, "%s/model-%zu", folder->path, i);
        reshard_folder_must_run(folder->source, folder->target, &options);
        assert_int_equal(check_values(folder->source, folder->target, formats[i]),
                         sample_n_tensors() - 5);
        /* And back: a source without fingerprints is proved by its own geometry. */
        snprintf(again, sizeof again, "%s-again", folder->target);
        reshard_folder_must_run(folder->target, again, &back);
        assert_int_equal(check_values(folder->source, again, "native"),
                         sample_n_tensors() - 5);
        assert_int_equal(dcp_fs_is_dir(folder->target), 0);
        options.dtype = DCP_BF16;
        options.force = true;
        reshard_folder_must_run(folder->source, folder->target, &options);
        check_values(folder->source, folder->target, formats[i]);
    }
    assert_int_equal(reshard_folder_count(folder->path, ".tmp-"), 0);
    assert_int_equal(reshard_folder_count(folder->path, ".trash-"), 0);
}

/* The second file of a step is an export of it. */
static void consolidated_exports(void **state)
{
    struct reshard_folder *folder = *state;
    const struct dcp_export consolidated = { "pytorch_model.bin", "torch", DCP_BF16 };
    const struct dcp_save_options more = { .consolidated = &consolidated };
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = "zero2",
                         .world_size = 3,
                         .step = 5,
                         .salt = RESHARD_SALT,
                         .codec = DCP_CODEC_ZSTD,
                         .more = &more };
    char path[600];

    assert_int_equal(dcp_store_dir(&store, folder->source, true, NULL), 0);
    assert_int_equal(acts_save(&acts), 0);
    dcp_store_free(&store);
    snprintf(path, sizeof path, "%s/step-00000005/pytorch_model.bin", folder->source);
    assert_int_equal(check_values(folder->source, path, "torch"), sample_n_tensors() - 5);
    reshard_folder_check(folder->source, "zero2", 3);
}

int main(void)
{
#define EACH(test) \
    cmocka_unit_test_setup_teardown(test, reshard_folder_setup, reshard_folder_teardown)
    const struct CMUnitTest tests[] = {
        EACH(casts),
        EACH(selections),
        EACH(exports),
        EACH(consolidated_exports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
