#include "state.h"

#include "group.h"

#include "base/mem.h"
#include "base/str.h"
#include <dcp/reshard.h>
#include <string.h>

/* -- tensors and objects ----------------------------------------------------------- */

static bool is_whole(const struct dcp_local_tensor *local, const int64_t *offset,
                     const int64_t *size)
{
    for (int d = 0; d < local->ndim; d++)
        if (offset[d] != 0 || size[d] != local->shape[d])
            return false;
    return true;
}

/* What this rank holds: a box, all of it, or nothing. */
static struct dcp_region region_of(const struct dcp_local_tensor *local,
                                   const int64_t *offset, const int64_t *size)
{
    if (!local->data)
        return (struct dcp_region){ .kind = DCP_FLAT };
    if (is_whole(local, offset, size))
        return (struct dcp_region){ .kind = DCP_WHOLE };
    return (struct dcp_region){ .kind = DCP_BOX, .offset = offset, .size = size };
}

static int check_words(const struct dcp_flat_state *given, uint64_t t,
                       struct dcp_error *err)
{
    if (!given->names[t])
        return dcp_error_set(err, DCP_E_USAGE, "a tensor has no name");
    if (given->ndims[t] < 0 || given->ndims[t] > DCP_MAX_NDIM)
        return dcp_error_of_tensor(err, DCP_E_USAGE, given->names[t],
                                   "tensor '%s' has %d dimensions; %d are the most",
                                   DCP_SHOWN(given->names[t]), given->ndims[t],
                                   DCP_MAX_NDIM);
    if (given->dtypes[t] < 0 || given->dtypes[t] >= DCP_N_DTYPES || given->roles[t] < 0 ||
        given->roles[t] >= DCP_N_ROLES)
        return dcp_error_of_tensor(err, DCP_E_USAGE, given->names[t],
                                   "tensor '%s' has a dtype or a role that is none",
                                   DCP_SHOWN(given->names[t]));
    return DCP_OK;
}

static int add_locals(const struct dcp_flat_state *given, struct dcp_flat_held *out,
                      struct dcp_error *err)
{
    size_t at = 0;

    for (uint64_t t = 0; t < given->n; t++) {
        struct dcp_local_tensor *local = &out->locals[t];
        DCP_TRY(check_words(given, t, err));
        *local = (struct dcp_local_tensor){
            .name = given->names[t],
            .param = given->params ? given->params[t] : NULL,
            .role = (enum dcp_role)given->roles[t],
            .dtype = (enum dcp_dtype)given->dtypes[t],
            .ndim = given->ndims[t],
            .shape = given->shapes + at,
            .data = given->data[t],
        };
        local->region = region_of(local, given->offsets + at, given->sizes + at);
        at += (size_t)local->ndim;
    }
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
    if (!out->locals || !out->objects)
        return dcp_error_memory(err, "a list of tensors");
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
}

/* -- ranks ------------------------------------------------------------------------- */

static int failed(int rc, const char *what, struct dcp_error *err)
{
    return rc ? dcp_error_set(err, DCP_E_COMM, "the caller's %s failed", what) : DCP_OK;
}

static int allgather(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err)
{
    const struct dcp_flat_comm *given = &((struct dcp_flat_talk *)self)->given;

    return failed(given->allgather(given->self, in, size_bytes, out, timeout_ms),
                  "all-gather", err);
}

static int bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                 struct dcp_error *err)
{
    const struct dcp_flat_comm *given = &((struct dcp_flat_talk *)self)->given;

    return failed(given->bcast(given->self, data, size_bytes, root, timeout_ms),
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
