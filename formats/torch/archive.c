/* archive: records of a file that is written, in torch's order. */
#include "archive.h"
#include "base/hash.h"
#include "base/mem.h"
#include "torch.h"
#include <stdio.h>
#include <string.h>

enum { N_BEFORE = 4, N_AFTER = 2 }; /* records before and after the storages */

/* torch's rule: the file's base name without its last extension. */
static const char *make_root(struct dcp_catalog *catalog, const char *name)
{
    const char *slash = strrchr(name, '/');
    const char *base = slash ? slash + 1 : name, *dot = strrchr(base, '.');
    size_t n = dot ? (size_t)(dot - base) : strlen(base);
    char *root = dcp_catalog_alloc(catalog, n + 1, 1);

    if (root)
        memcpy(root, base, n);
    return !root || n ? root : "archive";
}

static const char *record_name(struct dcp_catalog *catalog, const char *root,
                               const char *record)
{
    size_t n = strlen(root) + strlen(record) + 2;
    char *name = dcp_catalog_alloc(catalog, n, 1);

    if (name)
        snprintf(name, n, "%s/%s", root, record);
    return name;
}

static struct dcp_zip_out text_record(const char *name, const char *text)
{
    return (struct dcp_zip_out){ .name = name, .data = text, .size_bytes = strlen(text) };
}

/* Their names, still without the root. False when memory ran out. */
static bool add_storages(struct dcp_catalog *catalog, struct dcp_torch_archive *out,
                         const uint64_t *storage_bytes, size_t n_storages)
{
    char key[32];

    out->storages = out->records + out->n_records;
    out->n_storages = n_storages;
    for (size_t i = 0; i < n_storages; i++) {
        snprintf(key, sizeof key, "data/%zu", i);
        struct dcp_zip_out *r = &out->records[out->n_records++];
        *r = (struct dcp_zip_out){ .name = dcp_catalog_text(catalog, key),
                                   .size_bytes = storage_bytes[i] };
        if (!r->name)
            return false;
    }
    return true;
}

int dcp_torch_archive_plan(struct dcp_catalog *catalog, const char *name,
                           const struct dcp_buf *pickle, uint64_t hole_bytes,
                           const uint64_t *storage_bytes, size_t n_storages,
                           struct dcp_torch_archive *out, struct dcp_error *err)
{
    const char *root = make_root(catalog, name);
    void *data = hole_bytes ? NULL : dcp_catalog_alloc(catalog, pickle->size_bytes, 1);
    char align[16];

    *out = (struct dcp_torch_archive){ 0 };
    snprintf(align, sizeof align, "%d", DCP_TORCH_ALIGN);
    const char *alignment = dcp_catalog_text(catalog, align);
    out->records =
        dcp_catalog_alloc(catalog, n_storages + N_BEFORE + N_AFTER, sizeof *out->records);
    if (!root || (!data && !hole_bytes) || !alignment || !out->records)
        return dcp_error_memory(err, "a PyTorch file");
    if (data && pickle->size_bytes)
        memcpy(data, pickle->data, pickle->size_bytes);
    struct dcp_zip_out *records = out->records;
    records[out->n_records++] = (struct dcp_zip_out){
        .name = "data.pkl", .data = data, .size_bytes = pickle->size_bytes + hole_bytes
    };
    records[out->n_records++] = text_record(".format_version", "1");
    records[out->n_records++] = text_record(".storage_alignment", alignment);
    records[out->n_records++] = text_record("byteorder", "little");
    bool ok = add_storages(catalog, out, storage_bytes, n_storages);
    records[out->n_records++] = text_record("version", "3\n");
    records[out->n_records++] =
        (struct dcp_zip_out){ .name = ".data/serialization_id", .size_bytes = 40 };
    for (size_t i = 0; i < out->n_records && ok; i++) {
        struct dcp_zip_out *r = &records[i];
        if (r->data)
            r->crc32 = dcp_hash_crc32(0, r->data, (size_t)r->size_bytes);
        r->name = record_name(catalog, root, r->name);
        ok = r->name;
    }
    if (!ok)
        return dcp_error_memory(err, "a PyTorch file");
    dcp_zip_plan(records, out->n_records, DCP_TORCH_ALIGN, &out->directory,
                 &out->size_bytes);
    return DCP_OK;
}

int dcp_torch_archive_headers(const struct dcp_torch_archive *archive,
                              struct dcp_target *target, struct dcp_error *err)
{
    return dcp_zip_write_headers(archive->records, archive->n_records, archive->file,
                                 target, err);
}

/* What the last record, which has no data yet, is filled with. */
static int make_serialization_id(struct dcp_catalog *catalog,
                                 struct dcp_torch_archive *archive, struct dcp_error *err)
{
    size_t n = archive->n_records - 1;
    size_t root_len = strcspn(archive->records[0].name, "/") + 1;
    DCP_CLEANUP_FREE struct dcp_torch_id_record *before =
        dcp_mem_calloc(n, sizeof *before);
    char *id = dcp_catalog_alloc(catalog, 41, 1);

    if (!before || !id)
        return dcp_error_memory(err, "a PyTorch file");
    for (size_t i = 0; i < n; i++)
        before[i] = (struct dcp_torch_id_record){
            .name = archive->records[i].name + root_len,
            .size_bytes = archive->records[i].size_bytes,
            .crc32 = archive->records[i].crc32,
        };
    struct dcp_zip_out *last = &archive->records[n];
    int rc = dcp_torch_serialization_id(before, n, id, err);
    last->data = id;
    last->crc32 = dcp_hash_crc32(0, id, (size_t)last->size_bytes);
    return rc;
}

int dcp_torch_archive_tail(struct dcp_torch_archive *archive, struct dcp_target *target,
                           struct dcp_error *err)
{
    const struct dcp_zip_out *id = &archive->records[archive->n_records - 1];

    DCP_TRY(make_serialization_id(target->catalog, archive, err));
    DCP_TRY(dcp_target_literal(target, archive->file, id->offset, id->data,
                               (size_t)id->size_bytes, err));
    return dcp_zip_write_tail(archive->records, archive->n_records, archive->directory,
                              archive->file, target, err);
}
