/* extra: the files of extra state. What a rank keeps for itself becomes an object of
 * its own; small tensors, such as states of random numbers, stand in it as arrays of
 * pickle/py.h. */
#include "base/hex.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/pickle/json.h"
#include "fsdp.h"
#include <stdio.h>
#include <string.h>

#define OBJECT "extra_state"

enum { MAX_SPELLINGS = 64 };

struct extra {
    struct dcp_fsdp_reader *r;
    struct dcp_torch_file *file;
    const char *object; /* what the file becomes */
    int file_index, rank;
};

static json_t *shape_json(const struct dcp_torch_view *view)
{
    json_t *shape = json_array();

    for (int d = 0; d < view->ndim; d++)
        if (json_array_append_new(shape, json_integer(view->shape[d]))) {
            json_decref(shape);
            return NULL;
        }
    return shape;
}

/* The bytes of a dense view, in hexadecimal. */
static int make_array(struct extra *e, const struct dcp_torch_view *view, json_t **out,
                      struct dcp_error *err)
{
    size_t n = (size_t)view->stored_size;
    DCP_CLEANUP_FREE unsigned char *data = malloc(n + 1);

    if (!data)
        return dcp_error_memory(err, "extra state");
    if (view->memory)
        memcpy(data, view->memory, n);
    else
        DCP_TRY(
            dcp_torch_read(e->file, view->offset, view->codec, view->skip, data, n, err));
    DCP_CLEANUP_FREE char *hex = dcp_hex_new(data, n);
    *out = hex ? json_pack("{s:{s:s,s:o,s:s}}", DCP_PY_ARRAY, "dtype",
                           dcp_dtype_torch_name(view->dtype), "shape", shape_json(view),
                           "bytes", hex)
               : NULL;
    return *out ? DCP_OK : dcp_error_memory(err, "extra state");
}

/* A large tensor is a tensor of the catalog, "rng_state.rank_0.cpu"; where that name is
 * taken, "rng_state.rank_0.cpu#2". */
static int make_tensor(struct extra *e, const struct dcp_fsdp_piece *piece,
                       const char *path, json_t **out, struct dcp_error *err)
{
    size_t n = strlen(e->object) + strlen(path) + 16;
    DCP_CLEANUP_FREE char *name = malloc(n);
    const struct dcp_tensor tensor = { .name = name, .role = DCP_ROLE_OTHER };

    if (!name)
        return dcp_error_memory(err, "extra state");
    snprintf(name, n, "%s%s%s", e->object, path[0] ? "." : "", path);
    size_t spelled = strlen(name);
    for (int i = 2; i <= MAX_SPELLINGS && dcp_catalog_find(e->r->catalog, name) >= 0; i++)
        snprintf(name + spelled, n - spelled, "#%d", i);
    if (dcp_catalog_find(e->r->catalog, name) >= 0)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has over %d tensors under one name", e->file->in.shown,
                             MAX_SPELLINGS);
    int rc = dcp_fsdp_add(e->r, e->file, e->file_index, e->rank, &tensor, piece, err);
    if (!rc && !(*out = dcp_py_name(DCP_PY_TENSOR, name)))
        rc = dcp_error_memory(err, "extra state");
    return rc;
}

static int take(void *self, const struct dcp_pickle_node *node, const char *path,
                json_t **out, struct dcp_error *err)
{
    struct extra *e = self;
    struct dcp_fsdp_piece piece;
    bool found;

    if (node->kind == DCP_PICKLE_GLOBAL)
        return DCP_OK;
    int rc = dcp_fsdp_view(e->file, node, e->rank, path, &found, &piece, err);
    if (rc || !found)
        return rc;
    if (piece.plain && piece.view.has_data && piece.view.dense && !piece.view.codec &&
        piece.view.stored_size <= DCP_FSDP_INLINE_BYTES)
        return make_array(e, &piece.view, out, err);
    return make_tensor(e, &piece, path, out, err);
}

/* The scheduler is the same for all ranks. */
static int add_scheduler(struct extra *e, json_t *state, struct dcp_error *err)
{
    static const char *const keys[] = { "lr_scheduler", "scheduler" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(keys); i++) {
        json_t *value = json_object_get(state, keys[i]);
        if (json_is_object(value) && json_object_size(value) &&
            dcp_catalog_find_object(e->r->catalog, DCP_TRAINING_SCHEDULER) < 0)
            return dcp_training_add(e->r->catalog, DCP_TRAINING_SCHEDULER,
                                    json_incref(value), err);
    }
    return DCP_OK;
}

/* The whole of a file, as JSON. */
static int read_value(struct extra *e, json_t **out, struct dcp_error *err)
{
    const struct dcp_pickle_hook hook = { .take = take, .self = e };
    int rc = dcp_pickle_to_json(e->file->tree, e->file->arena, &hook, out, err);

    if (rc)
        dcp_error_prefix(err, "'%s'", e->file->in.shown);
    return rc;
}

static int index_rank(struct extra *e, struct dcp_error *err)
{
    json_t *state = NULL;
    char name[64];

    snprintf(name, sizeof name, OBJECT ".rank_%d", e->rank);
    e->object = name;
    int rc = read_value(e, &state, err);
    if (!rc && e->rank == 0)
        rc = add_scheduler(e, state, err);
    if (!rc)
        return dcp_training_add(e->r->catalog, name, state, err);
    json_decref(state);
    return rc;
}

int dcp_fsdp_index_extra(struct dcp_fsdp_reader *r, struct dcp_error *err)
{
    for (int rank = 0; rank < r->folder.world_size && r->folder.has[DCP_FSDP_EXTRA];
         rank++) {
        DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
        struct extra e = { .r = r, .file = &file, .rank = rank };
        DCP_TRY(dcp_fsdp_open_file(r, DCP_FSDP_EXTRA, rank, &file, &e.file_index, err));
        DCP_TRY(index_rank(&e, err));
    }
    return DCP_OK;
}

int dcp_fsdp_index_value(struct dcp_fsdp_reader *r, const char *name, const char *object,
                         int rank, struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
    struct extra e = { .r = r, .file = &file, .object = object, .rank = rank };
    json_t *value = NULL;

    DCP_TRY(dcp_fsdp_open_name(r, name, rank, &file, &e.file_index, err));
    DCP_TRY(read_value(&e, &value, err));
    return dcp_training_add(r->catalog, object, value, err);
}
