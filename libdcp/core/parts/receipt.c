#include "receipt.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/tensor.h>

#define MAGIC "DCPPART1"

enum { MAGIC_BYTES = 8, HEAD_BYTES = MAGIC_BYTES + 8, LEAST_FILE = 8 + 8 + 4 + 2 };

void dcp_receipt_pack(uint64_t job, int part, const struct dcp_receipt_file *files,
                      size_t n_files, const struct dcp_buf *told, struct dcp_buf *out)
{
    dcp_buf_add(out, MAGIC, MAGIC_BYTES);
    dcp_buf_add_le64(out, 0); /* the digest, known below */
    dcp_buf_add_le64(out, job);
    dcp_buf_add_le32(out, (uint32_t)part);
    dcp_buf_add_le64(out, n_files);
    for (size_t f = 0; f < n_files; f++) {
        size_t n = strlen(files[f].name) + 1;
        dcp_buf_add_le64(out, files[f].size_bytes);
        dcp_buf_add_le64(out, files[f].crc);
        dcp_buf_add_le32(out, (uint32_t)n);
        dcp_buf_add(out, files[f].name, n);
    }
    if (told && told->size_bytes)
        dcp_buf_add(out, told->data, told->size_bytes);
    if (!out->failed)
        dcp_put_le64(
            out->data + MAGIC_BYTES,
            dcp_hash_crc64(0, out->data + HEAD_BYTES, out->size_bytes - HEAD_BYTES));
}

static int bad(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "it is no receipt, or a damaged one");
}

static int parse_files(struct dcp_receipt *receipt, struct dcp_cursor *in,
                       struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);

    if (in->bad || n > dcp_cursor_left(in) / LEAST_FILE)
        return bad(err);
    receipt->files = dcp_mem_calloc((size_t)n, sizeof *receipt->files);
    if (!receipt->files)
        return dcp_error_memory(err, "a receipt");
    for (; receipt->n_files < n; receipt->n_files++) {
        struct dcp_receipt_file *file = &receipt->files[receipt->n_files];
        file->size_bytes = dcp_cursor_le64(in);
        file->crc = dcp_cursor_le64(in);
        uint32_t length = dcp_cursor_le32(in);
        file->name = dcp_cursor_take(in, length);
        if (!file->name || !length || file->name[length - 1] != '\0' ||
            memchr(file->name, 0, length - 1) || !dcp_store_name_ok(file->name))
            return bad(err);
    }
    return DCP_OK;
}

int dcp_receipt_parse(void *data, size_t size_bytes, uint64_t job, int part,
                      struct dcp_receipt *out, struct dcp_error *err)
{
    struct dcp_cursor in = dcp_cursor_init(data, size_bytes);
    const void *magic = dcp_cursor_take(&in, MAGIC_BYTES);
    uint64_t digest = dcp_cursor_le64(&in);
    int rc = DCP_OK;

    *out = (struct dcp_receipt){ .data = data };
    if (in.bad || memcmp(magic, MAGIC, MAGIC_BYTES) != 0 ||
        digest !=
            dcp_hash_crc64(0, (const char *)data + HEAD_BYTES, size_bytes - HEAD_BYTES)) {
        rc = bad(err);
    } else if (dcp_cursor_le64(&in) != job || dcp_cursor_le32(&in) != (uint32_t)part) {
        rc = dcp_error_set(err, DCP_E_MISMATCH, "it is the receipt of another part");
    } else {
        rc = parse_files(out, &in, err);
    }
    out->told = dcp_cursor_init((const char *)data + in.at, size_bytes - in.at);
    if (rc)
        dcp_receipt_fini(out);
    return rc;
}

void dcp_receipt_fini(struct dcp_receipt *receipt)
{
    free(receipt->files);
    free(receipt->data);
    *receipt = (struct dcp_receipt){ 0 };
}

int dcp_receipt_look(const struct dcp_receipt *receipt, const struct dcp_store *store,
                     const char *prefix, const char **out_name, struct dcp_error *err)
{
    *out_name = NULL;
    for (size_t f = 0; f < receipt->n_files && !*out_name; f++) {
        const struct dcp_receipt_file *file = &receipt->files[f];
        DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, file->name, "");
        struct dcp_error why = { 0 };
        bool is_dir = false;
        uint64_t size = 0;
        if (!path)
            return dcp_error_memory(err, "a file name");
        int rc = store->ops->stat(store->self, path, &is_dir, &size, &why);
        if (rc && rc != DCP_E_NOT_FOUND) {
            if (err)
                *err = why;
            return rc;
        }
        if (rc || is_dir || size != file->size_bytes)
            *out_name = file->name;
    }
    return DCP_OK;
}

static int sum_file(const struct dcp_store *store, const char *path, uint64_t size,
                    unsigned char *scratch, uint64_t *out_crc, struct dcp_error *err)
{
    struct dcp_store_file *file;
    int rc = store->ops->open(store->self, path, &file, err);

    if (rc)
        return rc;
    *out_crc = 0;
    for (uint64_t at = 0; at < size && !rc;) {
        size_t n = size - at < DCP_BLOCK_BYTES ? (size_t)(size - at) : DCP_BLOCK_BYTES;
        rc = store->ops->read_at(store->self, file, at, scratch, n, err);
        if (!rc)
            *out_crc = dcp_hash_crc64(*out_crc, scratch, n);
        at += n;
    }
    store->ops->close(store->self, file, NULL);
    return rc;
}

int dcp_receipt_compare(const struct dcp_receipt *receipt, const struct dcp_store *store,
                        const char *prefix, bool *out_same, struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *scratch = malloc(DCP_BLOCK_BYTES);
    const char *other;
    uint64_t crc;

    *out_same = false;
    if (!scratch)
        return dcp_error_memory(err, "a file that is compared");
    DCP_TRY(dcp_receipt_look(receipt, store, prefix, &other, err));
    for (size_t f = 0; f < receipt->n_files && !other; f++) {
        const struct dcp_receipt_file *file = &receipt->files[f];
        DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, file->name, "");
        if (!path)
            return dcp_error_memory(err, "a file name");
        DCP_TRY(sum_file(store, path, file->size_bytes, scratch, &crc, err));
        if (crc != file->crc)
            other = file->name;
    }
    *out_same = !other;
    return DCP_OK;
}
