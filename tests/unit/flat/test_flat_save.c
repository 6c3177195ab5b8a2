/* flat: a state of several ranks is saved and loaded through the calls of other
 * languages, which bring the functions that ranks talk by. */
/* labels: tsan */
#include "lib/acts.h"
#include "lib/rank_threads.h"
#include "lib/reshard_folder.h"
#include "lib/sample.h"
#include "lib/tcp_group.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { MOST_RANKS = 4, MOST_TENSORS = 32 };

/* -- ranks ------------------------------------------------------------------------- */

static int32_t allgather(void *self, const void *in, uint64_t size_bytes, void *out,
                         int32_t timeout_ms)
{
    (void)timeout_ms;
    return dcp_comm_allgather(self, in, (size_t)size_bytes, out, NULL) == 0;
}

static int32_t bcast(void *self, void *data, uint64_t size_bytes, int32_t root,
                     int32_t timeout_ms)
{
    (void)timeout_ms;
    return dcp_comm_bcast(self, data, (size_t)size_bytes, root, NULL) == 0;
}

static struct dcp_flat_comm talk_of(struct dcp_comm *comm)
{
    return (struct dcp_flat_comm){ .struct_size = sizeof(struct dcp_flat_comm),
                                   .rank = comm->rank,
                                   .world_size = comm->world_size,
                                   .allgather = allgather,
                                   .bcast = bcast,
                                   .self = comm };
}

/* -- a state, flat ----------------------------------------------------------------- */

struct flat {
    struct sample sample;
    char names[MOST_TENSORS * 64], params[MOST_TENSORS * 64];
    uint8_t roles[MOST_TENSORS];
    uint32_t boxes[MOST_TENSORS];
    const char *object_names[2];
    int32_t dtypes[MOST_TENSORS], ndims[MOST_TENSORS], are_json[2];
    int64_t shapes[MOST_TENSORS * 4], offsets[MOST_TENSORS * 4], sizes[MOST_TENSORS * 4];
    void *data[MOST_TENSORS];
    const void *object_data[2];
    uint64_t object_sizes[2];
    struct dcp_flat_state state;
};

/* `text` behind the texts that are there. */
static void add_text(char *texts, uint64_t *bytes, const char *text)
{
    memcpy(texts + *bytes, text, strlen(text) + 1);
    *bytes += strlen(text) + 1;
}

/* The number of a box that is told, or that is told now: `n` dimensions behind `at`. */
static uint32_t box_of(struct flat *out, const struct dcp_local_tensor *local, size_t *at)
{
    struct dcp_flat_state *told = &out->state;
    const struct dcp_region *region = &local->region;
    size_t from = 0, bytes = (size_t)local->ndim * sizeof(int64_t);

    for (int d = 0; d < local->ndim; d++) {
        size_t i = *at + (size_t)d;
        out->shapes[i] = local->shape[d];
        out->offsets[i] = region->kind == DCP_BOX ? region->offset[d] : 0;
        out->sizes[i] = region->kind == DCP_BOX     ? region->size[d]
                        : region->kind == DCP_WHOLE ? local->shape[d]
                                                    : 0;
    }
    for (uint32_t b = 0; b < told->n_boxes; from += (size_t)out->ndims[b++])
        if (out->dtypes[b] == (int32_t)local->dtype && out->ndims[b] == local->ndim &&
            memcmp(out->shapes + from, out->shapes + *at, bytes) == 0 &&
            memcmp(out->offsets + from, out->offsets + *at, bytes) == 0 &&
            memcmp(out->sizes + from, out->sizes + *at, bytes) == 0)
            return b;
    out->dtypes[told->n_boxes] = (int32_t)local->dtype;
    out->ndims[told->n_boxes] = local->ndim;
    *at += (size_t)local->ndim;
    return (uint32_t)told->n_boxes++;
}

static void flat_make(struct flat *out, const char *layout, const struct dcp_comm *comm,
                      bool fill)
{
    size_t at = 0;

    *out = (struct flat){ 0 };
    struct dcp_flat_state *told = &out->state;
    sample_make(&out->sample, layout, comm->world_size, comm->rank, fill, RESHARD_SALT);
    const struct dcp_state *state = &out->sample.state;
    for (size_t t = 0; t < state->n_locals; t++) {
        const struct dcp_local_tensor *local = &state->locals[t];
        add_text(out->names, &told->names_bytes, local->name);
        add_text(out->params, &told->params_bytes,
                 local->param ? local->param : local->name);
        out->roles[t] = (uint8_t)local->role;
        out->boxes[t] = box_of(out, local, &at);
        out->data[t] = local->region.kind == DCP_FLAT ? NULL : local->data;
    }
    for (size_t i = 0; i < state->n_objects; i++) {
        out->object_names[i] = state->objects[i].name;
        out->are_json[i] = state->objects[i].kind == DCP_OBJECT_JSON;
        out->object_data[i] = state->objects[i].data;
        out->object_sizes[i] = state->objects[i].size_bytes;
    }
    told->struct_size = sizeof *told;
    told->n = state->n_locals;
    told->names = out->names;
    told->params = out->params;
    told->roles = out->roles;
    told->boxes = out->boxes;
    told->data = out->data;
    told->dtypes = out->dtypes;
    told->ndims = out->ndims;
    told->shapes = out->shapes;
    told->offsets = out->offsets;
    told->sizes = out->sizes;
    told->layout = layout;
    told->n_objects = state->n_objects;
    told->object_names = out->object_names;
    told->objects_are_json = out->are_json;
    told->object_data = out->object_data;
    told->object_sizes = out->object_sizes;
}

struct job {
    const char *path, *layout, *codec;
    int wrong_rank; /* from 1: it lists a tensor that cannot be; 0: none */
    int codes[MOST_RANKS];
    struct dcp_flat_error errs[MOST_RANKS];
    int64_t wrong[MOST_RANKS], steps[MOST_RANKS];
    char object[MOST_RANKS][64];
};

static void save(void *arg, struct dcp_comm *comm)
{
    struct job *job = arg;
    int rank = comm->rank;
    const struct dcp_flat_comm told = talk_of(comm);
    const struct dcp_flat_save_options options = {
        .struct_size = sizeof options, .path = job->path, .codec = job->codec, .step = 5
    };
    struct dcp_flat_save_result result = { .struct_size = sizeof result };
    struct flat flat;

    flat_make(&flat, job->layout, comm, true);
    if (rank + 1 == job->wrong_rank)
        flat.roles[3] = DCP_N_ROLES;
    job->errs[rank].struct_size = sizeof job->errs[rank];
    job->codes[rank] =
        dcp_flat_save(&options, &told, &flat.state, &result, &job->errs[rank]);
    job->steps[rank] = result.step;
    sample_free(&flat.sample);
}

static void load(void *arg, struct dcp_comm *comm)
{
    struct job *job = arg;
    int rank = comm->rank;
    const struct dcp_flat_comm told = talk_of(comm);
    const struct dcp_flat_load_options options = { .struct_size = sizeof options,
                                                   .path = job->path,
                                                   .step = -1 };
    struct dcp_flat_load_result result = { .struct_size = sizeof result };
    struct dcp_flat_object object = { .struct_size = sizeof object };
    struct dcp_flat_loaded *loaded;
    struct flat flat;

    flat_make(&flat, job->layout, comm, false);
    job->codes[rank] =
        dcp_flat_load(&options, &told, &flat.state, &result, &loaded, &job->errs[rank]);
    job->steps[rank] = result.step;
    job->wrong[rank] = sample_wrong(&flat.sample, RESHARD_SALT);
    if (loaded && !dcp_flat_loaded_object(loaded, 1, &object))
        snprintf(job->object[rank], sizeof job->object[rank], "%s %.*s", object.name,
                 (int)object.size_bytes, (const char *)object.data);
    dcp_flat_loaded_free(loaded);
    sample_free(&flat.sample);
}

static void steps_are_ordinary(void **state)
{
    const struct reshard_folder *folder = *state;
    struct job job = { .path = folder->source, .layout = "dim0", .codec = "split" };

    rank_threads_run(3, save, &job);
    for (int r = 0; r < 3; r++) {
        assert_string_equal(job.errs[r].message, "");
        assert_int_equal(job.codes[r], 0);
        assert_int_equal(job.steps[r], 5);
    }
    assert_int_equal(reshard_folder_check(folder->source, "dim0", 3), sample_n_tensors());
}

static void loads_are_at_any_world_size(void **state)
{
    static const char *const layouts[] = { "replicated", "dim0" };
    const struct reshard_folder *folder = *state;

    reshard_folder_save(folder->source, "zero3", 3, DCP_CODEC_NONE);
    for (int n = 1; n <= MOST_RANKS; n++)
        for (int l = 0; l < 2; l++) {
            struct job job = { .path = folder->source, .layout = layouts[l] };
            rank_threads_run(n, load, &job);
            for (int r = 0; r < n; r++) {
                assert_int_equal(job.codes[r], 0);
                assert_int_equal(job.wrong[r], 0);
                assert_int_equal(job.steps[r], 5);
                assert_string_equal(job.object[r], "note {\"text\":\"café\"}");
            }
        }
}

static void failures_are_of_all_ranks(void **state)
{
    const struct reshard_folder *folder = *state;
    struct job job = { .path = folder->source, .layout = "dim0" };

    rank_threads_run(2, load, &job); /* there is no run */
    assert_int_equal(job.codes[0], DCP_E_NOT_FOUND);
    assert_int_equal(job.codes[1], DCP_E_NOT_FOUND);
    rank_threads_run(2, save, &job);
    assert_int_equal(job.codes[0] | job.codes[1], 0);
    rank_threads_run(2, save, &job); /* the step is there */
    assert_int_equal(job.codes[0], DCP_E_EXISTS);
    assert_int_equal(job.codes[1], DCP_E_EXISTS);
    assert_string_equal(job.errs[0].message, job.errs[1].message);
    job.wrong_rank = 2;
    rank_threads_run(2, save, &job);
    assert_int_equal(job.codes[0], DCP_E_USAGE);
    assert_int_equal(job.codes[1], DCP_E_USAGE);
    assert_int_equal(job.errs[0].rank, 1);
    job.wrong_rank = 0;
    job.codec = "splt";
    rank_threads_run(2, save, &job);
    assert_int_equal(job.codes[0], DCP_E_USAGE);
    assert_int_equal(job.codes[1], DCP_E_USAGE);
}

/* Whether a list of tensors is wrong in that way; *out_tensor is named for it. */
static bool spoil(struct flat *flat, int how, const char **out_tensor)
{
    struct dcp_flat_state *told = &flat->state;

    *out_tensor = how < 4 ? flat->names : "";
    switch (how) {
    case 0:
        flat->dtypes[0] = DCP_N_DTYPES;
        return true;
    case 1:
        flat->roles[0] = DCP_N_ROLES;
        return true;
    case 2:
        flat->boxes[0] = (uint32_t)told->n_boxes;
        return true;
    case 3:
        flat->ndims[0] = DCP_MAX_NDIM + 1;
        return true;
    case 4:
        flat->ndims[0] = -1;
        return true;
    case 5:
        told->names = NULL;
        return true;
    case 6:
        told->names_bytes--;
        return true;
    case 7:
        add_text(flat->names, &told->names_bytes, "");
        return true;
    case 8:
        told->params_bytes--;
        return true;
    case 9:
        add_text(flat->params, &told->params_bytes, "");
        return true;
    default:
        return false;
    }
}

/* No comm: a single rank. What is wrong with a list of tensors is told. */
static void single_ranks(void **state)
{
    const struct reshard_folder *folder = *state;
    const struct dcp_flat_save_options options = { .struct_size = sizeof options,
                                                   .path = folder->source,
                                                   .step = 5 };
    struct dcp_flat_error err = { .struct_size = sizeof err };
    struct dcp_comm self;
    struct flat flat;
    const char *tensor;

    dcp_comm_self(&self);
    flat_make(&flat, "replicated", &self, true);
    for (int how = 0; spoil(&flat, how, &tensor); how++) {
        assert_int_equal(dcp_flat_save(&options, NULL, &flat.state, NULL, &err),
                         DCP_E_USAGE);
        assert_string_equal(err.tensor, tensor);
        sample_free(&flat.sample);
        flat_make(&flat, "replicated", &self, true);
    }
    assert_int_equal(dcp_flat_save(&options, NULL, &flat.state, NULL, &err), 0);
    reshard_folder_check(folder->source, "replicated", 1);
    const struct dcp_flat_comm none = { .struct_size = sizeof none, .world_size = 1 };
    assert_int_equal(dcp_flat_save(&options, &none, &flat.state, NULL, &err),
                     DCP_E_USAGE);
    sample_free(&flat.sample);
}

enum { SAVED, LOADED, DEAD, N_TALKS };

struct talks {
    const char *path;
    int port, codes[2][N_TALKS];
    int64_t wrong[2];
    struct dcp_flat_error errs[2];
};

/* Rank 1 is gone before the second save; what it held is that of rank 0, too. */
static void talk(void *arg, struct dcp_comm *comm)
{
    struct talks *talks = arg;
    int rank = comm->rank, *codes = talks->codes[rank];
    const struct dcp_flat_group_options how = { .struct_size = sizeof how,
                                                .rank = rank,
                                                .world_size = comm->world_size,
                                                .host = "127.0.0.1",
                                                .port = talks->port };
    struct dcp_flat_comm told = { .struct_size = sizeof told };
    struct dcp_flat_save_options saving = { .struct_size = sizeof saving,
                                            .path = talks->path,
                                            .step = 5 };
    const struct dcp_flat_load_options loading = { .struct_size = sizeof loading,
                                                   .path = talks->path,
                                                   .step = -1 };
    struct dcp_flat_loaded *loaded = NULL;
    struct flat full, empty;
    int ranks[2] = { -1, -1 };

    flat_make(&full, "dim0", comm, true);
    flat_make(&empty, "dim0", comm, false);
    if (!dcp_flat_group_open(&how, &told.group, NULL)) {
        codes[SAVED] = dcp_flat_save(&saving, &told, &full.state, NULL, NULL);
        codes[LOADED] = dcp_flat_load(&loading, &told, &empty.state, NULL, &loaded, NULL);
        talks->wrong[rank] = sample_wrong(&empty.sample, RESHARD_SALT);
        dcp_flat_loaded_free(loaded);
        if (dcp_flat_group_allgather(told.group, &rank, sizeof rank, ranks, NULL) ||
            ranks[0] != 0 || ranks[1] != 1)
            codes[LOADED] = -1;
        saving.step = 6;
        talks->errs[rank].struct_size = sizeof talks->errs[rank];
        codes[DEAD] =
            rank ? DCP_E_COMM
                 : dcp_flat_save(&saving, &told, &full.state, NULL, &talks->errs[rank]);
    }
    dcp_flat_group_close(told.group);
    sample_free(&full.sample);
    sample_free(&empty.sample);
}

static void ranks_find_each_other(void **state)
{
    const struct reshard_folder *folder = *state;
    struct talks talks = { .path = folder->source, .codes = { { -1, -1, -1 } } };
    int agent = tcp_group_agent(&talks.port);

    rank_threads_run(2, talk, &talks);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(talks.codes[r][SAVED], 0);
        assert_int_equal(talks.codes[r][LOADED], 0);
        assert_int_equal(talks.wrong[r], 0);
        assert_int_equal(talks.codes[r][DEAD], DCP_E_COMM);
    }
    assert_int_equal(talks.errs[0].rank, 1);
    assert_int_equal(reshard_folder_check(folder->source, "dim0", 2), sample_n_tensors());
    const struct dcp_flat_group_options wrong = { .struct_size = sizeof wrong,
                                                  .world_size = 2 };
    struct dcp_flat_group *group;
    assert_int_equal(dcp_flat_group_open(&wrong, &group, NULL), DCP_E_USAGE);
    assert_null(group);
    close(agent);
}

enum { FULL, SAME, AGAIN, WRONG, GONE, N_SAVES };

struct series {
    const char *path;
    int codes[2][N_SAVES];
    struct dcp_flat_save_result results[2][N_SAVES];
};

static int save_one(struct dcp_flat_saver *saver, struct flat *flat,
                    const struct dcp_flat_save_options *options,
                    struct dcp_flat_save_result *out)
{
    *out = (struct dcp_flat_save_result){ .struct_size = sizeof *out };
    int rc = dcp_flat_save_start(saver, options, &flat->state, NULL);
    if (rc)
        return rc;
    unsigned char *byte = flat->data[0] ? flat->data[0] : flat->data[1];
    *byte ^= 1; /* it was staged */
    rc = dcp_flat_save_wait(saver, out, NULL);
    *byte ^= 1;
    return rc;
}

static void remove_folder(const char *path)
{
    struct dcp_store store;

    if (dcp_store_dir(&store, path, false, NULL))
        return;
    store.ops->remove(store.self, "step-00000000", NULL);
    store.ops->remove(store.self, "step-00000001", NULL);
    dcp_store_free(&store);
}

static void save_series(void *arg, struct dcp_comm *comm)
{
    struct series *series = arg;
    int rank = comm->rank, *codes = series->codes[rank];
    struct dcp_flat_save_result *results = series->results[rank];
    const struct dcp_flat_comm told = talk_of(comm);
    const struct dcp_flat_saver_options how = { .struct_size = sizeof how,
                                                .path = series->path };
    struct dcp_flat_save_options options = { .struct_size = sizeof options, .delta = 4 };
    struct dcp_flat_saver *saver;
    struct flat flat;

    flat_make(&flat, "dim0", comm, true);
    if (!dcp_flat_saver_new(&how, &told, &saver, NULL)) {
        codes[FULL] = save_one(saver, &flat, &options, &results[FULL]);
        options.step = 1;
        options.export_name = "model.safetensors";
        options.export_format = "safetensors";
        options.export_dtype = "bf16";
        codes[SAME] = save_one(saver, &flat, &options, &results[SAME]);
        codes[AGAIN] = save_one(saver, &flat, &options, &results[AGAIN]);
        options.step = 2;
        options.export_name = rank ? "model.safetensors" : "../model.safetensors";
        codes[WRONG] = save_one(saver, &flat, &options, &results[WRONG]);
        options.export_name = NULL;
        options.step = 5;
        codes[GONE] = dcp_comm_allgather(comm, &rank, sizeof rank, (int[2]){ 0 }, NULL);
        if (rank == 0)
            remove_folder(series->path);
        codes[GONE] |= save_one(saver, &flat, &options, &results[GONE]);
    }
    dcp_flat_saver_free(saver);
    sample_free(&flat.sample);
}

/* One after the other: a full step; a delta on it, with a consolidated file; one that is
 * there already; one that one rank asks wrongly for; one whose base somebody removed. */
static void saves_in_the_background(void **state)
{
    const struct reshard_folder *folder = *state;
    struct series series = { .path = folder->source };

    rank_threads_run(2, save_series, &series);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(series.codes[r][FULL] | series.codes[r][SAME], 0);
        assert_int_equal(series.codes[r][AGAIN], DCP_E_EXISTS);
        assert_int_equal(series.codes[r][WRONG], DCP_E_USAGE);
        assert_int_equal(series.results[r][SAME].step, 1);
        assert_int_equal(series.codes[r][GONE], 0);
    }
    assert_int_equal(reshard_folder_check(folder->source, "dim0", 2), sample_n_tensors());
    const struct dcp_flat_save_result *full = &series.results[0][FULL],
                                      *same = &series.results[0][SAME];
    assert_int_equal(full->fingerprint, same->fingerprint);
    assert_true(same->stale && !full->stale);
    assert_true(same->written_bytes < full->written_bytes);
}

int main(void)
{
#define TEST(function)                                              \
    cmocka_unit_test_setup_teardown(function, reshard_folder_setup, \
                                    reshard_folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(steps_are_ordinary),        TEST(loads_are_at_any_world_size),
        TEST(failures_are_of_all_ranks), TEST(single_ranks),
        TEST(ranks_find_each_other),     TEST(saves_in_the_background),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
