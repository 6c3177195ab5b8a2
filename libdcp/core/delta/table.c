#include "table.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

#define MAGIC "dcpdelta"
#define VERSION 1

size_t dcp_delta_n_blocks(uint64_t target_bytes)
{
    return (size_t)(target_bytes / DCP_DELTA_BLOCK_BYTES +
                    (target_bytes % DCP_DELTA_BLOCK_BYTES != 0));
}

size_t dcp_delta_block_bytes(uint64_t target_bytes, size_t i)
{
    uint64_t left = target_bytes - (uint64_t)i * DCP_DELTA_BLOCK_BYTES;

    return left < DCP_DELTA_BLOCK_BYTES ? (size_t)left : DCP_DELTA_BLOCK_BYTES;
}

void dcp_delta_put_head(unsigned char out[DCP_DELTA_HEAD_BYTES])
{
    memcpy(out, MAGIC, 8);
    dcp_put_le64(out + 8, VERSION);
}

void dcp_delta_put_table(struct dcp_buf *out, const struct dcp_delta_table *table,
                         uint64_t *out_crc)
{
    size_t begin = out->size_bytes;

    for (size_t i = 0; i < table->n_blocks; i++) {
        const struct dcp_delta_entry *entry = &table->entries[i];
        dcp_buf_add_le32(out, entry->size_bytes);
        dcp_buf_add_u8(out, entry->method);
        dcp_buf_add_u8(out, entry->width);
        dcp_buf_add_le16(out, 0);
        dcp_buf_add_le64(out, entry->stored_xxh3);
        dcp_buf_add_le64(out, entry->target_xxh3);
    }
    dcp_buf_add_le64(out, table->target_bytes);
    *out_crc =
        out->failed ? 0 : dcp_hash_crc64(0, out->data + begin, out->size_bytes - begin);
    dcp_buf_add_le64(out, *out_crc);
}

static int corrupt(const char *name, const char *why, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: %s", DCP_SHOWN(name), why);
}

/* The entries lie one behind the other, and so do the blocks. */
static int parse(const unsigned char *text, const char *name, uint64_t blocks_bytes,
                 struct dcp_delta_table *table, struct dcp_error *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < table->n_blocks; i++, text += DCP_DELTA_ENTRY_BYTES) {
        struct dcp_delta_entry *entry = &table->entries[i];
        size_t n = dcp_delta_block_bytes(table->target_bytes, i);
        *entry = (struct dcp_delta_entry){ .offset = DCP_DELTA_HEAD_BYTES + at,
                                           .size_bytes = dcp_le32(text),
                                           .method = text[4],
                                           .width = text[5],
                                           .stored_xxh3 = dcp_le64(text + 8),
                                           .target_xxh3 = dcp_le64(text + 16) };
        if (dcp_le16(text + 6) ||
            dcp_delta_check(entry->method, entry->width, entry->size_bytes, n, NULL))
            return corrupt(name, "its table has a block that cannot be", err);
        at += entry->size_bytes;
    }
    return at == blocks_bytes ? DCP_OK : corrupt(name, "its blocks do not fill it", err);
}

int dcp_delta_read_table(const struct dcp_store *store, struct dcp_store_file *file,
                         const char *name, uint64_t size_bytes, uint64_t crc,
                         uint64_t target_bytes, struct dcp_delta_table *out,
                         struct dcp_error *err)
{
    const struct dcp_store_ops *ops = store->ops;
    unsigned char head[DCP_DELTA_HEAD_BYTES], right[DCP_DELTA_HEAD_BYTES];
    uint64_t n_blocks = target_bytes / DCP_DELTA_BLOCK_BYTES +
                        (target_bytes % DCP_DELTA_BLOCK_BYTES != 0);
    uint64_t around = DCP_DELTA_HEAD_BYTES + DCP_DELTA_TAIL_BYTES;

    *out = (struct dcp_delta_table){ .target_bytes = target_bytes };
    if (size_bytes < around || n_blocks > (size_bytes - around) / DCP_DELTA_ENTRY_BYTES)
        return corrupt(name, "it is too short for its table", err);
    size_t table_n = (size_t)n_blocks * DCP_DELTA_ENTRY_BYTES + DCP_DELTA_TAIL_BYTES;
    DCP_CLEANUP_FREE unsigned char *text = malloc(table_n);
    DCP_CLEANUP_FREE struct dcp_delta_entry *entries =
        dcp_mem_calloc((size_t)n_blocks, sizeof *entries);
    if (!text || !entries)
        return dcp_error_memory(err, "the table of a delta");
    DCP_TRY(ops->read_at(store->self, file, 0, head, sizeof head, err));
    dcp_delta_put_head(right);
    if (memcmp(head, right, sizeof head) != 0)
        return corrupt(name, "it does not begin as a delta", err);
    DCP_TRY(ops->read_at(store->self, file, size_bytes - table_n, text, table_n, err));
    uint64_t found = dcp_hash_crc64(0, text, table_n - 8);
    if (found != crc || dcp_le64(text + table_n - 8) != crc ||
        dcp_le64(text + table_n - 16) != target_bytes)
        return corrupt(name, "its table has another digest", err);
    out->n_blocks = (size_t)n_blocks;
    out->entries = entries;
    int rc = parse(text, name, size_bytes - DCP_DELTA_HEAD_BYTES - table_n, out, err);
    if (rc)
        out->entries = NULL;
    else
        entries = NULL;
    return rc;
}
