/* hash: XXH3-64 of blocks, CRC-64/XZ of pieces, CRC-32 of zip records.
 *
 * CRC is linear over GF(2): crcs of parts combine into the crc of the whole, and the part
 * that a scattered run gives to the crc of a large array can be computed alone (see
 * core/integrity/fingerprint.h). CRC-64/XZ: polynomial 0x42F0E1EBA9EA3693, reflected,
 * initial value and final xor all ones; `xz --check=crc64` computes it too. */
#ifndef DCP_BASE_HASH_H
#define DCP_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t dcp_hash_xxh3(const void *data, size_t size_bytes);
/* The same of bytes that come piece by piece. Caller frees; NULL: out of memory. */
struct dcp_xxh3;
struct dcp_xxh3 *dcp_hash_xxh3_new(void);
void dcp_hash_xxh3_add(struct dcp_xxh3 *hash, const void *data, size_t size_bytes);
/* Of what was added; begins anew. */
uint64_t dcp_hash_xxh3_end(struct dcp_xxh3 *hash);
void dcp_hash_xxh3_free(struct dcp_xxh3 *hash);

/* What is digested as soon as it was copied, so that the second look finds it in the
 * cache: memory is slower than any of these digests. */
#define DCP_HASH_SLICE ((size_t)256 << 10)

/* Continues a CRC-64/XZ; begin with crc 0. */
uint64_t dcp_hash_crc64(uint64_t crc, const void *data, size_t size_bytes);
/* The crc of A followed by B, from both crcs and B's length. */
uint64_t dcp_hash_crc64_combine(uint64_t crc_a, uint64_t crc_b, uint64_t size_b);
/* The crc of n zero bytes. */
uint64_t dcp_hash_crc64_zeros(uint64_t n);

/* Continues a raw CRC-64 register (no initial value, no final xor): linear. Begin with 0.
 */
uint64_t dcp_hash_crc64_raw(uint64_t reg, const void *data, size_t size_bytes);
/* The register after n more zero bytes: reg · x^(8n) mod P. */
uint64_t dcp_hash_crc64_shift(uint64_t reg, uint64_t n);
/* Turns a CRC-64/XZ of n bytes into their raw register, and back. */
uint64_t dcp_hash_crc64_to_raw(uint64_t crc, uint64_t n);
uint64_t dcp_hash_crc64_from_raw(uint64_t reg, uint64_t n);

/* Continues a CRC-32 (zip, gzip); begin with crc 0. */
uint32_t dcp_hash_crc32(uint32_t crc, const void *data, size_t size_bytes);
uint32_t dcp_hash_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

#endif
