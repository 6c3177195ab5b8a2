/* view: DTensor and ShardedTensor, as pickles have them. Nothing is built: the mesh,
 * the rank's place in it and the placements give the box that the local tensor is. */
#include "base/mem.h"
#include "base/part.h"
#include "base/str.h"
#include "fsdp.h"
#include <stdio.h>
#include <string.h>

struct viewer {
    struct dcp_torch_file *file;
    int rank;
    const char *name;
    struct dcp_error *err;
};

static int refuse(const struct viewer *v, int code, const char *what)
{
    return dcp_error_of_tensor(v->err, code, v->name, "'%s': tensor '%s' %s",
                               v->file->in.shown, DCP_SHOWN(v->name), what);
}

static int corrupt(const struct viewer *v, const char *what)
{
    return refuse(v, DCP_E_CORRUPT, what);
}

/* torch moved its modules more than once: any of torch.distributed will do. */
static bool is_class(const struct dcp_pickle_node *node, const char *name)
{
    return node && node->kind == DCP_PICKLE_GLOBAL && !strcmp(node->global.name, name) &&
           dcp_str_starts(node->global.module, "torch.distributed.");
}

static bool is_object(const struct dcp_pickle_node *node, const char *name)
{
    return node && node->kind == DCP_PICKLE_OBJECT && is_class(node->object->cls, name);
}

/* A member of an object's state, which is a dict, or (None, dict) where the class has
 * slots. */
static const struct dcp_pickle_node *member(const struct dcp_pickle_node *state,
                                            const char *name)
{
    if (state && state->kind == DCP_PICKLE_TUPLE && state->list.n == 2)
        state = state->list.items[1];
    return dcp_pickle_get(state, name);
}

static const struct dcp_pickle_node *member_of(const struct dcp_pickle_node *node,
                                               const char *name)
{
    return node && node->kind == DCP_PICKLE_OBJECT ? member(node->object->state, name)
                                                   : NULL;
}

/* -- the mesh ------------------------------------------------------------------------ */

struct mesh {
    int ndim;
    int64_t shape[DCP_MAX_NDIM], at[DCP_MAX_NDIM]; /* at: where the rank is */
    bool has_rank; /* false: the rank is not in the mesh */
};

/* One axis of a layout: (n,), or several that are one. */
static int64_t axis_size(const struct dcp_pickle_node *axis)
{
    const struct dcp_pickle_node *shape =
        axis && axis->kind == DCP_PICKLE_OBJECT ? member_of(axis, "shape") : axis;
    int64_t sizes[DCP_MAX_NDIM], n = 1;

    if (shape && shape->kind == DCP_PICKLE_INT)
        return shape->number;
    int ndim = dcp_torch_numbers(shape, sizes);
    for (int d = 0; d < ndim && ndim <= DCP_MAX_NDIM; d++)
        if (!dcp_mul_i64(n, sizes[d], &n))
            return -1;
    return ndim < 0 || ndim > DCP_MAX_NDIM ? -1 : n;
}

/* The shape of a mesh: that of its tensor of ranks; since 2.9 a layout's, which is sizes,
 * or axes with sizes. */
static bool parse_mesh_shape(struct viewer *v, const struct dcp_pickle_node *node,
                             struct mesh *out)
{
    const struct dcp_pickle_node *layout = member_of(node, "_layout"),
                                 *ranks = member_of(node, "mesh");
    const struct dcp_pickle_node *axes = member_of(layout, "axes");
    struct dcp_torch_view view;
    bool found = false;

    if (!layout) {
        if (!ranks || dcp_torch_view(v->file, ranks, "a mesh", &found, &view, NULL) ||
            !found)
            return false;
        out->ndim = view.ndim;
        memcpy(out->shape, view.shape, sizeof out->shape);
        return true;
    }
    axes = axes ? axes : member_of(layout, "shape");
    if (axes && axes->kind == DCP_PICKLE_INT) {
        out->ndim = 1;
        out->shape[0] = axes->number;
        return true;
    }
    if (!axes || (axes->kind != DCP_PICKLE_TUPLE && axes->kind != DCP_PICKLE_LIST) ||
        axes->list.n > DCP_MAX_NDIM)
        return false;
    out->ndim = (int)axes->list.n;
    for (int d = 0; d < out->ndim; d++)
        out->shape[d] = axis_size(axes->list.items[d]);
    return true;
}

/* Where a rank stands in the list of the mesh's ranks. */
static bool find_rank(const struct viewer *v, const struct dcp_pickle_node *node,
                      struct mesh *out)
{
    const struct dcp_pickle_node *ranks = member_of(node, "_flatten_rank_map");
    int64_t n = 1, at = -1;

    ranks = ranks ? ranks : member_of(node, "_flatten_mesh_list");
    for (int d = 0; d < out->ndim; d++)
        if (!dcp_mul_i64(n, out->shape[d], &n))
            return false;
    if (!ranks || (ranks->kind != DCP_PICKLE_TUPLE && ranks->kind != DCP_PICKLE_LIST) ||
        ranks->list.n != (uint64_t)n)
        return false;
    for (size_t i = 0; i < ranks->list.n; i++)
        if (ranks->list.items[i]->kind == DCP_PICKLE_INT &&
            ranks->list.items[i]->number == v->rank)
            at = (int64_t)i;
    out->has_rank = at >= 0;
    for (int d = out->ndim; d-- > 0 && at >= 0;) {
        out->at[d] = at % out->shape[d];
        at /= out->shape[d];
    }
    return true;
}

/* Where the rank is: the mesh knows it, or lists its ranks. */
static int parse_mesh(struct viewer *v, const struct dcp_pickle_node *node,
                      struct mesh *out)
{
    const struct dcp_pickle_node *at = member_of(node, "_coordinate_on_dim"),
                                 *rank = member_of(node, "_rank");

    *out = (struct mesh){ 0 };
    if (!is_object(node, "DeviceMesh") || !parse_mesh_shape(v, node, out))
        return corrupt(v, "has a malformed mesh of ranks");
    for (int d = 0; d < out->ndim; d++)
        if (out->shape[d] < 1 || out->shape[d] > DCP_FSDP_MAX_WORLD_SIZE)
            return corrupt(v, "has a malformed mesh of ranks");
    if (rank && rank->kind == DCP_PICKLE_INT && rank->number != v->rank)
        return corrupt(v, "was saved by another rank than the file's name says");
    if (at && at->kind == DCP_PICKLE_NONE)
        return DCP_OK;
    if (!at && find_rank(v, node, out))
        return DCP_OK;
    if (dcp_torch_numbers(at, out->at) != out->ndim)
        return corrupt(v, "does not say which coordinates in the mesh its rank has");
    for (int d = 0; d < out->ndim; d++)
        if (out->at[d] >= out->shape[d])
            return corrupt(v, "has a rank outside its mesh");
    out->has_rank = true;
    return DCP_OK;
}

/* -- DTensor ------------------------------------------------------------------------- */

/* Each dimension of a tensor is cut by the dimensions of the mesh in their order; newer
 * versions can say another one. */
static bool order_is_usual(const struct dcp_pickle_node *spec)
{
    const struct dcp_pickle_node *orders = member_of(spec, "shard_order");
    int64_t dims[DCP_MAX_NDIM];

    if (!orders || orders->kind != DCP_PICKLE_TUPLE)
        return true;
    for (size_t i = 0; i < orders->list.n; i++) {
        int n = dcp_torch_numbers(dcp_pickle_item(orders->list.items[i], 1), dims);
        for (int d = 1; d < n && n <= DCP_MAX_NDIM; d++)
            if (dims[d] <= dims[d - 1])
                return false;
    }
    return true;
}

/* Shard(dim): its state, or its argument. */
static bool shard_dim(const struct dcp_pickle_node *placement, int ndim, int64_t *out)
{
    const struct dcp_pickle_node *dim = member_of(placement, "dim");

    dim = dim ? dim : dcp_pickle_item(placement, 0);
    if (!dim || dim->kind != DCP_PICKLE_INT || dim->number < 0 || dim->number >= ndim)
        return false;
    *out = dim->number;
    return true;
}

static int refuse_placement(const struct viewer *v,
                            const struct dcp_pickle_node *placement)
{
    char what[200];

    if (!placement || placement->kind != DCP_PICKLE_OBJECT)
        return corrupt(v, "has a malformed placement");
    snprintf(what, sizeof what, "has the placement %s, which is not supported",
             placement->object->cls->global.name);
    return refuse(v, DCP_E_UNSUPPORTED, what);
}

/* The box of the mesh's coordinate: dimension after dimension of the mesh. size: that of
 * the local tensor. */
static int place(struct viewer *v, const struct dcp_pickle_node *placements,
                 const struct mesh *mesh, struct dcp_fsdp_piece *out,
                 int64_t size[DCP_MAX_NDIM])
{
    memcpy(size, out->shape, sizeof out->shape);
    if (!placements ||
        (placements->kind != DCP_PICKLE_TUPLE && placements->kind != DCP_PICKLE_LIST) ||
        placements->list.n != (size_t)mesh->ndim)
        return corrupt(v, "has other placements than its mesh has dimensions");
    for (int m = 0; m < mesh->ndim; m++) {
        const struct dcp_pickle_node *placement = placements->list.items[m];
        int64_t d;
        if (is_object(placement, "Replicate")) {
            out->is_replica = out->is_replica || mesh->at[m] > 0;
            continue;
        }
        if (!is_object(placement, "Shard"))
            return refuse_placement(v, placement);
        if (!shard_dim(placement, out->ndim, &d))
            return corrupt(v, "is sharded along a dimension that it does not have");
        struct dcp_part part =
            dcp_part_of(dcp_part_ceil(size[d], mesh->shape[m]), mesh->at[m], 0, size[d]);
        size[d] = part.end - part.begin;
        out->offset[d] += part.begin;
    }
    return DCP_OK;
}

/* The local tensor must have exactly the size of its box. */
static int view_local(struct viewer *v, const struct dcp_pickle_node *local,
                      const int64_t size[DCP_MAX_NDIM], struct dcp_fsdp_piece *out)
{
    bool found = false;

    if (local)
        DCP_TRY(dcp_torch_view(v->file, local, v->name, &found, &out->view, v->err));
    if (!found || out->view.ndim != out->ndim)
        return corrupt(v, "has no piece of its shape");
    for (int d = 0; d < out->ndim; d++) {
        if (out->view.shape[d] != size[d])
            return corrupt(v, "has a piece of another size than its place says");
        out->is_empty = out->is_empty || size[d] == 0;
    }
    if (out->view.dtype != out->dtype)
        return corrupt(v, "has a piece of another dtype");
    return out->view.has_data ? DCP_OK : corrupt(v, "has a piece without bytes");
}

/* (class, dtype, size, stride, …) */
static int parse_whole(struct viewer *v, const struct dcp_pickle_node *args,
                       struct dcp_fsdp_piece *out)
{
    out->ndim = dcp_torch_numbers(dcp_pickle_item(args, 2), out->shape);
    if (out->ndim > DCP_MAX_NDIM)
        return refuse(v, DCP_E_UNSUPPORTED, "has more dimensions than supported");
    if (out->ndim < 0)
        return corrupt(v, "has a malformed size");
    return dcp_torch_dtype(dcp_pickle_item(args, 1), &out->dtype)
               ? DCP_OK
               : refuse(v, DCP_E_UNSUPPORTED, "has a dtype that is not supported");
}

/* state: _local_tensor and _spec. */
static int view_dtensor(struct viewer *v, const struct dcp_pickle_node *args,
                        const struct dcp_pickle_node *state, struct dcp_fsdp_piece *out)
{
    const struct dcp_pickle_node *spec = member(state, "_spec");
    int64_t size[DCP_MAX_NDIM];
    struct mesh mesh;

    DCP_TRY(parse_whole(v, args, out));
    if (!is_object(spec, "DTensorSpec"))
        return corrupt(v, "is a malformed DTensor");
    DCP_TRY(parse_mesh(v, member_of(spec, "mesh"), &mesh));
    if (!mesh.has_rank) {
        out->is_empty = true;
        return DCP_OK;
    }
    if (!order_is_usual(spec))
        return refuse(v, DCP_E_UNSUPPORTED,
                      "is sharded over the dimensions of its mesh in an unusual order");
    DCP_TRY(place(v, member_of(spec, "placements"), &mesh, out, size));
    return view_local(v, member(state, "_local_tensor"), size, out);
}

/* -- ShardedTensor ------------------------------------------------------------------- */

/* state: (local shards, metadata, …); a shard has its tensor and where it is. */
static int view_sharded(struct viewer *v, const struct dcp_pickle_node *args,
                        const struct dcp_pickle_node *state, struct dcp_fsdp_piece *out)
{
    const struct dcp_pickle_node *shards = dcp_pickle_item(state, 0);
    int64_t size[DCP_MAX_NDIM];

    DCP_TRY(parse_whole(v, args, out));
    if (!shards || shards->kind != DCP_PICKLE_LIST)
        return corrupt(v, "is a malformed ShardedTensor");
    if (shards->list.n > 1)
        return refuse(v, DCP_E_UNSUPPORTED, "has several pieces on one rank");
    out->is_empty = !shards->list.n;
    if (out->is_empty)
        return DCP_OK;
    const struct dcp_pickle_node *shard = shards->list.items[0];
    const struct dcp_pickle_node *metadata = member_of(shard, "metadata");
    if (dcp_torch_numbers(member_of(metadata, "shard_offsets"), out->offset) !=
            out->ndim ||
        dcp_torch_numbers(member_of(metadata, "shard_sizes"), size) != out->ndim)
        return corrupt(v, "is a malformed ShardedTensor");
    return view_local(v, member_of(shard, "tensor"), size, out);
}

/* -- any tensor ---------------------------------------------------------------------- */

/* _rebuild_from_type_v2(_rebuild_wrapper_subclass, class, args, state), maybe dressed as
 * a parameter. The node with these arguments, or NULL. */
static const struct dcp_pickle_node *find_wrapped(const struct dcp_pickle_node *node)
{
    while (dcp_pickle_is_call(node, "torch._utils", "_rebuild_parameter"))
        node = dcp_pickle_item(node, 0);
    return dcp_pickle_is_call(node, "torch._tensor", "_rebuild_from_type_v2") &&
                   dcp_pickle_is_global(dcp_pickle_item(node, 0), "torch._utils",
                                        "_rebuild_wrapper_subclass")
               ? node
               : NULL;
}

int dcp_fsdp_view(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                  int rank, const char *name, bool *out_found, struct dcp_fsdp_piece *out,
                  struct dcp_error *err)
{
    struct viewer v = { .file = file, .rank = rank, .name = name, .err = err };
    const struct dcp_pickle_node *wrapped = find_wrapped(node);
    const struct dcp_pickle_node *class = dcp_pickle_item(wrapped, 1),
                                 *args = dcp_pickle_item(wrapped, 2),
                                 *state = dcp_pickle_item(wrapped, 3);

    *out = (struct dcp_fsdp_piece){ 0 };
    *out_found = true;
    if (is_class(class, "DTensor"))
        return view_dtensor(&v, args, state, out);
    if (is_class(class, "ShardedTensor"))
        return view_sharded(&v, args, state, out);
    if (wrapped)
        return refuse(&v, DCP_E_UNSUPPORTED, "is of a class that is not supported");
    out->plain = true;
    int rc = dcp_torch_view(file, node, name, out_found, &out->view, err);
    out->dtype = out->view.dtype;
    out->ndim = out->view.ndim;
    memcpy(out->shape, out->view.shape, sizeof out->shape);
    return rc;
}
