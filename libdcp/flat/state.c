#include "state.h"

#include "group.h"

#include "base/mem.h"
#include "base/str.h"
#include <dcp/reshard.h>
#include <string.h>

/* -- tensors and objects ----------------------------------------------------------- */

static bool is_whole(const struct dcp_local_tensor *box, const int64_t *offset,
                     const int64_t *size)
{
    for (int d = 0; d < box->ndim; d++)
        if (offset[d] != 0 || size[d] != box->shape[d])
            return false;
    return true;
}

/* Box b as a tensor that is cut so: its dtype, shape and region. */
static struct dcp_local_tensor box_of(const struct dcp_flat_state *given, uint64_t b,
                                      size_t at)
{
    const int64_t *offset = given->offsets + at, *size = given->sizes + at;
    struct dcp_local_tensor box = { .dtype = (enum dcp_dtype)given->dtypes[b],
                                    .ndim = given->ndims[b],
                                    .shape = given->shapes + at };

    if (!is_whole(&box, offset, size))
        box.region =
            (struct dcp_region){ .kind = DCP_BOX, .offset = offset, .size = size };
    return box;
}

static int add_boxes(const struct dcp_flat_state *given, struct dcp_flat_held *out,
                     struct dcp_error *err)
{
    size_t at = 0;

    for (uint64_t b = 0; b < given->n_boxes; b++) {
        if (given->ndims[b] < 0)
            return dcp_error_set(err, DCP_E_USAGE, "a box has %d dimensions",
                                 given->ndims[b]);
        out->boxes[b] = box_of(given, b, at);
        at += (size_t)given->ndims[b];
    }
    return DCP_OK;
}

static int check_words(const struct dcp_flat_state *given, uint64_t t, const char *name,
                       struct dcp_error *err)
{
    uint32_t b = given->boxes[t];

    if (b >= given->n_boxes || given->roles[t] >= DCP_N_ROLES || given->dtypes[b] < 0 ||
        given->dtypes[b] >= DCP_N_DTYPES)
        return dcp_error_of_tensor(
            err, DCP_E_USAGE, name,
            "tensor '%s' has a box, a dtype or a role that is none", DCP_SHOWN(name));
    if (given->ndims[b] > DCP_MAX_NDIM)
        return dcp_error_of_tensor(err, DCP_E_USAGE, name,
                                   "tensor '%s' has %d dimensions; %d are the most",
                                   DCP_SHOWN(name), given->ndims[b], DCP_MAX_NDIM);
    return DCP_OK;
}

/* The next of some texts, and the rest of them; NULL: there is none. */
static const char *next_text(const char **rest, uint64_t *rest_bytes)
{
    const char *text = *rest;
    const char *end = text ? memchr(text, '\0', (size_t)*rest_bytes) : NULL;

    if (!end)
        return NULL;
    *rest_bytes -= (uint64_t)(end + 1 - text);
    *rest = end + 1;
    return text;
}

static int add_locals(const struct dcp_flat_state *given, struct dcp_flat_held *out,
                      struct dcp_error *err)
{
    const char *names = given->names, *params = given->params;
    uint64_t names_bytes = given->names_bytes, params_bytes = given->params_bytes;

    for (uint64_t t = 0; t < given->n; t++) {
        struct dcp_local_tensor *local = &out->locals[t];
        const char *name = next_text(&names, &names_bytes);
        const char *param = params ? next_text(&params, &params_bytes) : NULL;
        if (!name || (params && !param))
            return dcp_error_set(err, DCP_E_USAGE, "fewer names than tensors");
        DCP_TRY(check_words(given, t, name, err));
        *local = out->boxes[given->boxes[t]];
        local->name = name;
        local->param = param;
        local->role = (enum dcp_role)given->roles[t];
        local->data = given->data[t];
        if (!local->data)
            local->region = (struct dcp_region){ .kind = DCP_FLAT };
    }
    if (names_bytes || params_bytes)
        return dcp_error_set(err, DCP_E_USAGE, "more names than tensors");
    return DCP_OK;
}

int dcp_flat_held_make(const struct dcp_flat_state *given, struct dcp_flat_held *out,
                       struct dcp_error *err)
{
    struct dcp_flat_state ours;

    *out = (struct dcp_flat_held){ 0 };
    dcp_flat_take(&ours, sizeof ours, given);
    out->locals = dcp_mem_calloc(ours.n, sizeof *out->locals);
    out->objects = dcp_mem_calloc(ours.n_objects, sizeof *out->objects);
    out->boxes = dcp_mem_calloc(ours.n_boxes, sizeof *out->boxes);
    if (!out->locals || !out->objects || !out->boxes)
        return dcp_error_memory(err, "a list of tensors");
    DCP_TRY(add_boxes(&ours, out, err));
    DCP_TRY(add_locals(&ours, out, err));
    for (uint64_t i = 0; i < ours.n_objects; i++)
        out->objects[i] = (struct dcp_object){
            .name = ours.object_names[i],
            .kind = ours.objects_are_json[i] ? DCP_OBJECT_JSON : DCP_OBJECT_BYTES,
            .data = ours.object_data[i],
            .size_bytes = (size_t)ours.object_sizes[i],
        };
    out->state = (struct dcp_state){ .locals = out->locals,
                                     .n_locals = (size_t)ours.n,
                                     .objects = out->objects,
                                     .n_objects = (size_t)ours.n_objects,
                                     .layout = ours.layout,
                                     .mesh = { ours.dp, ours.tp, ours.pp } };
    return DCP_OK;
}

void dcp_flat_held_free(struct dcp_flat_held *held)
{
    free(held->locals);
    free(held->objects);
    free(held->boxes);
}

/* -- ranks ------------------------------------------------------------------------- */

static int said(int32_t done, const char *what, struct dcp_error *err)
{
    return done == 1 ? DCP_OK
                     : dcp_error_set(err, DCP_E_COMM, "the caller's %s failed", what);
}

static int allgather(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err)
{
    const struct dcp_flat_comm *given = &((struct dcp_flat_talk *)self)->given;

    return said(given->allgather(given->self, in, size_bytes, out, timeout_ms),
                "all-gather", err);
}

static int bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                 struct dcp_error *err)
{
    const struct dcp_flat_comm *given = &((struct dcp_flat_talk *)self)->given;

    return said(given->bcast(given->self, data, size_bytes, root, timeout_ms),
                "broadcast", err);
}

int dcp_flat_talk_make(const struct dcp_flat_comm *given, struct dcp_flat_talk *out,
                       struct dcp_error *err)
{
    static const struct dcp_comm_ops ops = { .allgather = allgather, .bcast = bcast };

    dcp_flat_take(&out->given, sizeof out->given, given);
    if (!given) {
        dcp_comm_self(&out->comm);
        return DCP_OK;
    }
    if (out->given.group) {
        out->comm = *dcp_flat_group_comm(out->given.group);
        return DCP_OK;
    }
    if (!out->given.allgather || !out->given.bcast || out->given.world_size < 1 ||
        out->given.rank < 0 || out->given.rank >= out->given.world_size)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a comm lacks a function, or its ranks "
                             "are wrong");
    out->comm = (struct dcp_comm){ .ops = &ops,
                                   .self = out,
                                   .rank = out->given.rank,
                                   .world_size = out->given.world_size,
                                   .timeout_ms = out->given.timeout_ms };
    return DCP_OK;
}
