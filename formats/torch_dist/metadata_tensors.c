/* metadata_tensors: state_dict_metadata, which tensors and objects there are, and
 * planner_data, where they stand in the state dict. */
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/state_dict/keys.h"
#include "formats/torch/torch.h"
#include "metadata_parser.h"
#include <stdio.h>
#include <string.h>

#define OLD_MODULE "torch.distributed._shard." /* of TensorProperties, once */

/* TensorProperties: (dtype, layout, requires_grad, memory format, pin_memory). */
static int take_dtype(struct dcp_torch_dist_parser *p,
                      const struct dcp_pickle_node *properties, const char *name,
                      enum dcp_dtype *out)
{
    const struct dcp_pickle_node *state =
        dcp_torch_dist_is(properties, "TensorProperties") ? properties->object->state
                                                          : NULL;
    const struct dcp_pickle_node *dtype = dcp_pickle_get(state, "dtype");

    if (state && dcp_str_starts(properties->object->cls->global.module, OLD_MODULE))
        p->meta->old_classes = true;
    if (!dtype)
        dtype = dcp_pickle_item(state, 0);
    if (!dtype || dtype->kind != DCP_PICKLE_GLOBAL)
        return dcp_torch_dist_malformed(p, name, "has no dtype");
    if (dcp_torch_dtype(dtype, out))
        return DCP_OK;
    return dcp_error_set(p->err, DCP_E_UNSUPPORTED,
                         "tensor '%s' has the dtype %s.%s, which is not supported",
                         DCP_SHOWN(name), dtype->global.module, dtype->global.name);
}

static int add_part(struct dcp_torch_dist_parser *p,
                    const struct dcp_torch_dist_part *part)
{
    struct dcp_torch_dist_metadata *meta = p->meta;
    struct dcp_torch_dist_part *grown =
        dcp_mem_grow(meta->parts, &meta->cap_parts, meta->n_parts + 1, sizeof *grown);

    if (!grown)
        return dcp_torch_dist_no_memory(p);
    meta->parts = grown;
    grown[meta->n_parts++] = *part;
    return DCP_OK;
}

/* A box, inside its tensor. */
static int take_chunk(struct dcp_torch_dist_parser *p,
                      const struct dcp_pickle_node *chunk, int t)
{
    const struct dcp_torch_dist_tensor *tensor = &p->meta->tensors[t];
    int64_t dims[2][DCP_MAX_NDIM];
    struct dcp_torch_dist_part part = { .tensor = t, .file = -1 };
    size_t ndim = (size_t)tensor->ndim;

    if (!dcp_torch_dist_is(chunk, "ChunkStorageMetadata") ||
        dcp_torch_numbers(dcp_torch_dist_field(chunk, "offsets"), dims[0]) !=
            tensor->ndim ||
        dcp_torch_numbers(dcp_torch_dist_field(chunk, "sizes"), dims[1]) != tensor->ndim)
        return dcp_torch_dist_malformed(p, tensor->name, "has a malformed part");
    for (size_t d = 0; d < ndim; d++)
        if (dims[0][d] > tensor->shape[d] || dims[1][d] > tensor->shape[d] - dims[0][d])
            return dcp_torch_dist_malformed(p, tensor->name,
                                            "has a part outside the tensor");
    int64_t *box = dcp_arena_alloc(p->meta->arena, 1 + 2 * ndim, sizeof *box);
    if (!box)
        return dcp_torch_dist_no_memory(p);
    box[0] = t;
    memcpy(box + 1, dims[0], ndim * sizeof *box);
    memcpy(box + 1 + ndim, dims[1], ndim * sizeof *box);
    part.box = box;
    return add_part(p, &part);
}

/* A tensor that another rank described already must be the same one. */
static int add_tensor(struct dcp_torch_dist_parser *p,
                      const struct dcp_torch_dist_tensor *tensor, int64_t number,
                      int *out)
{
    struct dcp_torch_dist_metadata *meta = p->meta;

    if (number >= 0) {
        struct dcp_torch_dist_tensor *known = &meta->tensors[number];
        bool same = known->dtype == tensor->dtype && known->ndim == tensor->ndim &&
                    !memcmp(known->shape, tensor->shape,
                            (size_t)tensor->ndim * sizeof *tensor->shape);
        if (known->rank == p->rank)
            return dcp_torch_dist_malformed(p, tensor->name, "is there twice");
        if (!same)
            return dcp_torch_dist_malformed(p, tensor->name, "differs between the ranks");
        known->rank = p->rank;
        *out = (int)number;
        return DCP_OK;
    }
    struct dcp_torch_dist_tensor *grown = dcp_mem_grow(
        meta->tensors, &meta->cap_tensors, meta->n_tensors + 1, sizeof *grown);
    if (!grown)
        return dcp_torch_dist_no_memory(p);
    meta->tensors = grown;
    *out = (int)meta->n_tensors;
    grown[meta->n_tensors] = *tensor;
    if (!dcp_map_set(&meta->keys, tensor->name, strlen(tensor->name),
                     (int64_t)meta->n_tensors))
        return dcp_torch_dist_no_memory(p);
    meta->n_tensors++;
    return DCP_OK;
}

static int take_tensor(struct dcp_torch_dist_parser *p,
                       const struct dcp_pickle_node *node, const char *name,
                       int64_t number)
{
    const struct dcp_pickle_node *chunks = dcp_torch_dist_field(node, "chunks"),
                                 *role = dcp_torch_dist_field(node, DCP_TORCH_DIST_ROLE);
    struct dcp_torch_dist_tensor tensor = {
        .name = name, .path = name, .role = -1, .rank = p->rank
    };
    int64_t shape[DCP_MAX_NDIM];
    int t = -1;

    DCP_TRY(take_dtype(p, dcp_torch_dist_field(node, "properties"), name, &tensor.dtype));
    tensor.ndim = dcp_torch_numbers(dcp_torch_dist_field(node, "size"), shape);
    if (tensor.ndim > DCP_MAX_NDIM)
        return dcp_error_set(p->err, DCP_E_UNSUPPORTED,
                             "tensor '%s' has more dimensions than supported",
                             DCP_SHOWN(name));
    if (tensor.ndim < 0 || !chunks || chunks->kind != DCP_PICKLE_LIST ||
        p->meta->n_tensors >= INT32_MAX)
        return dcp_torch_dist_malformed(p, name, "is malformed");
    tensor.shape =
        dcp_arena_copy(p->meta->arena, shape, (size_t)tensor.ndim * sizeof *shape);
    if (!tensor.shape)
        return dcp_torch_dist_no_memory(p);
    tensor.has_fingerprint = dcp_torch_dist_digest(
        dcp_torch_dist_field(node, DCP_TORCH_DIST_FINGERPRINT), &tensor.fingerprint);
    for (int r = 0; role && r < DCP_N_ROLES; r++)
        if (dcp_pickle_is_text(role, dcp_role_name((enum dcp_role)r)))
            tensor.role = r;
    DCP_TRY(add_tensor(p, &tensor, number, &t));
    p->meta->tensors[t].first_part = p->meta->n_parts;
    p->meta->tensors[t].n_parts = chunks->list.n;
    for (size_t i = 0; i < chunks->list.n; i++)
        DCP_TRY(take_chunk(p, chunks->list.items[i], t));
    return DCP_OK;
}

static int take_object(struct dcp_torch_dist_parser *p, const char *name, int64_t number)
{
    struct dcp_torch_dist_metadata *meta = p->meta;
    struct dcp_torch_dist_object *grown = dcp_mem_grow(
        meta->objects, &meta->cap_objects, meta->n_objects + 1, sizeof *grown);

    if (!grown)
        return dcp_torch_dist_no_memory(p);
    meta->objects = grown;
    if (number >= 0 || (number < -1 && grown[-2 - number].rank == p->rank))
        return dcp_torch_dist_malformed(p, name, "is there twice");
    grown[meta->n_objects] = (struct dcp_torch_dist_object){
        .name = name, .path = name, .rank = p->rank, .part = meta->n_parts
    };
    if (!dcp_map_set(&meta->keys, name, strlen(name), -2 - (int64_t)meta->n_objects))
        return dcp_torch_dist_no_memory(p);
    meta->n_objects++;
    return add_part(p, &(struct dcp_torch_dist_part){ .tensor = -1, .file = -1 });
}

int dcp_torch_dist_take_state_dict(struct dcp_torch_dist_parser *p,
                                   const struct dcp_pickle_node *dict)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(dict);

    if (!pairs)
        return dcp_error_set(p->err, DCP_E_CORRUPT, "there is no state_dict_metadata");
    for (size_t i = 0; i + 1 < pairs->n; i += 2) {
        const struct dcp_pickle_node *value = pairs->items[i + 1];
        const char *name;
        DCP_TRY(dcp_torch_dist_text(p, pairs->items[i], "a key of state_dict_metadata",
                                    &name));
        int64_t number = dcp_map_find(&p->meta->keys, name, strlen(name));
        if (dcp_torch_dist_is(value, "TensorStorageMetadata"))
            DCP_TRY(number < -1
                        ? dcp_torch_dist_malformed(p, name, "is a tensor and an object")
                        : take_tensor(p, value, name, number));
        else if (dcp_torch_dist_is(value, "BytesStorageMetadata"))
            DCP_TRY(take_object(p, name, number));
        else
            return dcp_torch_dist_malformed(p, name,
                                            "is neither a tensor's nor an object's");
    }
    return DCP_OK;
}

/* A key whose dots between the parts of the path are marked; NULL: the path does not give
 * the key. */
static char *make_path(struct dcp_torch_dist_parser *p, const char *name,
                       const struct dcp_pickle_node *tuple)
{
    size_t n = strlen(name), at = 0;
    char *path = dcp_arena_text(p->meta->arena, name);
    const struct dcp_pickle_node *part;

    for (size_t i = 0; path && (part = dcp_pickle_item(tuple, i)); i++) {
        char digits[24];
        const char *text = digits;
        size_t len;
        if (part->kind == DCP_PICKLE_STR) {
            text = part->text.data;
            len = part->text.size_bytes;
        } else if (part->kind == DCP_PICKLE_INT) {
            len =
                (size_t)snprintf(digits, sizeof digits, "%lld", (long long)part->number);
        } else {
            return NULL;
        }
        if (i > 0) {
            if (at >= n || name[at] != '.')
                return NULL;
            path[at++] = part->kind == DCP_PICKLE_INT ? DCP_PATH_INDEX : DCP_PATH_KEY;
        }
        if (len > n - at || memcmp(name + at, text, len) != 0)
            return NULL;
        at += len;
    }
    return at == n ? path : NULL;
}

/* {key: ("optim", "param_groups", 0, "lr")}. Planners of one's own may keep anything
 * there. */
int dcp_torch_dist_take_planner_data(struct dcp_torch_dist_parser *p,
                                     const struct dcp_pickle_node *dict)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(dict);

    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2) {
        const struct dcp_pickle_node *key = pairs->items[i];
        if (key->kind != DCP_PICKLE_STR)
            continue;
        int64_t number =
            dcp_map_find(&p->meta->keys, key->text.data, key->text.size_bytes);
        if (number == -1 || pairs->items[i + 1]->kind != DCP_PICKLE_TUPLE)
            continue;
        const char **path = number >= 0 ? &p->meta->tensors[number].path
                                        : &p->meta->objects[-2 - number].path;
        const char *name = number >= 0 ? p->meta->tensors[number].name
                                       : p->meta->objects[-2 - number].name;
        const char *made = make_path(p, name, pairs->items[i + 1]);
        if (made)
            *path = made;
    }
    return DCP_OK;
}
