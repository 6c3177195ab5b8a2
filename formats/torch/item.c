/* item: records of the archive, and its parts. */
#include "item.h"
#include "base/hash.h"
#include "base/mem.h"
#include "torch.h"
#include "value.h"
#include <stdio.h>
#include <string.h>

#define ROOT "archive/" /* torch's name for what is no file */

enum { MAX_RECORDS = 7, ID_BYTES = 40 };

struct item {
    struct dcp_zip_out records[MAX_RECORDS];
    size_t n;
    size_t storage; /* the record data/0; n when there is none */
    uint64_t directory, size_bytes;
    struct dcp_pickle_out pickle;
    char alignment[16], id[ID_BYTES + 1];
};

static void item_fini(struct item *item)
{
    dcp_pickle_out_fini(&item->pickle);
}
#define CLEANUP_ITEM DCP_CLEANUP(item_fini)

static void add_record(struct item *item, const char *name, const void *data,
                       uint64_t size_bytes)
{
    struct dcp_zip_out *record = &item->records[item->n++];

    *record =
        (struct dcp_zip_out){ .name = name, .data = data, .size_bytes = size_bytes };
    if (data)
        record->crc32 = dcp_hash_crc32(0, data, (size_t)size_bytes);
}

/* The pickle is written; payload_bytes < 0: there is no storage. */
static int plan(struct item *item, enum dcp_torch_style style, int64_t payload_bytes,
                struct dcp_error *err)
{
    DCP_TRY(dcp_buf_check(&item->pickle.buf, err));
    snprintf(item->alignment, sizeof item->alignment, "%d", DCP_TORCH_ALIGN);
    add_record(item, ROOT "data.pkl", item->pickle.buf.data, item->pickle.buf.size_bytes);
    if (style == DCP_TORCH_STYLE_NEW) {
        add_record(item, ROOT ".format_version", "1", 1);
        add_record(item, ROOT ".storage_alignment", item->alignment,
                   strlen(item->alignment));
    }
    if (style != DCP_TORCH_STYLE_1_13)
        add_record(item, ROOT "byteorder", "little", 6);
    item->storage = item->n;
    if (payload_bytes >= 0)
        add_record(item, ROOT "data/0", NULL, (uint64_t)payload_bytes);
    else
        item->storage = SIZE_MAX;
    add_record(item, ROOT "version", "3\n", 2);
    if (style != DCP_TORCH_STYLE_1_13)
        add_record(item, ROOT ".data/serialization_id", NULL, ID_BYTES);
    dcp_zip_plan(item->records, item->n, DCP_TORCH_ALIGN, &item->directory,
                 &item->size_bytes);
    return DCP_OK;
}

static int plan_tensor(struct item *item, enum dcp_torch_style style,
                       const struct dcp_tensor *tensor, struct dcp_error *err)
{
    struct dcp_tensor one = *tensor;
    const struct dcp_catalog catalog = { .tensors = &one, .n_tensors = 1 };
    size_t first_seen;
    int64_t storage = -1;
    struct dcp_torch_writer w = { .catalog = &catalog,
                                  .out = &item->pickle,
                                  .first_seen = &first_seen,
                                  .storage = &storage };

    dcp_pickle_begin(&item->pickle);
    dcp_torch_write_tensor(&w, 0);
    dcp_pickle_end(&item->pickle);
    return plan(item, style, (int64_t)dcp_tensor_bytes(tensor), err);
}

/* Records from .. to with their contents, as far as these are known here. */
static void put_records(const struct item *item, size_t from, size_t to,
                        struct dcp_buf *out)
{
    for (size_t i = from; i < to; i++) {
        const struct dcp_zip_out *record = &item->records[i];
        dcp_zip_put_header(out, record);
        if (record->data)
            dcp_buf_add(out, record->data, (size_t)record->size_bytes);
        if (i != item->storage)
            dcp_zip_put_descriptor(out, record);
    }
}

/* The last record, in styles that have it: a hash of all before it. */
static int set_id(struct item *item, struct dcp_error *err)
{
    struct dcp_torch_id_record before[MAX_RECORDS];
    struct dcp_zip_out *last = &item->records[item->n - 1];

    if (last->data)
        return DCP_OK;
    for (size_t i = 0; i + 1 < item->n; i++)
        before[i] = (struct dcp_torch_id_record){
            .name = item->records[i].name + sizeof ROOT - 1,
            .size_bytes = item->records[i].size_bytes,
            .crc32 = item->records[i].crc32,
        };
    int rc = dcp_torch_serialization_id(before, item->n - 1, item->id, err);
    last->data = item->id;
    last->crc32 = dcp_hash_crc32(0, item->id, ID_BYTES);
    return rc;
}

static void put_directory(const struct item *item, struct dcp_buf *out)
{
    dcp_zip_put_directory(out, item->records, item->n, item->directory);
}

int dcp_torch_item_head(enum dcp_torch_style style, const struct dcp_tensor *tensor,
                        struct dcp_buf *out, uint64_t *out_size_bytes,
                        struct dcp_error *err)
{
    CLEANUP_ITEM struct item item = { 0 };

    DCP_TRY(plan_tensor(&item, style, tensor, err));
    put_records(&item, 0, item.storage + 1, out);
    *out_size_bytes = item.size_bytes;
    return dcp_buf_check(out, err);
}

int dcp_torch_item_tail(enum dcp_torch_style style, const struct dcp_tensor *tensor,
                        uint32_t crc32, struct dcp_buf *out, struct dcp_error *err)
{
    CLEANUP_ITEM struct item item = { 0 };

    DCP_TRY(plan_tensor(&item, style, tensor, err));
    item.records[item.storage].crc32 = crc32;
    int rc = set_id(&item, err);
    dcp_zip_put_descriptor(out, &item.records[item.storage]);
    put_records(&item, item.storage + 1, item.n, out);
    put_directory(&item, out);
    return rc ? rc : dcp_buf_check(out, err);
}

int dcp_torch_item_tensor(enum dcp_torch_style style, const struct dcp_tensor *tensor,
                          const void *data, struct dcp_buf *out, struct dcp_error *err)
{
    size_t n = (size_t)dcp_tensor_bytes(tensor);
    uint64_t size_bytes;
    int rc = dcp_torch_item_head(style, tensor, out, &size_bytes, err);

    dcp_buf_add(out, data, n);
    return rc ? rc
              : dcp_torch_item_tail(style, tensor, dcp_hash_crc32(0, data, n), out, err);
}

int dcp_torch_item_object(enum dcp_torch_style style, json_t *value, struct dcp_buf *out,
                          struct dcp_error *err)
{
    CLEANUP_ITEM struct item item = { 0 };
    struct dcp_catalog *none = NULL;
    struct dcp_torch_writer w = { .out = &item.pickle, .arena = dcp_arena_new() };
    int rc = w.arena ? dcp_catalog_new(&none, err) : dcp_error_memory(err, "an object");

    w.catalog = none;
    if (!rc) {
        dcp_pickle_begin(&item.pickle);
        rc = dcp_torch_write_value(&w, value, err);
        dcp_pickle_end(&item.pickle);
    }
    if (!rc)
        rc = plan(&item, style, -1, err);
    if (!rc)
        rc = set_id(&item, err);
    if (!rc) {
        put_records(&item, 0, item.n, out);
        put_directory(&item, out);
        rc = dcp_buf_check(out, err);
    }
    dcp_catalog_free(none);
    dcp_arena_free(w.arena);
    return rc;
}
