/* metadata_storage: storage_data, which item holds which part. */
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/torch/torch.h"
#include "metadata_parser.h"
#include <string.h>

static int index_boxes(struct dcp_torch_dist_parser *p)
{
    for (size_t i = p->first_part; i < p->meta->n_parts; i++) {
        const struct dcp_torch_dist_part *part = &p->meta->parts[i];
        size_t ndim = part->tensor < 0 ? 0 : (size_t)p->meta->tensors[part->tensor].ndim;
        size_t n = (1 + ndim) * sizeof *part->box;
        const char *key = (const char *)part->box;
        if (part->tensor >= 0 && dcp_map_find(&p->boxes, key, n) < 0 &&
            !dcp_map_set(&p->boxes, key, n, (int64_t)i))
            return dcp_torch_dist_no_memory(p);
    }
    return DCP_OK;
}

/* The part that a MetadataIndex means: its index is a hint, the offset decides. *out is
 * NULL when there is none. */
static int find_part(struct dcp_torch_dist_parser *p, const struct dcp_pickle_node *index,
                     int t, struct dcp_torch_dist_part **out)
{
    const struct dcp_torch_dist_tensor *tensor = &p->meta->tensors[t];
    const struct dcp_pickle_node *hint = dcp_torch_dist_field(index, "index"),
                                 *offset = dcp_torch_dist_field(index, "offset");
    int64_t key[1 + DCP_MAX_NDIM] = { t };
    size_t n = (size_t)tensor->ndim * sizeof *key;
    uint64_t i;

    *out = NULL;
    if (!offset) /* a tensor in one part */
        memset(key + 1, 0, n);
    else if (dcp_torch_numbers(offset, key + 1) != tensor->ndim)
        return dcp_torch_dist_malformed(p, tensor->name,
                                        "is stored at a malformed offset");
    if (dcp_torch_dist_u64(hint, &i) && i < tensor->n_parts) {
        struct dcp_torch_dist_part *part = &p->meta->parts[tensor->first_part + i];
        if (!memcmp(part->box + 1, key + 1, n)) {
            *out = part;
            return DCP_OK;
        }
    }
    int rc = p->boxes.n ? DCP_OK : index_boxes(p);
    int64_t at = rc ? -1 : dcp_map_find(&p->boxes, (const char *)key, n + sizeof *key);
    if (at >= 0)
        *out = &p->meta->parts[at];
    return rc;
}

/* ["stream.zstd/1"], or nothing. A name may carry a domain and a version. */
static int take_transforms(struct dcp_torch_dist_parser *p,
                           const struct dcp_pickle_node *list, const char *name,
                           struct dcp_torch_dist_part *part)
{
    static const char zstd[] = "stream.zstd";
    const struct dcp_pickle_node *item;
    char text[80];

    if (!list)
        return DCP_OK;
    if (list->kind != DCP_PICKLE_LIST && list->kind != DCP_PICKLE_TUPLE)
        return dcp_torch_dist_malformed(p, name, "has malformed transform_descriptors");
    for (size_t i = 0; (item = dcp_pickle_item(list, i)); i++) {
        size_t n = item->kind == DCP_PICKLE_STR ? item->text.size_bytes : 0;
        if (!n || n >= sizeof text || memchr(item->text.data, '\0', n))
            return dcp_torch_dist_malformed(p, name,
                                            "has malformed transform_descriptors");
        memcpy(text, item->text.data, n);
        text[n] = '\0';
        const char *version = strchr(text, '/');
        /* What strchr looks for may be the end of the text, too. */
        bool known = dcp_str_starts(text, zstd) && strchr("@/", text[sizeof zstd - 1]) &&
                     (!version || (version[1] == '1' && strchr(".", version[2])));
        if (!known || i > 0) {
            dcp_error_set(p->err, DCP_E_UNSUPPORTED,
                          "'%s' is stored with the transform '%s'%s, which is not "
                          "supported",
                          DCP_SHOWN(name), DCP_SHOWN(text),
                          known ? " on top of another" : "");
            dcp_error_hint(p->err, "load and save the checkpoint once with PyTorch, "
                                   "without extensions");
            return DCP_E_UNSUPPORTED;
        }
        part->zstd = true;
    }
    return DCP_OK;
}

static int take_file(struct dcp_torch_dist_parser *p, const struct dcp_pickle_node *path,
                     const char *name, int *out)
{
    struct dcp_torch_dist_metadata *meta = p->meta;
    const char *file;
    int64_t known =
        path && path->kind == DCP_PICKLE_STR
            ? dcp_map_find(&meta->file_names, path->text.data, path->text.size_bytes)
            : -1;

    *out = (int)known;
    if (known >= 0)
        return DCP_OK;
    DCP_TRY(dcp_torch_dist_text(p, path, "a relative_path of storage_data", &file));
    if (!dcp_store_name_ok(file) || strpbrk(file, "/\\") ||
        !dcp_str_utf8_ok(file, strlen(file)))
        return dcp_torch_dist_malformed(p, name,
                                        "lies in a file whose name is not a plain one");
    const char **grown =
        dcp_mem_grow(meta->files, &meta->cap_files, meta->n_files + 1, sizeof *grown);
    if (!grown)
        return dcp_torch_dist_no_memory(p);
    meta->files = grown;
    *out = (int)meta->n_files;
    grown[meta->n_files] = file;
    return dcp_map_set(&meta->file_names, file, strlen(file), (int64_t)meta->n_files++)
               ? DCP_OK
               : dcp_torch_dist_no_memory(p);
}

static int take_info(struct dcp_torch_dist_parser *p, const struct dcp_pickle_node *info,
                     const char *name, struct dcp_torch_dist_part *part)
{
    uint64_t end;

    if (!dcp_torch_dist_is(info, "_StorageInfo"))
        return dcp_error_set(p->err, DCP_E_UNSUPPORTED,
                             "the checkpoint was saved by a storage writer other than "
                             "PyTorch's FileSystemWriter");
    if (part->file >= 0)
        return dcp_torch_dist_malformed(p, name, "is stored twice");
    if (!dcp_torch_dist_u64(dcp_torch_dist_field(info, "offset"), &part->offset) ||
        !dcp_torch_dist_u64(dcp_torch_dist_field(info, "length"), &part->size_bytes) ||
        !dcp_add_u64(part->offset, part->size_bytes, &end))
        return dcp_torch_dist_malformed(p, name, "is stored nowhere");
    part->has_crc =
        dcp_torch_dist_digest(dcp_torch_dist_field(info, DCP_TORCH_DIST_CRC), &part->crc);
    DCP_TRY(take_transforms(p, dcp_torch_dist_field(info, "transform_descriptors"), name,
                            part));
    return take_file(p, dcp_torch_dist_field(info, "relative_path"), name, &part->file);
}

/* Entries of what nothing else describes are PyTorch's to ignore, and ours. */
int dcp_torch_dist_take_storage_data(struct dcp_torch_dist_parser *p,
                                     const struct dcp_pickle_node *dict)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(dict);

    if (!pairs)
        return dcp_error_set(p->err, DCP_E_CORRUPT, "there is no storage_data");
    for (size_t i = 0; i + 1 < pairs->n; i += 2) {
        const struct dcp_pickle_node *index = pairs->items[i],
                                     *fqn = index ? dcp_torch_dist_field(index, "fqn")
                                                  : NULL;
        struct dcp_torch_dist_part *part = NULL;
        const char *name = "";
        if (!dcp_torch_dist_is(index, "MetadataIndex") || !fqn ||
            fqn->kind != DCP_PICKLE_STR)
            return dcp_error_set(p->err, DCP_E_CORRUPT,
                                 "a key of storage_data is no MetadataIndex");
        int64_t number =
            dcp_map_find(&p->meta->keys, fqn->text.data, fqn->text.size_bytes);
        if (number >= 0 && p->meta->tensors[number].rank == p->rank) {
            name = p->meta->tensors[number].name;
            DCP_TRY(find_part(p, index, (int)number, &part));
        } else if (number < -1) {
            const struct dcp_torch_dist_object *object = &p->meta->objects[-2 - number];
            name = object->name;
            part = object->rank == p->rank ? &p->meta->parts[object->part] : NULL;
        }
        if (part)
            DCP_TRY(take_info(p, pairs->items[i + 1], name, part));
    }
    return DCP_OK;
}
