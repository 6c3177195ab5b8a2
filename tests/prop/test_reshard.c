/* labels: tsan */
/* Reshard through real folders: every layout pair at many world sizes, codecs; what would
 * change a bit it was not asked to change is not published, and nothing is left of it. */
#include "base/fs.h"
#include "base/hash.h"
#include "lib/acts.h"
#include "lib/reshard_folder.h"
#include "lib/sample.h"
#include "lib/slower.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int world_sizes[] = { 1, 2, 3, 4, 7, 8 };
enum { N_WORLD_SIZES = sizeof world_sizes / sizeof world_sizes[0], N_LAYOUTS = 6 };

/* Loads a step folder at a world size and sharding: every byte is the sample's. */
static void check_load(const char *path, const char *layout, int world_size)
{
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = layout,
                         .world_size = world_size,
                         .step = -1,
                         .salt = RESHARD_SALT,
                         .name = "" };

    assert_int_equal(dcp_store_dir(&store, path, false, NULL), 0);
    int rc = acts_load(&acts);
    dcp_store_free(&store);
    assert_string_equal(acts.err.message, "");
    assert_int_equal(rc, 0);
    assert_int_equal(acts.wrong, 0);
}

/* The digest of a file, 0 when there is none. */
static uint64_t file_digest(const char *path)
{
    void *data;
    size_t n;
    uint64_t digest = 0;

    if (!dcp_fs_read_file(path, (size_t)1 << 30, &data, &n, NULL)) {
        digest = dcp_hash_xxh3(data, n) | 1;
        free(data);
    }
    return digest;
}

static void check_nothing_left(const struct reshard_folder *folder)
{
    assert_false(dcp_fs_exists(folder->target));
    assert_int_equal(reshard_folder_count(folder->path, ".tmp-"), 0);
    assert_int_equal(reshard_folder_count(folder->path, ".trash-"), 0);
}

/* --- every layout, every world size --- */

/* 36 pairs of layouts and 36 pairs of world sizes, each once, matched by a permutation.
 */
static void layout_and_world_size_pairs(void **state)
{
    struct reshard_folder *folder = *state;
    const char *const *layouts = dcp_layout_names();
    uint64_t seed = 20251121;
    int order[N_LAYOUTS * N_LAYOUTS];

    for (int i = 0; i < N_LAYOUTS * N_LAYOUTS; i++) {
        int j = (int)acts_pick(&seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < N_LAYOUTS * N_LAYOUTS; i += SLOWER) {
        const char *from = layouts[i / N_LAYOUTS], *to = layouts[i % N_LAYOUTS];
        int from_world_size = world_sizes[order[i] / N_WORLD_SIZES],
            world_size = world_sizes[order[i] % N_WORLD_SIZES];
        struct dcp_reshard_options options = { .world_size = world_size,
                                               .layout = to,
                                               .dtype = -1,
                                               .threads = 1 + i % 3,
                                               .memory_bytes = i % 2 ? 1 : 0 };
        snprintf(folder->source, sizeof folder->source, "%s/%s-%d-%d", folder->path, from,
                 from_world_size, i);
        snprintf(folder->target, sizeof folder->target, "%s/target-%d", folder->path, i);
        reshard_folder_save(folder->source, from, from_world_size, DCP_CODEC_NONE);
        reshard_folder_must_run(folder->source, folder->target, &options);
        assert_int_equal(reshard_folder_check(folder->target, to, world_size),
                         sample_n_tensors());
        check_load(folder->target, from, world_sizes[acts_pick(&seed, N_WORLD_SIZES)]);
        acts_folder_remove(folder->source);
        acts_folder_remove(folder->target);
    }
}

static void codecs(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .world_size = 3,
                                           .layout = "dim0",
                                           .dtype = -1 };
    char again[512];

    reshard_folder_save(folder->source, "zero2", 4, DCP_CODEC_ZSTD);
    options.codec = DCP_CODEC_PLANES;
    reshard_folder_must_run(folder->source, folder->target, &options);
    reshard_folder_check(folder->target, "dim0", 3);
    check_load(folder->target, "flat", 2);
    options.codec = DCP_CODEC_NONE;
    snprintf(again, sizeof again, "%s/again", folder->path);
    reshard_folder_must_run(folder->target, again, &options);
    reshard_folder_check(again, "dim0", 3);
}

/* The defaults are the source's; doing it twice gives the same bytes. */
static void same_bytes_again(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1 };
    char one[1024], two[1024];

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, folder->target, &options);
    reshard_folder_check(folder->target, "zero3", 3);
    static const char *const files[] = { "manifest.json", "shard-00000-of-00003.pieces",
                                         "shard-00002-of-00003.safetensors" };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(one, sizeof one, "%s/step-00000005/%s", folder->source, files[i]);
        snprintf(two, sizeof two, "%s/%s", folder->target, files[i]);
        assert_int_equal(file_digest(one), file_digest(two));
    }
}

static void no_ranks_in_one_file(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = {
        .format = "torch", .dtype = -1, .world_size = 2, .only = DCP_ONLY_MODEL
    };
    struct dcp_error err = { 0 };

    reshard_folder_save(folder->source, "flat", 2, DCP_CODEC_NONE);
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, &err),
                     DCP_E_MISMATCH);
    options.world_size = 0;
    options.codec = DCP_CODEC_ZSTD;
    err = (struct dcp_error){ 0 };
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, &err),
                     DCP_E_MISMATCH);
    options.codec = DCP_CODEC_NONE;
    options.format = "nonsense";
    err = (struct dcp_error){ 0 };
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, &err),
                     DCP_E_UNSUPPORTED);
    check_nothing_left(folder);
}

/* --- what must not be done --- */

static void existing_targets(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .world_size = 2,
                                           .layout = "dim0",
                                           .dtype = -1 };
    struct dcp_error err = { 0 };

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    reshard_folder_must_run(folder->source, folder->target, &options);
    options.world_size = 4;
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, &err),
                     DCP_E_EXISTS);
    reshard_folder_check(folder->target, "dim0", 2);
    options.force = true;
    reshard_folder_must_run(folder->source, folder->target, &options);
    reshard_folder_check(folder->target, "dim0", 4);
    assert_int_equal(reshard_folder_count(folder->path, ".trash-"), 0);
    assert_int_equal(reshard_folder_count(folder->path, ".tmp-"), 0);
}

static void targets_in_and_around_the_source(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1, .force = true };
    char step[600], inside[700];
    struct dcp_error err = { 0 };

    reshard_folder_save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    snprintf(step, sizeof step, "%s/step-00000005", folder->source);
    snprintf(inside, sizeof inside, "%s/inside", step);
    assert_int_equal(reshard_folder_run(folder->source, inside, &options, &err),
                     DCP_E_USAGE);
    assert_int_equal(reshard_folder_run(step, step, &options, NULL), DCP_E_USAGE);
    assert_int_equal(reshard_folder_run(step, folder->source, &options, NULL),
                     DCP_E_USAGE);
    assert_int_equal(reshard_folder_run(step, folder->path, &options, NULL), DCP_E_USAGE);
    assert_int_equal(reshard_folder_run(step, "/", &options, NULL), DCP_E_USAGE);
    snprintf(inside, sizeof inside, "%s/new/inside", step);
    assert_int_equal(reshard_folder_run(step, inside, &options, NULL), DCP_E_USAGE);
    snprintf(inside, sizeof inside, "%s/gone/../target", folder->path);
    assert_int_equal(reshard_folder_run(step, inside, &options, NULL), DCP_E_NOT_FOUND);
    snprintf(inside, sizeof inside, "%s/new/deep/target", folder->path);
    reshard_folder_must_run(step, inside, &options);
    reshard_folder_check(inside, "zero3", 2);
    reshard_folder_check(step, "zero3", 2);
}

/* Flips one bit of a file. */
static void flip(const char *path, long at)
{
    FILE *file = fopen(path, "r+b");

    assert_non_null(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    assert_int_not_equal(fputc(byte ^ 4, file), EOF);
    assert_int_equal(fclose(file), 0);
}

static void corrupt_source(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .world_size = 2,
                                           .layout = "dim0",
                                           .dtype = -1 };
    struct dcp_location location;
    struct dcp_reshard *job;
    struct dcp_error err = { 0 };
    char shard[700];

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    snprintf(shard, sizeof shard, "%s/step-00000005/shard-00001-of-00003.safetensors",
             folder->source);
    assert_int_equal(dcp_location_open(folder->source, &location, &err), 0);
    assert_int_equal(dcp_reshard_plan(&location, folder->target, &options, &job, &err),
                     0);
    flip(shard, 5000); /* in the tensor 'big', after the decision */
    assert_int_equal(dcp_reshard_run(job, &err), DCP_E_CORRUPT);
    assert_string_equal(err.tensor, "big");
    dcp_reshard_free(job);
    dcp_location_close(&location);
    check_nothing_left(folder);
    flip(shard, 5000);

    /* With force the old target stays. */
    reshard_folder_must_run(folder->source, folder->target, &options);
    flip(shard, -1);
    options.force = true;
    options.world_size = 5;
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, NULL),
                     DCP_E_CORRUPT);
    reshard_folder_check(folder->target, "dim0", 2);
    assert_int_equal(reshard_folder_count(folder->path, ".tmp-"), 0);
}

static bool stop_soon(void *self, uint64_t done, uint64_t total)
{
    int *calls = self;

    return ++*calls > 3 || done > total;
}

static void interrupted(void **state)
{
    struct reshard_folder *folder = *state;
    int calls = 0;
    struct dcp_reshard_options options = { .world_size = 2,
                                           .dtype = -1,
                                           .progress = { stop_soon, &calls } };
    struct dcp_error err = { 0 };

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, &err),
                     DCP_E_INTERRUPTED);
    check_nothing_left(folder);
}

/* Another process makes the same target, and takes away what this one wrote. */
static bool take_away(void *self, uint64_t done, uint64_t total)
{
    const struct reshard_folder *folder = self;
    char path[600];

    snprintf(path, sizeof path, "%s/.tmp-target/shard-00000-of-00002.safetensors",
             folder->path);
    if (done == total)
        unlink(path);
    return false;
}

static void disturbed(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = { .world_size = 2,
                                           .dtype = -1,
                                           .progress = { take_away, folder } };

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    assert_int_equal(reshard_folder_run(folder->source, folder->target, &options, NULL),
                     DCP_E_BUSY);
    check_nothing_left(folder);
}

static void facts(void **state)
{
    struct reshard_folder *folder = *state;
    struct dcp_reshard_options options = {
        .world_size = 2, .layout = "dim0", .dtype = DCP_BF16, .only = DCP_ONLY_OPTIM
    };
    struct dcp_location location;
    struct dcp_reshard *job;
    struct dcp_error err = { 0 };

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    assert_int_equal(dcp_location_open(folder->source, &location, &err), 0);
    assert_int_equal(dcp_reshard_plan(&location, folder->target, &options, &job, &err),
                     0);
    const struct dcp_reshard_plan *plan = dcp_reshard_facts(job);
    const struct dcp_catalog *target = dcp_reshard_target(job);
    assert_int_equal(plan->n_tensors, 5);
    assert_int_equal(plan->source_bytes, 4 * (2 * 67 * 12 + 12 * 36 + 36 + 1));
    assert_int_equal(plan->target_bytes, plan->source_bytes / 2);
    assert_int_equal(plan->read_bytes, plan->source_bytes);
    assert_int_equal(plan->source_files, 3);
    assert_int_equal(plan->target_files, 2);
    assert_int_equal(target->world_size, 2);
    assert_int_equal(target->n_tensors, 5);
    dcp_reshard_free(job);
    dcp_location_close(&location);
    check_nothing_left(folder);
}

int main(void)
{
#define EACH(test) \
    cmocka_unit_test_setup_teardown(test, reshard_folder_setup, reshard_folder_teardown)
    const struct CMUnitTest tests[] = {
        EACH(layout_and_world_size_pairs),
        EACH(codecs),
        EACH(same_bytes_again),
        EACH(no_ranks_in_one_file),
        EACH(existing_targets),
        EACH(targets_in_and_around_the_source),
        EACH(corrupt_source),
        EACH(interrupted),
        EACH(disturbed),
        EACH(facts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
