/* run_write: a run of llm.c for any number of processes. With ZeRO of stage 1 each
 * rank holds its share of every layer of every array; where they do not divide so, and
 * with layout "replicated", each holds all, as the program does without ZeRO (-z 0). */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/literals.h"
#include "formats/common/training.h"
#include "formats/models/axes.h"
#include "run.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WHAT "a run of llm.c"

struct writer {
    struct dcp_target *target;
    struct dcp_catalog *catalog;
    struct dcp_llmc_model model;
    struct dcp_llmc_slot *slots;
    int parts;      /* that each layer is cut into: the world size, or 1 */
    uint64_t share; /* elements of the model that a rank holds */
    bool fresh;     /* there are no moments: the run begins with none */
    int64_t step;
    json_t *state; /* DCP_LLMC_STATE of the source, or NULL */
};

/* -- checks -------------------------------------------------------------------------- */

static bool divides(const struct writer *w)
{
    for (int i = 0; i < DCP_LLMC_N_ARRAYS; i++) {
        struct dcp_llmc_array array;
        dcp_llmc_array(&w->model, i, &array);
        if (dcp_llmc_layer_elems(&array) % (uint64_t)w->catalog->world_size)
            return false;
    }
    return true;
}

/* Every weight has its master, and its moments unless none has any. */
static int check_states(struct writer *w, struct dcp_error *err)
{
    size_t n[DCP_N_ROLES] = { 0 };

    for (size_t t = 0; t < w->catalog->n_tensors; t++)
        n[w->catalog->tensors[t].role]++;
    w->fresh = !n[DCP_ROLE_EXP_AVG] && !n[DCP_ROLE_EXP_AVG_SQ];
    for (int i = w->fresh ? 2 : 0; i < DCP_LLMC_N_STATES; i++)
        if (n[dcp_llmc_states[i]] != n[DCP_ROLE_MODEL]) {
            dcp_error_set(err, DCP_E_MISMATCH,
                          WHAT " cannot hold: %zu weights with %zu tensors '%s'",
                          n[DCP_ROLE_MODEL], n[dcp_llmc_states[i]],
                          dcp_role_name(dcp_llmc_states[i]));
            dcp_error_hint(err, "--to llmc writes the weights alone");
            return DCP_E_MISMATCH;
        }
    return DCP_OK;
}

/* -- headers ------------------------------------------------------------------------- */

static void put_u64(int32_t *at, uint64_t value)
{
    at[0] = (int32_t)(uint32_t)value;
    at[1] = (int32_t)(uint32_t)(value >> 32);
}

static uint64_t hex_of(const json_t *state, const char *key, uint64_t otherwise)
{
    const char *text = json_string_value(json_object_get(state, key));
    uint64_t value;

    return text && dcp_str_parse_hex64(text, &value) ? value : otherwise;
}

/* The loader of a rank, when the source's ranks are these. */
static const struct dcp_object *find_loader(const struct writer *w, int rank)
{
    char name[40];
    size_t old = json_array_size(json_object_get(w->state, "ranks"));

    snprintf(name, sizeof name, DCP_LLMC_LOADER ".%05d", rank);
    int at = old == (size_t)w->catalog->world_size
                 ? dcp_catalog_find_object(w->catalog, name)
                 : -1;
    return at >= 0 && w->catalog->objects[at].kind == DCP_OBJECT_BYTES
               ? &w->catalog->objects[at]
               : NULL;
}

/* Where the data go on. At another number of processes a step takes that many samples
 * more or fewer from a shard, and a shuffled order, which is each process's own, means
 * nothing: then they go on in the order of the files. */
static void set_position(const struct writer *w, int rank, int32_t *header)
{
    json_t *ranks = json_object_get(w->state, "ranks");
    size_t old = json_array_size(ranks);
    bool same = old == (size_t)w->catalog->world_size;
    const json_t *state = json_array_get(ranks, same ? (size_t)rank : 0);
    uint64_t rng = DCP_LLMC_RNG_SEED + (uint64_t)rank;
    int64_t sample = json_integer_value(json_object_get(state, "current_sample_idx"));
    int64_t shard = json_integer_value(json_object_get(state, "current_shard_idx"));

    if (!same)
        sample = sample > 0 && sample < INT32_MAX
                     ? sample * (int64_t)old / w->catalog->world_size
                     : 0;
    rng = hex_of(same ? state : NULL, "rng_state", rng);
    put_u64(header + DCP_LLMC_AT_RNG, rng);
    put_u64(header + DCP_LLMC_AT_RNG_LAST,
            hex_of(same ? state : NULL, "rng_state_last_update", rng));
    put_u64(header + DCP_LLMC_AT_SHARD, (uint64_t)shard);
    put_u64(header + DCP_LLMC_AT_SAMPLE, (uint64_t)sample);
    header[DCP_LLMC_AT_SHUFFLE] = find_loader(w, rank) != NULL;
}

static int add_header(const struct writer *w, int rank, int file, struct dcp_error *err)
{
    int32_t header[DCP_LLMC_HEADER_BYTES / 4] = {
        [DCP_LLMC_AT_MAGIC] = DCP_LLMC_STATE_MAGIC,
        [DCP_LLMC_AT_VERSION] = 1,
        [DCP_LLMC_AT_WORLD_SIZE] = w->catalog->world_size,
        [DCP_LLMC_AT_RANK] = rank,
        [DCP_LLMC_AT_MASTERS] = 1,
        [DCP_LLMC_AT_STEP] = (int32_t)w->step,
    };

    set_position(w, rank, header);
    return dcp_llmc_add_header(w->target, file, header, err);
}

/* -- pieces -------------------------------------------------------------------------- */

/* The share of one tensor that a rank has, with zeros for the vocabulary's padding. */
static int add_part(struct writer *w, size_t t, int role, int file, int rank,
                    struct dcp_error *err)
{
    const struct dcp_llmc_slot *slot = &w->slots[t];
    struct dcp_llmc_array array;

    dcp_llmc_array(&w->model, slot->array, &array);
    int64_t stored = (int64_t)dcp_llmc_layer_elems(&array);
    int64_t share = stored / w->parts, all = array.rows * array.columns;
    int64_t begin = w->parts > 1 ? rank * share : 0;
    int64_t end = begin + share < all ? begin + share : all;
    uint64_t offset = DCP_LLMC_HEADER_BYTES +
                      4 * ((uint64_t)role * w->share + array.offset / (uint64_t)w->parts +
                           (uint64_t)slot->layer * (uint64_t)share);
    int64_t held = end > begin ? end - begin : 0;

    if (held)
        DCP_TRY(dcp_axes_add_range(w->catalog, (int)t, file, rank, offset,
                                   array.transposed ? DCP_AXES_TRANSPOSED : DCP_AXES_SAME,
                                   begin, end, true, err));
    return dcp_literals_zeros(w->target, file, offset + 4 * (uint64_t)held,
                              4 * (uint64_t)(share - held), err);
}

static int role_at(enum dcp_role role)
{
    for (int i = 0; i < DCP_LLMC_N_STATES; i++)
        if (dcp_llmc_states[i] == role)
            return i;
    return -1;
}

static int place_state(struct writer *w, int rank, struct dcp_error *err)
{
    const struct dcp_object *loader = find_loader(w, rank);
    uint64_t end = DCP_LLMC_HEADER_BYTES + 4 * DCP_LLMC_N_STATES * w->share;
    char name[40];
    int file = -1;

    dcp_llmc_run_name(name, "state", w->step, rank);
    const struct dcp_file entry = {
        .name = name, .rank = rank, .size_bytes = end + (loader ? loader->size_bytes : 0)
    };
    int rc = dcp_catalog_add_file(w->catalog, &entry, &file, err);
    if (!rc)
        rc = add_header(w, rank, file, err);
    for (size_t t = 0; t < w->catalog->n_tensors && !rc; t++) {
        int role = role_at(w->catalog->tensors[t].role);
        if (role >= 0)
            rc = add_part(w, t, role, file, rank, err);
    }
    if (!rc && w->fresh)
        rc =
            dcp_literals_zeros(w->target, file, DCP_LLMC_HEADER_BYTES, 8 * w->share, err);
    if (!rc && loader)
        rc = dcp_target_literal(w->target, file, end, loader->data, loader->size_bytes,
                                err);
    if (loader)
        dcp_catalog_mark_stored(w->catalog, loader->name);
    return rc;
}

/* The empty file that says that all is there. */
static int place_done(struct writer *w, struct dcp_error *err)
{
    char name[40];
    int file;

    dcp_llmc_run_name(name, "DONE", w->step, 0);
    DCP_TRY(
        dcp_catalog_add_file(w->catalog, &(struct dcp_file){ .name = name }, &file, err));
    return dcp_target_literal(w->target, file, 0, "", 0, err);
}

static int place_all(struct writer *w, struct dcp_error *err)
{
    uint64_t elems = 0;
    char name[40];

    dcp_llmc_elems(&w->model, &elems);
    w->share = elems / (uint64_t)w->parts;
    dcp_llmc_run_name(name, "model", w->step, 0);
    DCP_TRY(dcp_llmc_place_model(w->target, name, &w->model, w->slots, err));
    for (int rank = 0; rank < w->catalog->world_size; rank++)
        DCP_TRY(place_state(w, rank, err));
    return place_done(w, err);
}

int dcp_llmc_run_assign(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    struct writer w = { .target = target, .catalog = catalog };

    if (catalog->world_size > DCP_LLMC_MAX_WORLD_SIZE)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             WHAT " cannot hold: more than %d processes",
                             DCP_LLMC_MAX_WORLD_SIZE);
    for (size_t t = 0; t < catalog->n_tensors; t++) /* whatever the weights are */
        if (dcp_role_is_optim(catalog->tensors[t].role))
            catalog->tensors[t].dtype = DCP_F32;
    int rc = dcp_llmc_find_model(catalog, target->options, WHAT, &w.model, &w.slots, err);
    if (!rc)
        rc = check_states(&w, err);
    if (!rc)
        w.parts = strcmp(catalog->layout, "replicated") && divides(&w)
                      ? catalog->world_size
                      : 1;
    if (!rc)
        rc = dcp_training_one_count(catalog, WHAT, err);
    if (!rc)
        rc = dcp_training_updates(catalog, &w.step, err);
    if (!rc && (w.step < 0 || w.step > 99999999))
        rc = dcp_error_set(err, DCP_E_MISMATCH,
                           WHAT " cannot hold: a step of more than 8 digits");
    if (!rc)
        rc = dcp_training_read(catalog, DCP_LLMC_STATE, &w.state, err);
    if (!rc)
        rc = place_all(&w, err);
    dcp_catalog_mark_stored(catalog, DCP_TRAINING_TRAINER); /* the step */
    if (w.state) { /* the numbers of the optimizer's groups came from no file */
        dcp_catalog_mark_stored(catalog, DCP_LLMC_STATE);
        dcp_catalog_mark_stored(catalog, DCP_TRAINING_OPTIMIZER);
    }
    json_decref(w.state);
    free(w.slots);
    return rc;
}
