/* blocks: verified reading of pieces, in bounded memory.
 *
 * A piece is read in blocks of DCP_BLOCK_BYTES raw bytes; a block's digest is checked,
 * and its codec undone, before any byte of it is handed out. A piece that lies in a
 * record with one checksum for all of it is read in the record's blocks, which go to a
 * proof. Whole blocks go straight to the caller, parts come from a small cache. Thread
 * rule: one reader, one thread. */
#ifndef DCP_CORE_READ_BLOCKS_H
#define DCP_CORE_READ_BLOCKS_H

#include "base/pool.h"
#include "core/integrity/proof.h"
#include <dcp/format.h>

struct dcp_blocks;

/* source and catalog are borrowed. memory_bytes bounds the cache (at least four blocks).
 */
int dcp_blocks_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                   uint64_t memory_bytes, bool verify, struct dcp_blocks **out_blocks,
                   struct dcp_error *err);
void dcp_blocks_free(struct dcp_blocks *blocks);
/* What one of them read to its cache the other one finds: both have all the memory, which
 * belongs to `with`, a reader of the same catalog. blocks has read nothing yet; it does
 * not read after `with` is freed. */
void dcp_blocks_share(struct dcp_blocks *blocks, struct dcp_blocks *with);
/* Records are checked from now on; `proof` is of the same catalog, borrowed, and shared
 * by all threads that read it. Who has read all that was wanted calls dcp_blocks_prove.
 */
void dcp_blocks_check_records(struct dcp_blocks *blocks, struct dcp_proof *proof);
/* From now on what is corrupt is read through the parity of the step, where it has one
 * and that gives it. */
void dcp_blocks_reconstruct(struct dcp_blocks *blocks);
/* The first corruption that was read so; code 0: none. */
const struct dcp_error *dcp_blocks_reconstructed(const struct dcp_blocks *blocks);

/* Whether any of those that share a cache read something so. For any thread; who was
 * given such bytes hears it. */
bool dcp_blocks_rebuild(const struct dcp_blocks *blocks);

/* Bytes begin .. begin + n of a piece's memory (its extent's raw bytes). Errors: CORRUPT,
 * naming the tensor, its elements, the file and its bytes; IO; NOT_FOUND (the file). */
int dcp_blocks_read(struct dcp_blocks *blocks, size_t piece, uint64_t begin, size_t n,
                    void *out, struct dcp_error *err);
/* The same of a piece that is stored as it is: these bytes alone, of which no digest says
 * anything. Errors: IO, NOT_FOUND, CORRUPT (they are not all there). */
int dcp_blocks_read_run(struct dcp_blocks *blocks, size_t piece, uint64_t begin, size_t n,
                        void *out, struct dcp_error *err);
/* Reads what is left of the records that were touched: every checksum holds, of what was
 * read. blocks are those of the pool's workers, which share a proof. Errors: as above. */
int dcp_blocks_prove(struct dcp_blocks *const *blocks, struct dcp_pool *pool,
                     struct dcp_error *err);
/* The same for n records, touched or not, and for one. */
int dcp_blocks_read_rests(struct dcp_blocks *const *blocks, struct dcp_pool *pool,
                          const size_t *records, size_t n, struct dcp_error *err);
int dcp_blocks_read_rest(struct dcp_blocks *blocks, size_t record, struct dcp_error *err);
/* Bytes read from files so far. */
uint64_t dcp_blocks_bytes(const struct dcp_blocks *blocks);
/* First and last element of the flattened tensor in bytes begin .. begin + n of a piece's
 * memory. */
void dcp_blocks_locate(const struct dcp_catalog *catalog, const struct dcp_piece *piece,
                       uint64_t begin, uint64_t n, int64_t *out_first, int64_t *out_last);
/* Where a block of raw_n bytes lies in the piece's file, and its bytes there. */
void dcp_blocks_extent(const struct dcp_piece *piece, uint64_t block, uint64_t raw_n,
                       uint64_t *out_offset, uint64_t *out_n);

#endif
