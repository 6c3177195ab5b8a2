/* write: headers, byte for byte as the reference writer makes them. */
#include "base/buf.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "safetensors.h"
#include <stdio.h>
#include <string.h>

enum { LENGTH_BYTES = 8, ALIGN = 8, OPEN_SHARD = -1, NO_SHARD = -2 };

/* {"format":"pt"}, what the catalog's own metadata say, and names that were left out for
 * another, as save_model of safetensors writes them. */
static int add_metadata(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *metadata = NULL;
    DCP_TRY(dcp_training_read(catalog, DCP_SAFETENSORS_METADATA, &metadata, err));
    const char *key, *format = "pt";
    json_t *value;

    if (json_object_get(metadata, "format"))
        format = json_string_value(json_object_get(metadata, "format"));
    dcp_buf_add_text(buf, "\"__metadata__\":{\"format\":");
    dcp_json_quote(buf, format ? format : "pt");
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value) || !strcmp(key, "format"))
            continue;
        dcp_buf_add(buf, ",", 1);
        dcp_json_quote(buf, key);
        dcp_buf_add(buf, ":", 1);
        dcp_json_quote(buf, json_string_value(value));
    }
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (!tensor->tied_to || json_object_get(metadata, tensor->name))
            continue;
        dcp_buf_add(buf, ",", 1);
        dcp_json_quote(buf, tensor->name);
        dcp_buf_add(buf, ":", 1);
        dcp_json_quote(buf, tensor->tied_to);
    }
    dcp_buf_add(buf, "}", 1);
    return DCP_OK;
}

static int in_file_order(const void *p, const void *q, void *arg)
{
    const struct dcp_catalog *catalog = arg;
    const struct dcp_tensor *a = &catalog->tensors[*(const size_t *)p],
                            *b = &catalog->tensors[*(const size_t *)q];

    if (a->dtype != b->dtype)
        return a->dtype > b->dtype ? -1 : 1;
    return strcmp(a->name, b->name);
}

static void add_tensor(struct dcp_buf *buf, const struct dcp_tensor *tensor,
                       uint64_t begin, uint64_t end)
{
    dcp_buf_add(buf, ",", 1);
    dcp_json_quote(buf, tensor->name);
    dcp_buf_add_fmt(buf, ":{\"dtype\":\"%s\",\"shape\":[", dcp_dtype_name(tensor->dtype));
    for (int d = 0; d < tensor->ndim; d++)
        dcp_buf_add_fmt(buf, "%s%lld", d ? "," : "", (long long)tensor->shape[d]);
    dcp_buf_add_fmt(buf, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                    (unsigned long long)end);
}

/* Length, JSON, and blanks up to a multiple of `align`, in the catalog's memory. */
static int make_header(struct dcp_catalog *catalog, const size_t *tensors, size_t n,
                       uint64_t align, void **out, size_t *out_size_bytes,
                       struct dcp_error *err)
{
    struct dcp_buf buf = { 0 };
    uint64_t at = 0;

    dcp_buf_add_le64(&buf, 0); /* the length, known below */
    dcp_buf_add(&buf, "{", 1);
    int rc = add_metadata(&buf, catalog, err);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[tensors[i]];
        if (!strcmp(tensor->name, "__metadata__"))
            rc = dcp_error_set(err, DCP_E_MISMATCH,
                               "a safetensors file cannot hold: a tensor named "
                               "'__metadata__'");
        add_tensor(&buf, tensor, at, at + dcp_tensor_bytes(tensor));
        at += dcp_tensor_bytes(tensor);
    }
    dcp_buf_add(&buf, "}", 1);
    dcp_buf_add_fill(&buf, ' ', (size_t)((align - buf.size_bytes % align) % align));
    if (!rc)
        rc = dcp_buf_check(&buf, err);
    if (!rc && buf.size_bytes - LENGTH_BYTES > DCP_SAFETENSORS_MAX_HEADER_BYTES)
        rc = dcp_error_set(err, DCP_E_MISMATCH,
                           "a safetensors file cannot hold: a header over %u bytes",
                           DCP_SAFETENSORS_MAX_HEADER_BYTES);
    unsigned char *header = rc ? NULL : dcp_catalog_alloc(catalog, buf.size_bytes, 1);
    if (header) {
        memcpy(header, buf.data, buf.size_bytes);
        dcp_put_le64(header, buf.size_bytes - LENGTH_BYTES);
    } else if (!rc) {
        rc = dcp_error_memory(err, "a safetensors header");
    }
    *out = header;
    *out_size_bytes = buf.size_bytes;
    dcp_buf_fini(&buf);
    return rc;
}

int dcp_safetensors_assign_file(struct dcp_target *target, const char *name,
                                size_t *tensors, size_t n, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    uint64_t align = target->options->align_bytes;
    size_t header_bytes;
    void *header;
    int file;

    if (n)
        qsort_r(tensors, n, sizeof *tensors, in_file_order, catalog);
    DCP_TRY(make_header(catalog, tensors, n, align ? align : ALIGN, &header,
                        &header_bytes, err));
    dcp_catalog_mark_stored(catalog, DCP_SAFETENSORS_METADATA);
    const struct dcp_file entry = { .name = name };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &file, err));
    uint64_t at = header_bytes;
    for (size_t i = 0; i < n; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[tensors[i]];
        struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];
        piece->file = file;
        piece->offset = at;
        piece->stored_size = dcp_tensor_bytes(tensor);
        at += piece->stored_size;
    }
    catalog->files[file].size_bytes = at;
    return dcp_target_literal(target, file, 0, header, header_bytes, err);
}

/* -- shards -------------------------------------------------------------------------- */

/* Shard of each tensor, from 0. The rule of huggingface_hub: in order, a new shard when
 * the current one would grow too large; a tensor that is too large alone gets its own at
 * once. Returns how many. */
static int assign_shards(const struct dcp_catalog *catalog, uint64_t max_bytes,
                         int *shard_of)
{
    uint64_t current_bytes = 0;
    int n_shards = 0, *first_open = NULL, n_open = 0;

    for (size_t i = 0; i < catalog->n_tensors; i++) {
        uint64_t size = dcp_tensor_bytes(&catalog->tensors[i]);
        if (catalog->tensors[i].tied_to) {
            shard_of[i] = NO_SHARD;
            continue;
        }
        if (size > max_bytes) {
            shard_of[i] = n_shards++;
            continue;
        }
        if (current_bytes + size > max_bytes && n_open) {
            for (int *p = first_open; p < &shard_of[i]; p++)
                if (*p == OPEN_SHARD)
                    *p = n_shards;
            n_shards++;
            current_bytes = 0;
            n_open = 0;
        }
        if (!n_open++)
            first_open = &shard_of[i];
        shard_of[i] = OPEN_SHARD; /* in the current shard, which has no number yet */
        current_bytes += size;
    }
    for (size_t i = 0; i < catalog->n_tensors && n_open; i++)
        if (shard_of[i] == OPEN_SHARD)
            shard_of[i] = n_shards;
    return n_shards + (n_open > 0);
}

/* "model-00001-of-00003.safetensors"; without shards "model.safetensors". */
static void shard_name(char *out, size_t cap, const char *stem, int shard, int n_shards)
{
    if (n_shards <= 1)
        snprintf(out, cap, "%s.safetensors", stem);
    else
        snprintf(out, cap, "%s-%05d-of-%05d.safetensors", stem, shard + 1, n_shards);
}

static int by_name(const void *p, const void *q, void *arg)
{
    const struct dcp_catalog *catalog = arg;

    return strcmp(catalog->tensors[*(const size_t *)p].name,
                  catalog->tensors[*(const size_t *)q].name);
}

static int add_index(struct dcp_target *target, const char *stem, const int *shard_of,
                     int n_shards, size_t *order, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    DCP_CLEANUP_JSON json_t *index = NULL;
    uint64_t total = 0;
    char name[256];
    int file;

    for (size_t i = 0; i < catalog->n_tensors; i++) {
        order[i] = i;
        if (shard_of[i] != NO_SHARD)
            total += dcp_tensor_bytes(&catalog->tensors[i]);
    }
    qsort_r(order, catalog->n_tensors, sizeof *order, by_name, catalog);
    index = json_pack("{s:{s:I},s:{}}", "metadata", "total_size", (json_int_t)total,
                      "weight_map");
    json_t *map = json_object_get(index, "weight_map");
    bool ok = map != NULL;
    for (size_t i = 0; i < catalog->n_tensors && ok; i++) {
        if (shard_of[order[i]] == NO_SHARD)
            continue;
        shard_name(name, sizeof name, stem, shard_of[order[i]], n_shards);
        ok =
            !json_object_set_new(map, catalog->tensors[order[i]].name, json_string(name));
    }
    DCP_CLEANUP_FREE char *text = ok ? dcp_json_text(index, 2) : NULL;
    size_t n = text ? strlen(text) + 1 : 0;
    char *data = text ? dcp_catalog_alloc(catalog, n + 1, 1) : NULL;
    if (!data)
        return dcp_error_memory(err, "the index of shards");
    snprintf(data, n + 1, "%s\n", text);
    snprintf(name, sizeof name, "%s.safetensors.index.json", stem);
    const struct dcp_file entry = { .name = name, .size_bytes = n };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &file, err));
    return dcp_target_literal(target, file, 0, data, n, err);
}

int dcp_safetensors_assign_folder(struct dcp_target *target, const char *stem,
                                  struct dcp_error *err)
{
    const struct dcp_catalog *catalog = target->catalog;
    uint64_t max_bytes = target->options->max_shard_size_bytes;
    DCP_CLEANUP_FREE int *shard_of = dcp_mem_calloc(catalog->n_tensors, sizeof *shard_of);
    DCP_CLEANUP_FREE size_t *tensors =
        dcp_mem_calloc(catalog->n_tensors, sizeof *tensors);
    char name[256];

    if (!shard_of || !tensors)
        return dcp_error_memory(err, "the index of shards");
    int n_shards = assign_shards(
        catalog, max_bytes ? max_bytes : DCP_SAFETENSORS_SHARD_BYTES, shard_of);
    for (int shard = 0; shard < (n_shards ? n_shards : 1); shard++) {
        size_t n = 0;
        for (size_t i = 0; i < catalog->n_tensors; i++)
            if (shard_of[i] == shard)
                tensors[n++] = i;
        shard_name(name, sizeof name, stem, shard, n_shards);
        DCP_TRY(dcp_safetensors_assign_file(target, name, tensors, n, err));
    }
    return n_shards <= 1 ? DCP_OK
                         : add_index(target, stem, shard_of, n_shards, tensors, err);
}
