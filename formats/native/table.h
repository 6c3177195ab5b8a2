/* table: the shard manifest, which says what the pieces of a shard are. FORMAT.md, 4. */
#ifndef DCP_FORMATS_NATIVE_TABLE_H
#define DCP_FORMATS_NATIVE_TABLE_H

#include "base/buf.h"
#include <dcp/tensor.h>

#define NATIVE_TABLE_MAGIC "dcppiece"
#define NATIVE_TABLE_VERSION 1

/* The table of a shard: n pieces in the order of the shard, of which the first lies at
 * `first`. */
void dcp_native_table_add(struct dcp_buf *buf, const struct dcp_catalog *catalog,
                          int rank, const size_t *order, size_t n, uint64_t first);
/* Adds the pieces of a table, which may be any bytes, to the catalog; `name` is the file
 * it comes from, `file` the shard, in the catalog. Errors: CORRUPT, UNSUPPORTED, MEMORY.
 */
int dcp_native_table_index(const void *data, size_t size_bytes, const char *name,
                           int rank, int file, struct dcp_catalog *catalog,
                           struct dcp_error *err);
/* How many pieces a table says that it has. Errors: CORRUPT, UNSUPPORTED. */
int dcp_native_table_count(const void *data, size_t size_bytes, const char *name,
                           int rank, struct dcp_catalog *catalog, uint64_t *out_n,
                           struct dcp_error *err);

#endif
