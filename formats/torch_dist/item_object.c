/* item_object: objects in their items. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/archive/unzstd.h"
#include "formats/pickle/json.h"
#include "formats/torch/torch.h"
#include "formats/torch/value.h"
#include "item.h"
#include <string.h>

/* A tensor in an object: the whole object then stays as it is. */
static int meet_tensor(void *self, const struct dcp_pickle_node *node, const char *path,
                       json_t **out, struct dcp_error *err)
{
    bool *met = self;

    (void)path;
    if (node->kind != DCP_PICKLE_PERSID)
        return DCP_OK;
    *met = true;
    *out = json_null();
    return *out ? DCP_OK : dcp_error_memory(err, "an object");
}

static int read_raw(const struct dcp_input *in, uint64_t begin, uint64_t end,
                    struct dcp_buf *out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *data = NULL;

    DCP_TRY(dcp_input_read_new(in, begin, (size_t)(end - begin), &data, err));
    dcp_buf_add(out, data, (size_t)(end - begin));
    return dcp_buf_check(out, err);
}

static int read_object(const struct dcp_input *in, uint64_t begin, uint64_t end,
                       json_t **out_json, struct dcp_buf *out_raw, struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
    struct dcp_error why = { 0 };
    bool has_tensors = false;
    const struct dcp_pickle_hook hook = { .take = meet_tensor, .self = &has_tensors };

    DCP_TRY(dcp_items_archive(in, begin, end, &file, err));
    int rc = dcp_pickle_to_json(file.tree, file.arena, &hook, out_json, &why);
    if (rc == DCP_E_MEMORY)
        return dcp_error_memory(err, "an object");
    if (!rc && !has_tensors)
        return DCP_OK;
    json_decref(*out_json);
    *out_json = NULL;
    rc = dcp_zip_check(in, &file.zip, err);
    return rc ? rc : read_raw(in, begin, end, out_raw, err);
}

int dcp_torch_dist_items_object(struct dcp_torch_dist_items *items,
                                const struct dcp_torch_dist_object *object,
                                json_t **out_json, struct dcp_buf *out_raw,
                                struct dcp_error *err)
{
    DCP_CLEANUP_UNZSTD struct dcp_unzstd_file whole = { 0 };
    const struct dcp_torch_dist_part *part = &items->meta->parts[object->part];

    *out_json = NULL;
    const char *shown = DCP_SHOWN(object->name);
    if (part->file < 0)
        return dcp_error_set(err, DCP_E_CORRUPT, "no item holds the object '%s'", shown);
    items->objects_bytes += part->size_bytes < DCP_ITEM_MAX_OBJECTS_BYTES
                                ? part->size_bytes
                                : DCP_ITEM_MAX_OBJECTS_BYTES;
    if (part->size_bytes > DCP_ITEM_MAX_OBJECT_BYTES ||
        items->objects_bytes > DCP_ITEM_MAX_OBJECTS_BYTES)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the object '%s' is too large: objects of %u bytes, and %u "
                             "bytes of all together, are supported",
                             shown, DCP_ITEM_MAX_OBJECT_BYTES,
                             DCP_ITEM_MAX_OBJECTS_BYTES);
    int rc = dcp_torch_dist_items_open(items, part, err);
    if (!rc && part->zstd) {
        rc = dcp_unzstd_open(&whole, &items->in, part->offset, part->size_bytes,
                             DCP_ITEM_MAX_OBJECT_BYTES, err);
        if (!rc)
            rc = read_object(&whole.in, 0, whole.in.size_bytes, out_json, out_raw, err);
    } else if (!rc) {
        rc = read_object(&items->in, part->offset, part->offset + part->size_bytes,
                         out_json, out_raw, err);
    }
    if (rc)
        dcp_error_prefix(err, "object '%s'", shown);
    return rc;
}
