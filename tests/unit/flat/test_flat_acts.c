/* flat: verify, fingerprint, diff, reshard and repair through the calls of other
 * languages, and what stops them. */
#include "lib/acts.h"
#include "lib/reshard_folder.h"
#include "lib/sample.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

static struct dcp_flat_checkpoint *open_path(const char *path)
{
    const struct dcp_flat_open_options options = { .struct_size = sizeof options,
                                                   .path = path,
                                                   .step = -1 };
    struct dcp_flat_error err = { .struct_size = sizeof err };
    struct dcp_flat_checkpoint *checkpoint;

    int rc = dcp_flat_checkpoint_open(&options, &checkpoint, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    return checkpoint;
}

/* A step with a parity file; salt makes another state. */
static void save(const char *path, unsigned salt)
{
    const struct dcp_save_options more = { .parity = 1 };
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = "zero1",
                         .world_size = 2,
                         .step = 5,
                         .salt = salt,
                         .more = &more };

    assert_int_equal(dcp_store_dir(&store, path, true, NULL), 0);
    assert_int_equal(acts_save(&acts), 0);
    dcp_store_free(&store);
}

static void damage(const char *folder)
{
    char path[700];

    snprintf(path, sizeof path, "%s/step-00000005/shard-00001-of-00002.safetensors",
             folder);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, -5000, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -5000, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
}

static int32_t stop(void *self, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)done_bytes;
    (void)total_bytes;
    ++*(int *)self;
    return 1;
}

/* -- verify, fingerprint ----------------------------------------------------------- */

static void keep(void *self, const struct dcp_flat_finding *finding)
{
    char *out = self;

    snprintf(out, 600, "%d %s %s", finding->code, finding->file, finding->tensor);
}

static void verify_tells_findings(void **state)
{
    const struct reshard_folder *folder = *state;
    char told[600] = "";
    struct dcp_flat_verify_options options = { .struct_size = sizeof options,
                                               .finding = keep,
                                               .self = told };
    struct dcp_flat_verify_result result = { .struct_size = sizeof result };
    struct dcp_flat_error err = { .struct_size = sizeof err };
    int n_calls = 0;
    const struct dcp_flat_hooks hooks = { sizeof hooks, stop, &n_calls, NULL };

    save(folder->source, RESHARD_SALT);
    struct dcp_flat_checkpoint *checkpoint = open_path(folder->source);
    assert_int_equal(
        dcp_flat_checkpoint_verify(checkpoint, &options, NULL, &result, &err), 0);
    assert_int_equal(result.n_tensors, sample_n_tensors());
    assert_int_equal(result.n_findings, 0);
    assert_int_equal(dcp_flat_checkpoint_verify(checkpoint, &options, &hooks, NULL, &err),
                     DCP_E_INTERRUPTED);
    assert_in_range(n_calls, 1, 2); /* threads that were reading end */
    damage(folder->source);
    assert_int_equal(
        dcp_flat_checkpoint_verify(checkpoint, &options, NULL, &result, &err),
        DCP_E_CORRUPT);
    assert_true(result.n_findings >= 1);
    assert_non_null(strstr(told, "shard-00001-of-00002.safetensors"));
    assert_non_null(strstr(err.message, folder->source));
    dcp_flat_checkpoint_close(checkpoint);
}

static void fingerprints_are_of_the_bytes(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options to = { .dtype = -1,
                                            .format = "torch",
                                            .world_size = 1 };
    struct sample sample;
    char path[600];

    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    snprintf(path, sizeof path, "%s.pt", folder->source); /* it keeps none */
    reshard_folder_must_run(folder->source, path, &to);
    sample_make(&sample, "replicated", 1, 0, false, RESHARD_SALT);
    struct dcp_flat_checkpoint *checkpoint = open_path(path);
    struct dcp_flat_tensors tensors = { .struct_size = sizeof tensors };
    assert_int_equal(dcp_flat_tensors_list(checkpoint, &tensors, NULL), 0);
    int n = 0;
    for (uint64_t t = 0; t < tensors.n; t++) {
        uint64_t fingerprint = 0;
        int s = dcp_catalog_find(sample.catalog,
                                 tensors.names.blob + tensors.names.offsets[t]);
        assert_int_equal(tensors.flags[t], 0);
        assert_int_equal(
            dcp_flat_tensor_fingerprint(checkpoint, t, NULL, &fingerprint, NULL), 0);
        if (s < 0)
            continue;
        assert_true(fingerprint == sample_fingerprint(&sample, s, RESHARD_SALT));
        n++;
    }
    assert_true(n > 5);
    dcp_flat_checkpoint_close(checkpoint);
    sample_free(&sample);
}

/* -- diff -------------------------------------------------------------------------- */

struct told {
    int n[DCP_FLAT_OTHER_BITS + 1];
    int64_t last_first;
};

static void differs(void *self, int32_t how, int64_t a, int64_t b, int64_t first)
{
    struct told *told = self;

    told->n[how]++;
    told->last_first = first;
    assert_true(how == DCP_FLAT_ONLY_B ? a == -1 : a >= 0);
    assert_true(how == DCP_FLAT_ONLY_A ? b == -1 : b >= 0);
}

static struct dcp_flat_diff_result diff(const char *a, const char *b, struct told *told)
{
    struct dcp_flat_checkpoint *of_a = open_path(a), *of_b = open_path(b);
    const struct dcp_flat_diff_options options = { sizeof options, differs, told };
    struct dcp_flat_diff_result result = { .struct_size = sizeof result };

    *told = (struct told){ 0 };
    assert_int_equal(dcp_flat_checkpoint_diff(of_a, of_b, &options, NULL, &result, NULL),
                     0);
    assert_int_equal(dcp_flat_checkpoint_diff(of_a, of_a, &options, NULL, NULL, NULL),
                     DCP_E_USAGE);
    dcp_flat_checkpoint_close(of_a);
    dcp_flat_checkpoint_close(of_b);
    return result;
}

static void diff_is_bit_by_bit(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_reshard_options torch = { .dtype = -1,
                                               .format = "torch",
                                               .world_size = 1 };
    const struct dcp_reshard_options weights = { .dtype = -1,
                                                 .only = DCP_ONLY_MODEL,
                                                 .world_size = 3 };
    struct dcp_flat_diff_result result;
    char path[600];
    struct told told;

    save(folder->source, RESHARD_SALT);
    save(folder->target, RESHARD_SALT + 1);
    result = diff(folder->source, folder->target, &told);
    assert_int_equal(result.n_differ, told.n[DCP_FLAT_OTHER_BITS]);
    assert_int_equal(result.n_same, 2); /* those without elements */
    assert_int_equal(result.n_same + result.n_differ, sample_n_tensors());
    snprintf(path, sizeof path, "%s.pt", folder->source);
    reshard_folder_must_run(folder->source, path, &torch);
    result = diff(folder->source, path, &told); /* whose bytes are read */
    assert_int_equal(result.n_differ, 0);
    assert_int_equal(result.n_by_fingerprint, 0);
    assert_int_equal(result.n_same, sample_n_tensors());
    snprintf(path, sizeof path, "%s-weights", folder->source);
    reshard_folder_must_run(folder->source, path, &weights);
    result = diff(folder->source, path, &told);
    assert_int_equal(told.n[DCP_FLAT_ONLY_A], 5); /* of the optimizer */
    assert_int_equal(result.n_differ, 5);
    assert_int_equal(result.n_by_fingerprint, result.n_same);
    result = diff(path, folder->source, &told);
    assert_int_equal(told.n[DCP_FLAT_ONLY_B], 5);
}

/* -- reshard, repair --------------------------------------------------------------- */

static void reshard_makes_another(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_flat_reshard_options options = { .struct_size = sizeof options,
                                                .source = folder->source,
                                                .target = folder->target,
                                                .step = -1,
                                                .world_size = 3,
                                                .layout = "zero3",
                                                .codec = "split" };
    struct dcp_flat_reshard_result result = { .struct_size = sizeof result };
    struct dcp_flat_error err = { .struct_size = sizeof err };
    int n_calls = 0;
    const struct dcp_flat_hooks hooks = { sizeof hooks, stop, &n_calls, NULL };

    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    options.dry_run = 1;
    assert_int_equal(dcp_flat_reshard(&options, NULL, &result, &err), 0);
    assert_int_equal(result.n_tensors, sample_n_tensors());
    assert_int_equal(reshard_folder_count(folder->path, "target"), 0);
    options.dry_run = 0;
    assert_int_equal(dcp_flat_reshard(&options, &hooks, &result, &err),
                     DCP_E_INTERRUPTED);
    assert_int_equal(reshard_folder_count(folder->path, ""),
                     reshard_folder_count(folder->path, "source"));
    assert_int_equal(dcp_flat_reshard(&options, NULL, &result, &err), 0);
    assert_int_equal(reshard_folder_check(folder->target, "zero3", 3),
                     sample_n_tensors());
    assert_int_equal(dcp_flat_reshard(&options, NULL, &result, &err), DCP_E_EXISTS);
    options.force = 1;
    assert_int_equal(dcp_flat_reshard(&options, NULL, &result, &err), 0);
}

static void wrong_words_are_named(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct {
        struct dcp_flat_reshard_options options;
        const char *message, *hint;
    } kinds[] = {
        { { .codec = "splt" }, "there is no codec 'splt'", "did you mean 'split'?" },
        { { .only = "modell" }, "there is no selection 'modell'", "'model'" },
        { { .layout = "zero4" }, "there is no layout 'zero4'", "" },
        { { .dtype = "int8" }, "takes a floating type, not 'int8'", "bf16" },
        { { .format = "torhc" }, "there is no format 'torhc'", "" },
        { { .weights = "mine" }, "there is no choice of weights 'mine'", "" },
    };

    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct dcp_flat_reshard_options options = kinds[i].options;
        struct dcp_flat_error err = { .struct_size = sizeof err };
        options.struct_size = sizeof options;
        options.source = folder->source;
        options.target = folder->target;
        options.step = -1;
        assert_int_equal(dcp_flat_reshard(&options, NULL, NULL, &err), DCP_E_USAGE);
        assert_non_null(strstr(err.message, kinds[i].message));
        assert_non_null(strstr(err.hint, kinds[i].hint));
    }
}

static void export_is_of_weights(void **state)
{
    const struct reshard_folder *folder = *state;
    char path[600];
    struct dcp_flat_reshard_options options = { .struct_size = sizeof options,
                                                .source = folder->source,
                                                .target = path,
                                                .step = -1,
                                                .for_export = 1 };
    struct dcp_flat_info info = { .struct_size = sizeof info };
    struct dcp_flat_error err = { .struct_size = sizeof err };

    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    snprintf(path, sizeof path, "%s/model.safetensors", folder->path);
    int rc = dcp_flat_reshard(&options, NULL, NULL, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    struct dcp_flat_checkpoint *checkpoint = open_path(path);
    dcp_flat_checkpoint_info(checkpoint, &info);
    assert_string_equal(info.format, "safetensors");
    assert_int_equal(info.n_tensors, 12);
    dcp_flat_checkpoint_close(checkpoint);
    options.for_export = 0;
    assert_int_equal(dcp_flat_reshard(&options, NULL, NULL, &err), DCP_E_USAGE);
}

static void on_repaired(void *self, const char *step, const char *file,
                        uint64_t size_bytes)
{
    assert_string_equal(step, "step-00000005");
    assert_string_equal(file, "shard-00001-of-00002.safetensors");
    assert_true(size_bytes > 5000);
    ++*(int *)self;
}

/* Of the run folder, then of the step itself. */
static void repair_brings_back(void **state)
{
    const struct reshard_folder *folder = *state;
    char step[600];
    const char *const paths[] = { folder->source, step };

    save(folder->source, RESHARD_SALT);
    snprintf(step, sizeof step, "%s/step-00000005", folder->source);
    for (int i = 0; i < 2; i++) {
        int n_repaired = 0;
        const struct dcp_flat_repair_options options = { .struct_size = sizeof options,
                                                         .path = paths[i],
                                                         .repaired = on_repaired,
                                                         .self = &n_repaired };
        struct dcp_flat_repair_result result = { .struct_size = sizeof result };
        struct dcp_flat_info info = { .struct_size = sizeof info };
        damage(folder->source);
        /* What is corrupt is read through the parity meanwhile. */
        struct dcp_flat_checkpoint *checkpoint = open_path(folder->source);
        struct dcp_flat_tensors tensors = { .struct_size = sizeof tensors };
        assert_int_equal(dcp_flat_tensors_list(checkpoint, &tensors, NULL), 0);
        for (uint64_t t = 0; t < tensors.n; t++) {
            void *data[] = { malloc(4 << 20) };
            const struct dcp_flat_boxes boxes = { sizeof boxes, 1, &t, NULL, NULL, data };
            assert_int_equal(dcp_flat_boxes_read(checkpoint, &boxes, NULL, NULL), 0);
            free(data[0]);
        }
        dcp_flat_checkpoint_info(checkpoint, &info);
        assert_non_null(strstr(info.corruption, "shard-00001-of-00002.safetensors"));
        dcp_flat_checkpoint_close(checkpoint);
        assert_int_equal(dcp_flat_repair(&options, NULL, &result, NULL), 0);
        assert_int_equal(n_repaired, 1);
        assert_int_equal(result.n_steps, 1);
        assert_int_equal(result.n_files, 1);
        reshard_folder_check(folder->source, "zero1", 2);
    }
}

static void repair_says_why_not(void **state)
{
    const struct reshard_folder *folder = *state;
    struct dcp_flat_repair_options options = { .struct_size = sizeof options,
                                               .path = folder->source };
    struct dcp_flat_error err = { .struct_size = sizeof err };

    assert_int_equal(dcp_flat_repair(&options, NULL, NULL, &err), DCP_E_NOT_FOUND);
    reshard_folder_save(folder->source, "zero1", 2, DCP_CODEC_NONE);
    assert_int_equal(dcp_flat_repair(&options, NULL, NULL, &err), DCP_E_NOT_FOUND);
    assert_non_null(strstr(err.hint, "parity is made when a step is saved"));
}

int main(void)
{
#define TEST(function)                                              \
    cmocka_unit_test_setup_teardown(function, reshard_folder_setup, \
                                    reshard_folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(verify_tells_findings), TEST(fingerprints_are_of_the_bytes),
        TEST(diff_is_bit_by_bit),    TEST(reshard_makes_another),
        TEST(wrong_words_are_named), TEST(export_is_of_weights),
        TEST(repair_brings_back),    TEST(repair_says_why_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
