/* table: where the blocks of a delta file are, and what proves them. docs/FORMAT.md,
 * chapter 14. Thread rule: a table that is read may be used by several threads. */
#ifndef DCP_CORE_DELTA_TABLE_H
#define DCP_CORE_DELTA_TABLE_H

#include "base/buf.h"
#include "block.h"
#include <dcp/store.h>

#define DCP_DELTA_HEAD_BYTES 16
#define DCP_DELTA_ENTRY_BYTES 24
#define DCP_DELTA_TAIL_BYTES 16

struct dcp_delta_entry {
    uint64_t offset; /* of the stored bytes in the delta file */
    uint32_t size_bytes;
    uint8_t method, width;
    uint64_t stored_xxh3; /* of the stored bytes */
    uint64_t target_xxh3; /* of the block of the target that they give */
};

struct dcp_delta_table {
    uint64_t target_bytes;
    size_t n_blocks;
    struct dcp_delta_entry *entries;
};

size_t dcp_delta_n_blocks(uint64_t target_bytes);
/* Bytes of block i of a file. */
size_t dcp_delta_block_bytes(uint64_t target_bytes, size_t i);

/* The first bytes of a delta file. */
void dcp_delta_put_head(unsigned char out[DCP_DELTA_HEAD_BYTES]);
/* The last ones: table and tail. *out_crc is what delta.json says of them. */
void dcp_delta_put_table(struct dcp_buf *out, const struct dcp_delta_table *table,
                         uint64_t *out_crc);
/* Reads the table of an open delta file of size_bytes; `name` is for messages. Caller
 * frees out->entries. Errors: CORRUPT (not what delta.json says: crc, target_bytes), IO,
 * MEMORY. */
int dcp_delta_read_table(const struct dcp_store *store, struct dcp_store_file *file,
                         const char *name, uint64_t size_bytes, uint64_t crc,
                         uint64_t target_bytes, struct dcp_delta_table *out,
                         struct dcp_error *err);

#endif
