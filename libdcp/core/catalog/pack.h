/* pack: catalogs and parts of them as bytes, for the control plane. The other end is a
 * rank of the same program, yet everything is checked as if it came from a file. */
#ifndef DCP_CORE_CATALOG_PACK_H
#define DCP_CORE_CATALOG_PACK_H

#include "base/buf.h"
#include "base/bytes.h"
#include <dcp/tensor.h>

/* A whole catalog, and back (a new one; caller owns). Errors: CORRUPT, MEMORY. */
int dcp_pack_catalog(const struct dcp_catalog *catalog, struct dcp_buf *buf,
                     struct dcp_error *err);
int dcp_unpack_catalog(const void *data, size_t size_bytes,
                       struct dcp_catalog **out_catalog, struct dcp_error *err);

/* A digest of the tensors alone, equal for equal lists. Errors: MEMORY. */
int dcp_pack_tensors_digest(const struct dcp_catalog *catalog, uint64_t *out,
                            struct dcp_error *err);
/* All pieces of a catalog, and adding them to another with the same tensors; rank >= 0
 * overrides theirs. */
void dcp_pack_pieces(const struct dcp_catalog *catalog, struct dcp_buf *buf);
int dcp_unpack_pieces(struct dcp_cursor *in, struct dcp_catalog *catalog, int rank,
                      struct dcp_error *err);
/* A region of a tensor of ndim dimensions, in few bytes; what was unpacked uses dims, and
 * is as unchecked as what it came from. */
void dcp_pack_region(const struct dcp_region *region, int ndim, struct dcp_buf *buf);
struct dcp_region dcp_unpack_region(struct dcp_cursor *in, int ndim,
                                    int64_t dims[2][DCP_MAX_NDIM]);
/* Files of one rank (-1: all), and adding them to another catalog. */
void dcp_pack_files(const struct dcp_catalog *catalog, int rank, struct dcp_buf *buf);
int dcp_unpack_files(struct dcp_cursor *in, struct dcp_catalog *catalog,
                     struct dcp_error *err);

#endif
