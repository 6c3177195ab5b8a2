/* labels: tsan */
/* Reshard through real folders: every layout pair at many worlds, codecs, casts,
 * selections and exports; what would change a bit it was not asked to change is not
 * published, and nothing is left of it. */
#include "base/fs.h"
#include "base/hash.h"
#include "lib/acts.h"
#include "lib/sample.h"
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

#define SALT 3
#define N_MOST_TENSORS 64

static const int worlds[] = { 1, 2, 3, 4, 7, 8 };
enum { N_WORLDS = sizeof worlds / sizeof worlds[0], N_LAYOUTS = 6 };

static uint64_t fingerprints[N_MOST_TENSORS];

struct folder {
    char path[256], source[512], target[512];
};

static int setup(void **state)
{
    struct folder *folder = calloc(1, sizeof *folder);
    struct sample sample;

    acts_folder(folder->path);
    snprintf(folder->source, sizeof folder->source, "%s/source", folder->path);
    snprintf(folder->target, sizeof folder->target, "%s/target", folder->path);
    sample_make(&sample, "replicated", 1, 0, false, SALT);
    for (int t = 0; t < sample_n_tensors(); t++)
        fingerprints[t] = sample_fingerprint(&sample, t, SALT);
    sample_free(&sample);
    *state = folder;
    return 0;
}

static int teardown(void **state)
{
    struct folder *folder = *state;

    acts_folder_remove(folder->path);
    free(folder);
    return 0;
}

/* --- steps --- */

static void save(const char *path, const char *layout, int world, enum dcp_codec codec)
{
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = layout,
                         .world = world,
                         .step = 5,
                         .salt = SALT,
                         .codec = codec };

    assert_int_equal(dcp_store_dir(&store, path, true, NULL), 0);
    int rc = acts_save(&acts);
    dcp_store_free(&store);
    assert_string_equal(acts.err.message, "");
    assert_int_equal(rc, 0);
}

/* Index of the sample's tensor of that name. */
static int sample_index(const char *name)
{
    struct sample sample;

    sample_make(&sample, "replicated", 1, 0, false, SALT);
    int found = dcp_catalog_find(sample.catalog, name);
    sample_free(&sample);
    return found;
}

/* Whole by its digests, and every fingerprint is the state's. Returns the tensors. */
static size_t check_step(const char *path, const char *layout, int world)
{
    struct dcp_place place;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    int rc = dcp_place_open(path, &place, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    assert_string_equal(place.format->name, "native");
    assert_int_equal(dcp_verify(&place.source, NULL, NULL, &err), 0);
    assert_int_equal(dcp_place_index(&place, &catalog, &err), 0);
    assert_int_equal(catalog->world, world);
    assert_string_equal(catalog->layout, layout);
    assert_int_equal(catalog->step, 5);
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        int at = sample_index(catalog->tensors[t].name);
        assert_in_range(at, 0, sample_n_tensors() - 1);
        assert_int_equal(catalog->tensors[t].fingerprint, fingerprints[at]);
    }
    assert_true(dcp_catalog_find_object(catalog, "trainer") >= 0);
    size_t n = catalog->n_tensors;
    dcp_catalog_free(catalog);
    dcp_place_close(&place);
    return n;
}

/* Loads a step folder at a world and layout: every byte is the sample's. */
static void check_load(const char *path, const char *layout, int world)
{
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = layout,
                         .world = world,
                         .step = -1,
                         .salt = SALT,
                         .name = "" };

    assert_int_equal(dcp_store_dir(&store, path, false, NULL), 0);
    int rc = acts_load(&acts);
    dcp_store_free(&store);
    assert_string_equal(acts.err.message, "");
    assert_int_equal(rc, 0);
    assert_int_equal(acts.wrong, 0);
}

static int reshard(const char *source, const char *target,
                   const struct dcp_reshard_options *options, struct dcp_error *err)
{
    struct dcp_place place;
    struct dcp_reshard *job;

    int rc = dcp_place_open(source, &place, err);
    if (rc)
        return rc;
    rc = dcp_reshard_plan(&place, target, options, &job, err);
    if (!rc) {
        rc = dcp_reshard_run(job, err);
        dcp_reshard_free(job);
    }
    dcp_place_close(&place);
    return rc;
}

static void must_reshard(const char *source, const char *target,
                         const struct dcp_reshard_options *options)
{
    struct dcp_error err = { 0 };

    int rc = reshard(source, target, options, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
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

/* Names in a folder that begin so. */
static int count_names(const char *path, const char *prefix)
{
    struct dcp_store store;
    struct dcp_store_entry *entries;
    size_t n;
    int found = 0;

    assert_int_equal(dcp_store_dir(&store, path, false, NULL), 0);
    assert_int_equal(store.ops->list(store.self, "", &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        found += !strncmp(entries[i].name, prefix, strlen(prefix));
    dcp_store_list_free(entries, n);
    dcp_store_free(&store);
    return found;
}

static void check_nothing_left(const struct folder *folder)
{
    assert_false(dcp_fs_exists(folder->target));
    assert_int_equal(count_names(folder->path, ".tmp-"), 0);
    assert_int_equal(count_names(folder->path, ".trash-"), 0);
}

/* --- every layout, every world --- */

/* 36 pairs of layouts and 36 pairs of worlds, each once, matched by a permutation. */
static void layout_and_world_pairs(void **state)
{
    struct folder *folder = *state;
    const char *const *layouts = dcp_layout_names();
    uint64_t seed = 20251121;
    int order[N_LAYOUTS * N_LAYOUTS];

    for (int i = 0; i < N_LAYOUTS * N_LAYOUTS; i++) {
        int j = (int)acts_pick(&seed, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < N_LAYOUTS * N_LAYOUTS; i++) {
        const char *from = layouts[i / N_LAYOUTS], *to = layouts[i % N_LAYOUTS];
        int from_world = worlds[order[i] / N_WORLDS], world = worlds[order[i] % N_WORLDS];
        struct dcp_reshard_options options = { .world = world,
                                               .layout = to,
                                               .dtype = -1,
                                               .threads = 1 + i % 3,
                                               .memory_bytes = i % 2 ? 1 : 0 };
        snprintf(folder->source, sizeof folder->source, "%s/%s-%d-%d", folder->path, from,
                 from_world, i);
        snprintf(folder->target, sizeof folder->target, "%s/target-%d", folder->path, i);
        save(folder->source, from, from_world, DCP_CODEC_NONE);
        must_reshard(folder->source, folder->target, &options);
        assert_int_equal(check_step(folder->target, to, world), sample_n_tensors());
        check_load(folder->target, from, worlds[acts_pick(&seed, N_WORLDS)]);
        acts_folder_remove(folder->source);
        acts_folder_remove(folder->target);
    }
}

static void codecs(void **state)
{
    struct folder *folder = *state;
    struct dcp_reshard_options options = { .world = 3, .layout = "dim0", .dtype = -1 };
    char again[512];

    save(folder->source, "zero2", 4, DCP_CODEC_ZSTD);
    options.codec = DCP_CODEC_PLANES;
    must_reshard(folder->source, folder->target, &options);
    check_step(folder->target, "dim0", 3);
    check_load(folder->target, "flat", 2);
    options.codec = DCP_CODEC_NONE;
    snprintf(again, sizeof again, "%s/again", folder->path);
    must_reshard(folder->target, again, &options);
    check_step(again, "dim0", 3);
}

/* The defaults are the source's; doing it twice gives the same bytes. */
static void same_bytes_again(void **state)
{
    struct folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1 };
    char one[1024], two[1024];

    save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    must_reshard(folder->source, folder->target, &options);
    check_step(folder->target, "zero3", 3);
    static const char *const files[] = { "manifest.json", "shard-00000-of-00003.json",
                                         "shard-00002-of-00003.safetensors" };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(one, sizeof one, "%s/step-00000005/%s", folder->source, files[i]);
        snprintf(two, sizeof two, "%s/%s", folder->target, files[i]);
        assert_int_equal(file_digest(one), file_digest(two));
    }
}

/* --- dtypes, selections, exports --- */

/* Every tensor of `path` holds the source's elements, cast. Returns how many there are.
 */
static size_t check_values(const char *source, const char *path, const char *format)
{
    struct dcp_place a, b;
    struct dcp_catalog *from, *to;
    struct dcp_reader *old, *new;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_place_open(source, &a, &err), 0);
    assert_int_equal(dcp_place_open(path, &b, &err), 0);
    assert_string_equal(b.format->name, format);
    assert_int_equal(dcp_place_index(&a, &from, &err), 0);
    assert_int_equal(dcp_place_index(&b, &to, &err), 0);
    assert_int_equal(dcp_reader_new(&a.source, from, 8 << 20, &old, &err), 0);
    assert_int_equal(dcp_reader_new(&b.source, to, 8 << 20, &new, &err), 0);
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
    dcp_place_close(&a);
    dcp_place_close(&b);
    return n;
}

static void casts(void **state)
{
    struct folder *folder = *state;
    static const enum dcp_dtype dtypes[] = { DCP_F32, DCP_BF16, DCP_F16, DCP_F8_E4M3 };

    save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        struct dcp_reshard_options options = { .world = 2,
                                               .layout = "flat",
                                               .dtype = (int)dtypes[i],
                                               .codec = (enum dcp_codec)(i % 3),
                                               .force = true };
        must_reshard(folder->source, folder->target, &options);
        assert_int_equal(check_values(folder->source, folder->target, "native"),
                         sample_n_tensors());
    }
}

static void selections(void **state)
{
    struct folder *folder = *state;
    static const char *const some[] = { "h.0.*", "one", NULL };
    static const char *const none[] = { "nothing*", NULL };
    struct dcp_reshard_options options = { .dtype = -1, .force = true, .select = some };
    struct dcp_error err = { 0 };

    save(folder->source, "zero1", 3, DCP_CODEC_NONE);
    must_reshard(folder->source, folder->target, &options);
    assert_int_equal(check_step(folder->target, "zero1", 3), 5);
    options.select = NULL;
    options.only = DCP_ONLY_OPTIM;
    must_reshard(folder->source, folder->target, &options);
    assert_int_equal(check_step(folder->target, "zero1", 3), 5);
    options.only = DCP_ONLY_MODEL;
    must_reshard(folder->source, folder->target, &options);
    assert_int_equal(check_step(folder->target, "zero1", 3), sample_n_tensors() - 5);
    options.select = none;
    assert_int_equal(reshard(folder->source, folder->target, &options, &err),
                     DCP_E_MISMATCH);
    assert_int_equal(check_step(folder->target, "zero1", 3), sample_n_tensors() - 5);
}

static void exports(void **state)
{
    struct folder *folder = *state;
    static const char *const formats[] = { "torch", "safetensors" };
    struct dcp_reshard_options back = { .world = 4, .layout = "dim0", .dtype = -1 };
    char again[600];

    save(folder->source, "flat", 7, DCP_CODEC_PLANES);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        struct dcp_reshard_options options = { .format = formats[i],
                                               .dtype = -1,
                                               .only = DCP_ONLY_MODEL };
        snprintf(folder->target, sizeof folder->target, "%s/model-%zu", folder->path, i);
        must_reshard(folder->source, folder->target, &options);
        assert_int_equal(check_values(folder->source, folder->target, formats[i]),
                         sample_n_tensors() - 5);
        /* And back: a source without fingerprints is proved by its own geometry. */
        snprintf(again, sizeof again, "%s-again", folder->target);
        must_reshard(folder->target, again, &back);
        assert_int_equal(check_values(folder->source, again, "native"),
                         sample_n_tensors() - 5);
        assert_int_equal(dcp_fs_is_dir(folder->target), 0);
        options.dtype = DCP_BF16;
        options.force = true;
        must_reshard(folder->source, folder->target, &options);
        check_values(folder->source, folder->target, formats[i]);
    }
    assert_int_equal(count_names(folder->path, ".tmp-"), 0);
    assert_int_equal(count_names(folder->path, ".trash-"), 0);
}

/* The second file of a step is an export of it. */
static void companions(void **state)
{
    struct folder *folder = *state;
    const struct dcp_companion companion = { "pytorch_model.bin", "torch", DCP_BF16 };
    const struct dcp_save_options more = { .companion = &companion };
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = "zero2",
                         .world = 3,
                         .step = 5,
                         .salt = SALT,
                         .codec = DCP_CODEC_ZSTD,
                         .more = &more };
    char path[600];

    assert_int_equal(dcp_store_dir(&store, folder->source, true, NULL), 0);
    assert_int_equal(acts_save(&acts), 0);
    dcp_store_free(&store);
    snprintf(path, sizeof path, "%s/step-00000005/pytorch_model.bin", folder->source);
    assert_int_equal(check_values(folder->source, path, "torch"), sample_n_tensors() - 5);
    check_step(folder->source, "zero2", 3);
}

static void no_ranks_in_one_file(void **state)
{
    struct folder *folder = *state;
    struct dcp_reshard_options options = {
        .format = "torch", .dtype = -1, .world = 2, .only = DCP_ONLY_MODEL
    };
    struct dcp_error err = { 0 };

    save(folder->source, "flat", 2, DCP_CODEC_NONE);
    assert_int_equal(reshard(folder->source, folder->target, &options, &err),
                     DCP_E_MISMATCH);
    options.world = 0;
    options.codec = DCP_CODEC_ZSTD;
    err = (struct dcp_error){ 0 };
    assert_int_equal(reshard(folder->source, folder->target, &options, &err),
                     DCP_E_MISMATCH);
    options.codec = DCP_CODEC_NONE;
    options.format = "nonsense";
    err = (struct dcp_error){ 0 };
    assert_int_equal(reshard(folder->source, folder->target, &options, &err),
                     DCP_E_UNSUPPORTED);
    check_nothing_left(folder);
}

/* --- what must not be done --- */

static void existing_targets(void **state)
{
    struct folder *folder = *state;
    struct dcp_reshard_options options = { .world = 2, .layout = "dim0", .dtype = -1 };
    struct dcp_error err = { 0 };

    save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    must_reshard(folder->source, folder->target, &options);
    options.world = 4;
    assert_int_equal(reshard(folder->source, folder->target, &options, &err),
                     DCP_E_EXISTS);
    check_step(folder->target, "dim0", 2);
    options.force = true;
    must_reshard(folder->source, folder->target, &options);
    check_step(folder->target, "dim0", 4);
    assert_int_equal(count_names(folder->path, ".trash-"), 0);
    assert_int_equal(count_names(folder->path, ".tmp-"), 0);
}

static void targets_in_and_around_the_source(void **state)
{
    struct folder *folder = *state;
    struct dcp_reshard_options options = { .dtype = -1, .force = true };
    char step[600], inside[700];
    struct dcp_error err = { 0 };

    save(folder->source, "zero3", 2, DCP_CODEC_NONE);
    snprintf(step, sizeof step, "%s/step-00000005", folder->source);
    snprintf(inside, sizeof inside, "%s/inside", step);
    assert_int_equal(reshard(folder->source, inside, &options, &err), DCP_E_USAGE);
    assert_int_equal(reshard(step, step, &options, NULL), DCP_E_USAGE);
    assert_int_equal(reshard(step, folder->source, &options, NULL), DCP_E_USAGE);
    assert_int_equal(reshard(step, folder->path, &options, NULL), DCP_E_USAGE);
    assert_int_equal(reshard(step, "/", &options, NULL), DCP_E_USAGE);
    snprintf(inside, sizeof inside, "%s/gone/target", folder->path);
    assert_int_equal(reshard(step, inside, &options, NULL), DCP_E_NOT_FOUND);
    check_step(step, "zero3", 2);
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

static void damaged_source(void **state)
{
    struct folder *folder = *state;
    struct dcp_reshard_options options = { .world = 2, .layout = "dim0", .dtype = -1 };
    struct dcp_place place;
    struct dcp_reshard *job;
    struct dcp_error err = { 0 };
    char shard[700];

    save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    snprintf(shard, sizeof shard, "%s/step-00000005/shard-00001-of-00003.safetensors",
             folder->source);
    assert_int_equal(dcp_place_open(folder->source, &place, &err), 0);
    assert_int_equal(dcp_reshard_plan(&place, folder->target, &options, &job, &err), 0);
    flip(shard, 5000); /* in the tensor 'big', after the decision */
    assert_int_equal(dcp_reshard_run(job, &err), DCP_E_CORRUPT);
    assert_string_equal(err.tensor, "big");
    dcp_reshard_free(job);
    dcp_place_close(&place);
    check_nothing_left(folder);
    flip(shard, 5000);

    /* With force the old target stays. */
    must_reshard(folder->source, folder->target, &options);
    flip(shard, -1);
    options.force = true;
    options.world = 5;
    assert_int_equal(reshard(folder->source, folder->target, &options, NULL),
                     DCP_E_CORRUPT);
    check_step(folder->target, "dim0", 2);
    assert_int_equal(count_names(folder->path, ".tmp-"), 0);
}

static bool stop_soon(void *self, uint64_t done, uint64_t total)
{
    int *calls = self;

    return ++*calls > 3 || done > total;
}

static void interrupted(void **state)
{
    struct folder *folder = *state;
    int calls = 0;
    struct dcp_reshard_options options = { .world = 2,
                                           .dtype = -1,
                                           .progress = { stop_soon, &calls } };
    struct dcp_error err = { 0 };

    save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    assert_int_equal(reshard(folder->source, folder->target, &options, &err),
                     DCP_E_INTERRUPTED);
    check_nothing_left(folder);
}

static void facts(void **state)
{
    struct folder *folder = *state;
    struct dcp_reshard_options options = {
        .world = 2, .layout = "dim0", .dtype = DCP_BF16, .only = DCP_ONLY_OPTIM
    };
    struct dcp_place place;
    struct dcp_reshard *job;
    struct dcp_error err = { 0 };

    save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    assert_int_equal(dcp_place_open(folder->source, &place, &err), 0);
    assert_int_equal(dcp_reshard_plan(&place, folder->target, &options, &job, &err), 0);
    const struct dcp_reshard_plan *plan = dcp_reshard_facts(job);
    const struct dcp_catalog *target = dcp_reshard_target(job);
    assert_int_equal(plan->n_tensors, 5);
    assert_int_equal(plan->source_bytes, 4 * (2 * 67 * 12 + 12 * 36 + 36 + 1));
    assert_int_equal(plan->target_bytes, plan->source_bytes / 2);
    assert_int_equal(plan->read_bytes, plan->source_bytes);
    assert_int_equal(plan->source_files, 3);
    assert_int_equal(plan->target_files, 2);
    assert_int_equal(target->world, 2);
    assert_int_equal(target->n_tensors, 5);
    dcp_reshard_free(job);
    dcp_place_close(&place);
    check_nothing_left(folder);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        EACH(layout_and_world_pairs),
        EACH(codecs),
        EACH(same_bytes_again),
        EACH(casts),
        EACH(selections),
        EACH(exports),
        EACH(companions),
        EACH(no_ranks_in_one_file),
        EACH(existing_targets),
        EACH(targets_in_and_around_the_source),
        EACH(damaged_source),
        EACH(interrupted),
        EACH(facts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
