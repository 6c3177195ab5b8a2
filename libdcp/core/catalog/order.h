/* order: the pieces of a catalog as they lie, by file, then by offset; and tensors of two
 * catalogs that are in one order. */
#ifndef DCP_CORE_CATALOG_ORDER_H
#define DCP_CORE_CATALOG_ORDER_H

#include <dcp/tensor.h>

/* Indices of all pieces in that order; caller frees. NULL: out of memory. */
size_t *dcp_file_order(const struct dcp_catalog *catalog);
/* As dcp_catalog_find, at once where the tensor follows the one that was found before it
 * (-1: none was). */
int dcp_catalog_find_after(const struct dcp_catalog *catalog, const char *name,
                           int before);
/* The tensor of src of the same name as each of dst, -1: there is none. Caller frees;
 * NULL: out of memory. */
int *dcp_catalog_same(const struct dcp_catalog *src, const struct dcp_catalog *dst);

#endif
