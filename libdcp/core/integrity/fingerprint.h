/* fingerprint: the CRC-64/XZ of a tensor's global row-major bytes, from its pieces.
 *
 * CRC is linear over GF(2). The bytes of a tensor are the exclusive or of its parts, each
 * in its place with zeros around it, so the raw registers (no initial value, no final
 * xor) of the parts, each shifted by the bytes that follow it, add up to the register of
 * the whole. Where a part lies and who holds it does not matter: every sharding, world
 * size and codec gives the same number. Pure. */
#ifndef DCP_CORE_INTEGRITY_FINGERPRINT_H
#define DCP_CORE_INTEGRITY_FINGERPRINT_H

#include <dcp/tensor.h>

/* What elements at .. at + n of a region's own row-major memory give to the fingerprint:
 * `data` are their bytes, crc is their CRC-64/XZ. Parts are combined by exclusive or. */
uint64_t dcp_fingerprint_part(const struct dcp_tensor *tensor,
                              const struct dcp_region *region, int64_t at, int64_t n,
                              const void *data, uint64_t crc);
/* The same without their CRC. */
uint64_t dcp_fingerprint_read(const struct dcp_tensor *tensor,
                              const struct dcp_region *region, int64_t at, int64_t n,
                              const void *data);
/* The same for elements at .. at + n of a piece's memory, in which the axes may be
 * permuted; then crc is not looked at. */
uint64_t dcp_fingerprint_piece(const struct dcp_tensor *tensor,
                               const struct dcp_piece *piece, int64_t at, int64_t n,
                               const void *data, uint64_t crc);
/* The fingerprint from the exclusive or of all parts. */
uint64_t dcp_fingerprint_whole(const struct dcp_tensor *tensor, uint64_t parts);
/* Whether a piece repeats the one before it (pieces are sorted), which alone counts in a
 * fingerprint, and has another digest. */
bool dcp_replica_differs(const struct dcp_catalog *catalog, size_t piece);

#endif
