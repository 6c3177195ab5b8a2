/* run: a folder of a run of llm.c: the newest model that is done, and its states. */
#include "run.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/models/axes.h"
#include "formats/models/names.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BID = 64, LOADER_MT_BYTES = 2520, MAX_STEP = 99999999 };

const enum dcp_role dcp_llmc_states[DCP_LLMC_N_STATES] = { DCP_ROLE_EXP_AVG,
                                                           DCP_ROLE_EXP_AVG_SQ,
                                                           DCP_ROLE_MASTER };

void dcp_llmc_run_name(char out[40], const char *kind, int64_t step, int rank)
{
    if (!strcmp(kind, "state"))
        snprintf(out, 40, "state_%08" PRId64 "_%05d.bin", step, rank);
    else
        snprintf(out, 40, "%s_%08" PRId64 "%s", kind, step,
                 strcmp(kind, "DONE") ? ".bin" : "");
}

/* The newest step that is done and has a model; -1: none. */
static int64_t find_step(const struct dcp_source *source)
{
    struct dcp_store_entry *entries = NULL;
    int64_t step, newest = -1;
    char name[40];
    size_t n = 0;

    if (!source->is_dir ||
        source->store->ops->list(source->store->self, source->name, &entries, &n, NULL))
        return -1;
    for (size_t i = 0; i < n; i++) {
        const char *digits = entries[i].name + strlen("DONE_");
        if (entries[i].is_dir || !dcp_str_starts(entries[i].name, "DONE_") ||
            !dcp_str_parse_i64(digits, &step) || step < 0 || step > MAX_STEP)
            continue;
        dcp_llmc_run_name(name, "model", step, 0);
        if (step > newest && dcp_source_has(source, name))
            newest = step;
    }
    dcp_store_list_free(entries, n);
    return newest;
}

static int probe(const struct dcp_source *source)
{
    int64_t step = find_step(source);
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    unsigned char magic[4];
    char name[40];

    if (step < 0)
        return 0;
    dcp_llmc_run_name(name, "model", step, 0);
    return !dcp_input_open(&in, source, name, NULL) &&
                   !dcp_input_read(&in, 0, magic, sizeof magic, NULL) &&
                   dcp_le32(magic) == DCP_LLMC_MODEL_MAGIC
               ? BID
               : 0;
}

/* -- one state ----------------------------------------------------------------------- */

struct run {
    const struct dcp_source *source;
    struct dcp_catalog *catalog;
    struct dcp_llmc_model model;
    int64_t step;
    int world_size;
    bool masters, sharded;
    int *tensors;   /* of the states: role, array, layer; -1: not added yet */
    uint64_t elems; /* of the model */
    json_t *ranks;  /* of DCP_LLMC_STATE */
};

static int refuse(const struct dcp_input *in, const char *why, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' %s", in->shown, why);
}

static int read_header(const struct run *run, const struct dcp_input *in, int rank,
                       unsigned char *header, struct dcp_error *err)
{
    DCP_TRY(dcp_input_read(in, 0, header, DCP_LLMC_HEADER_BYTES, err));
    int32_t n[11];

    for (size_t i = 0; i < DCP_ARRAY_LEN(n); i++)
        n[i] = (int32_t)dcp_le32(header + 4 * i);
    if (n[DCP_LLMC_AT_MAGIC] != DCP_LLMC_STATE_MAGIC)
        return refuse(in, "is no state of llm.c", err);
    if (n[DCP_LLMC_AT_VERSION] != 1)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is a state of llm.c of version %d; 1 is supported",
                             in->shown, (int)n[DCP_LLMC_AT_VERSION]);
    if (n[DCP_LLMC_AT_WORLD_SIZE] < 1 ||
        n[DCP_LLMC_AT_WORLD_SIZE] > DCP_LLMC_MAX_WORLD_SIZE)
        return refuse(in, "has an impossible number of processes", err);
    if (n[DCP_LLMC_AT_RANK] != rank || n[DCP_LLMC_AT_STEP] != run->step)
        return refuse(in, "is of another rank or step than its name says", err);
    if ((unsigned)n[DCP_LLMC_AT_MASTERS] > 1 || (unsigned)n[DCP_LLMC_AT_SHUFFLE] > 1)
        return refuse(in, "has flags that are neither 0 nor 1", err);
    if (rank && (n[DCP_LLMC_AT_WORLD_SIZE] != run->world_size ||
                 n[DCP_LLMC_AT_MASTERS] != run->masters))
        return refuse(in, "does not belong to the state of rank 0", err);
    return DCP_OK;
}

/* Bytes of the shuffling loader's state at an offset, or 0 when there is none up to the
 * end of the file. */
static uint64_t loader_bytes(const struct dcp_input *in, uint64_t offset)
{
    uint64_t at = offset, n;
    unsigned char count[8];

    for (int i = 0; i < 2; i++) { /* shards, samples: a count and integers of 32 bits */
        if (at > in->size_bytes || dcp_input_read(in, at, count, sizeof count, NULL))
            return 0;
        n = dcp_le64(count);
        at += sizeof count;
        if (n > (in->size_bytes - at) / 4)
            return 0;
        at += 4 * n;
    }
    return in->size_bytes - at == LOADER_MT_BYTES ? in->size_bytes - offset : 0;
}

/* Whether the file is as long as it must be when each rank holds that many elements. */
static bool has_length(const struct run *run, const struct dcp_input *in, bool shuffles,
                       uint64_t elems, uint64_t *out_end)
{
    *out_end = DCP_LLMC_HEADER_BYTES + (run->masters ? 12 : 8) * elems;
    return shuffles ? loader_bytes(in, *out_end) > 0 : in->size_bytes == *out_end;
}

/* The states do not say whether they are shards; their length does. */
static int find_sharding(struct run *run, const struct dcp_input *in, bool shuffles,
                         int rank, uint64_t *out_end, struct dcp_error *err)
{
    uint64_t end = 0, shard_end = 0, world_size = (uint64_t)run->world_size;
    bool whole = has_length(run, in, shuffles, run->elems, &end);
    bool shard = run->world_size > 1 && run->elems % world_size == 0 &&
                 has_length(run, in, shuffles, run->elems / world_size, &shard_end);

    if (!rank)
        run->sharded = shard && !whole;
    if (whole == shard || run->sharded != shard)
        return refuse(in, "has a length that does not fit its model", err);
    *out_end = run->sharded ? shard_end : end;
    for (int i = 0; i < DCP_LLMC_N_ARRAYS && run->sharded; i++) {
        struct dcp_llmc_array array;
        dcp_llmc_array(&run->model, i, &array);
        if (dcp_llmc_layer_elems(&array) % world_size)
            return refuse(in, "is a shard of a model that does not divide so", err);
    }
    return DCP_OK;
}

static int keep_loader(struct run *run, const struct dcp_input *in, int rank,
                       uint64_t offset, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *data = NULL;
    uint64_t n = in->size_bytes - offset;
    char name[40];

    DCP_TRY(dcp_input_read_new(in, offset, (size_t)n, &data, err));
    snprintf(name, sizeof name, DCP_LLMC_LOADER ".%05d", rank);
    const struct dcp_object object = {
        .name = name, .kind = DCP_OBJECT_BYTES, .data = data, .size_bytes = (size_t)n
    };
    return dcp_catalog_add_object(run->catalog, &object, err);
}

static int keep_numbers(struct run *run, const unsigned char *header, bool shuffles,
                        struct dcp_error *err)
{
    char now[17], last[17];

    dcp_str_hex64(now, dcp_le64(header + 4 * DCP_LLMC_AT_RNG));
    dcp_str_hex64(last, dcp_le64(header + 4 * DCP_LLMC_AT_RNG_LAST));
    return json_array_append_new(
               run->ranks,
               json_pack("{s:s,s:s,s:b,s:I,s:I}", "rng_state", now,
                         "rng_state_last_update", last, "should_shuffle", shuffles,
                         "current_shard_idx",
                         (json_int_t)dcp_le64(header + 4 * DCP_LLMC_AT_SHARD),
                         "current_sample_idx",
                         (json_int_t)dcp_le64(header + 4 * DCP_LLMC_AT_SAMPLE)))
               ? dcp_error_memory(err, "a state")
               : DCP_OK;
}

/* -- the tensors of a state ---------------------------------------------------------- */

static int find_tensor(struct run *run, int role, int array_index,
                       const struct dcp_llmc_array *array, int64_t layer, int *out,
                       struct dcp_error *err)
{
    const int64_t shape[] = { array->transposed ? array->columns : array->rows,
                              array->transposed ? array->rows : array->columns };
    size_t slot =
        (size_t)((role * DCP_LLMC_N_ARRAYS + array_index) * run->model.layers + layer);
    char param[DCP_NAMES_MAX_BYTES];
    int rc = DCP_OK;

    if (run->tensors[slot] < 0) {
        dcp_llmc_name(array, layer, param, sizeof param);
        const char *name =
            dcp_tensor_default_name(run->catalog, dcp_llmc_states[role], param);
        if (!name)
            return dcp_error_memory(err, "a name");
        rc =
            dcp_catalog_add_tensor(run->catalog,
                                   &(struct dcp_tensor){ .name = name,
                                                         .param = param,
                                                         .role = dcp_llmc_states[role],
                                                         .dtype = DCP_F32,
                                                         .ndim = array->is_matrix ? 2 : 1,
                                                         .shape = shape,
                                                         .group = !array->is_matrix },
                                   &run->tensors[slot], err);
    }
    *out = run->tensors[slot];
    return rc;
}

/* The part of one layer that a rank holds at an offset, without the padding. */
static int add_part(struct run *run, int tensor, int file, int rank, uint64_t offset,
                    const struct dcp_llmc_array *array, struct dcp_error *err)
{
    int64_t all = array->rows * array->columns;
    int64_t stored = (int64_t)dcp_llmc_layer_elems(array);
    int64_t share = run->sharded ? stored / run->world_size : stored;
    int64_t begin = run->sharded ? rank * share : 0;
    int64_t end = begin + share < all ? begin + share : all;

    if (begin >= end)
        return DCP_OK;
    return dcp_axes_add_range(run->catalog, tensor, file, rank, offset,
                              array->transposed ? DCP_AXES_TRANSPOSED : DCP_AXES_SAME,
                              begin, end, false, err);
}

static int add_state(struct run *run, int file, int rank, struct dcp_error *err)
{
    uint64_t parts = run->sharded ? (uint64_t)run->world_size : 1;

    for (int role = 0; role < DCP_LLMC_N_STATES - !run->masters; role++)
        for (int i = 0; i < DCP_LLMC_N_ARRAYS; i++) {
            struct dcp_llmc_array array;
            dcp_llmc_array(&run->model, i, &array);
            for (int64_t layer = 0; layer < array.layers; layer++) {
                uint64_t at = (uint64_t)role * run->elems / parts + array.offset / parts +
                              (uint64_t)layer * dcp_llmc_layer_elems(&array) / parts;
                int tensor = -1;
                DCP_TRY(find_tensor(run, role, i, &array, layer, &tensor, err));
                DCP_TRY(add_part(run, tensor, file, rank, DCP_LLMC_HEADER_BYTES + 4 * at,
                                 &array, err));
            }
        }
    return DCP_OK;
}

/* -- the run ------------------------------------------------------------------------- */

static int index_state(struct run *run, int rank, struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    unsigned char header[DCP_LLMC_HEADER_BYTES];
    uint64_t end = 0;
    char name[40];
    int file = -1;

    dcp_llmc_run_name(name, "state", run->step, rank);
    DCP_TRY(dcp_input_open(&in, run->source, name, err));
    DCP_TRY(read_header(run, &in, rank, header, err));
    bool shuffles = dcp_le32(header + 4 * DCP_LLMC_AT_SHUFFLE) != 0;
    if (!rank) {
        run->world_size = (int)dcp_le32(header + 4 * DCP_LLMC_AT_WORLD_SIZE);
        run->masters = dcp_le32(header + 4 * DCP_LLMC_AT_MASTERS) != 0;
    }
    DCP_TRY(find_sharding(run, &in, shuffles, rank, &end, err));
    DCP_TRY(dcp_catalog_add_file(
        run->catalog,
        &(struct dcp_file){ .name = name, .rank = rank, .size_bytes = in.size_bytes },
        &file, err));
    DCP_TRY(add_state(run, file, rank, err));
    DCP_TRY(keep_numbers(run, header, shuffles, err));
    return !shuffles ? DCP_OK : keep_loader(run, &in, rank, end, err);
}

/* The program takes rate and decay from its arguments: here they are those of a run
 * without any. The rest is fixed in it. False: out of memory. */
static bool set_group(struct run *run, bool matrices, struct dcp_training_group *out)
{
    struct dcp_llmc_array array;
    char name[DCP_NAMES_MAX_BYTES];
    size_t n = 0;

    for (int i = 0; i < DCP_LLMC_N_ARRAYS; i++) {
        dcp_llmc_array(&run->model, i, &array);
        n += (size_t)array.layers;
    }
    const char **params = dcp_catalog_alloc(run->catalog, n, sizeof *params);
    *out = (struct dcp_training_group){ .lr = 3e-4,
                                        .initial_lr = NAN,
                                        .betas = { 0.9, 0.95 },
                                        .eps = 1e-8,
                                        .bias_correction = -1,
                                        .params = params };
    for (int i = 0; params && i < DCP_LLMC_N_ARRAYS; i++) {
        dcp_llmc_array(&run->model, i, &array);
        for (int64_t l = 0; l < array.layers && array.is_matrix == matrices; l++) {
            dcp_llmc_name(&array, l, name, sizeof name);
            if (!(params[out->n_params++] = dcp_catalog_text(run->catalog, name)))
                return false;
        }
    }
    return params;
}

static int add_objects(struct run *run, struct dcp_error *err)
{
    struct dcp_training_group groups[2];
    struct dcp_training training;

    dcp_training_init(&training);
    training.step = training.updates = run->step;
    training.optimizer = "AdamW";
    training.groups = groups;
    training.n_groups = DCP_ARRAY_LEN(groups);
    int rc = set_group(run, true, &groups[0]) && set_group(run, false, &groups[1])
                 ? dcp_training_store(&training, run->catalog, err)
                 : dcp_error_memory(err, "groups of parameters");
    dcp_training_fini(&training);
    return rc ? rc
              : dcp_training_add(run->catalog, DCP_LLMC_STATE,
                                 json_pack("{s:O}", "ranks", run->ranks), err);
}

static int index_states(struct run *run, struct dcp_error *err)
{
    size_t n =
        (size_t)(DCP_LLMC_N_STATES * DCP_LLMC_N_ARRAYS) * (size_t)run->model.layers;

    run->tensors = dcp_mem_calloc(n, sizeof *run->tensors);
    run->ranks = json_array();
    if (!run->tensors || !run->ranks)
        return dcp_error_memory(err, "a run");
    memset(run->tensors, -1, n * sizeof *run->tensors);
    run->world_size = 1;
    for (int rank = 0; rank < run->world_size; rank++)
        DCP_TRY(index_state(run, rank, err));
    return add_objects(run, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    struct run run = { .source = source, .catalog = catalog, .step = find_step(source) };
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    char name[40];

    catalog->format = dcp_format_llmc_run.name;
    if (run.step < 0)
        return dcp_error_set(err, DCP_E_NOT_FOUND,
                             "there is no DONE file with a model of llm.c");
    dcp_llmc_run_name(name, "model", run.step, 0);
    DCP_TRY(dcp_input_open(&in, source, name, err));
    DCP_TRY(dcp_llmc_read_model(&in, &run.model, err));
    DCP_TRY(dcp_llmc_index_model(catalog, &in, name, &run.model, err));
    dcp_llmc_elems(&run.model, &run.elems);
    int rc = index_states(&run, err);
    catalog->step = run.step;
    catalog->world_size = run.world_size;
    catalog->layout = run.sharded ? "zero1" : "replicated";
    free(run.tensors);
    json_decref(run.ranks);
    return rc;
}

const struct dcp_format dcp_format_llmc_run = {
    .name = "llmc-run",
    .help = "run of llm.c: model, optimizer states, DONE",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_SHARDED |
             DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS | DCP_FORMAT_TIES |
             DCP_FORMAT_MASTERS,
    .layouts = "zero1 replicated",
    .probe = probe,
    .index = index_source,
    .disposition = dcp_llmc_disposition,
    .assign = dcp_llmc_run_assign,
};
