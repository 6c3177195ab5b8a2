/* An item of a distributed checkpoint, as the archive of a tensor or of an object, plain
 * or compressed: the first byte says which. */
#include "formats/torch_dist/item.h"
#include "lib/fuzz_formats.h"
#include "lib/must.h"
#include <stdlib.h>

#define FILE_NAME "__0_0.distcp"

enum { ZSTD = 1, OBJECT = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void check_tensor(struct dcp_torch_dist_items *items,
                         const struct dcp_torch_dist_part *part)
{
    struct dcp_torch_dist_item_location place;
    struct dcp_error err = { 0 };
    float values[6];

    int rc = dcp_torch_dist_items_locate(items, part, &place, &err);
    must(rc == DCP_OK || err.message[0]);
    if (rc)
        return;
    must(place.offset <= part->size_bytes &&
         place.stored_size <= part->size_bytes - place.offset);
    if (!place.stride)
        dcp_torch_dist_items_read(items, part, values, sizeof values, NULL);
}

static void check_object(struct dcp_torch_dist_items *items,
                         const struct dcp_torch_dist_object *object)
{
    struct dcp_buf raw = { 0 };
    struct dcp_error err = { 0 };
    json_t *value;

    int rc = dcp_torch_dist_items_object(items, object, &value, &raw, &err);
    must(rc == DCP_OK || err.message[0]);
    if (!rc && value) {
        struct dcp_buf again = { 0 };
        rc = dcp_torch_item_object(DCP_TORCH_STYLE_NEW, value, &again, NULL);
        must(rc == DCP_OK || rc == DCP_E_MISMATCH);
        dcp_buf_fini(&again);
    }
    json_decref(value);
    dcp_buf_fini(&raw);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    const int64_t shape[] = { 2, 3 }, box[] = { 0, 0, 0, 2, 3 };
    struct dcp_store store;
    struct dcp_torch_dist_items items;

    if (!size_bytes)
        return 0;
    fuzz_store(&store, FILE_NAME, data + 1, size_bytes - 1);
    struct dcp_torch_dist_part part = { .box = box,
                                        .size_bytes = size_bytes - 1,
                                        .zstd = data[0] & ZSTD };
    struct dcp_torch_dist_tensor tensor = {
        .name = "w", .shape = shape, .dtype = DCP_F32, .ndim = 2, .n_parts = 1
    };
    struct dcp_torch_dist_object object = { .name = "o" };
    const char *file = FILE_NAME;
    const struct dcp_torch_dist_metadata meta = { .tensors = &tensor,
                                                  .objects = &object,
                                                  .parts = &part,
                                                  .files = &file,
                                                  .n_tensors = 1,
                                                  .n_objects = 1,
                                                  .n_parts = 1,
                                                  .n_files = 1 };
    const struct dcp_source source = { &store, "", true };
    dcp_torch_dist_items_init(&items, &source, &meta);
    if (data[0] & OBJECT)
        check_object(&items, &object);
    else
        check_tensor(&items, &part);
    dcp_torch_dist_items_fini(&items);
    dcp_store_free(&store);
    return 0;
}
