/* order: the pieces of a catalog as they lie: by file, then by offset. */
#ifndef DCP_CORE_CATALOG_ORDER_H
#define DCP_CORE_CATALOG_ORDER_H

#include <dcp/tensor.h>

/* Indices of all pieces in that order; caller frees. NULL: out of memory. */
size_t *dcp_file_order(const struct dcp_catalog *catalog);

#endif
