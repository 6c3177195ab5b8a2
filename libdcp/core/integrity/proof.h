/* proof: the checksums of records, gathered while they are read.
 *
 * Other programs' formats keep one checksum for all of a record, and pieces may be any
 * part of one. So a record is read in blocks, whatever piece asks for it; each block's
 * CRC is noted when it is read first, and once all were read they give that of the
 * record. What nobody asked for is read at the end: a record that was touched is checked
 * whole. CRC-32 combines: the blocks may come in any order, from any thread.
 *
 * Thread rule: dcp_proof_add from any; everything else before or after. */
#ifndef DCP_CORE_INTEGRITY_PROOF_H
#define DCP_CORE_INTEGRITY_PROOF_H

#include "base/buf.h"
#include "base/bytes.h"
#include <dcp/tensor.h>

struct dcp_proof;

/* The catalog is borrowed. Caller owns. Errors: MEMORY. */
int dcp_proof_new(const struct dcp_catalog *catalog, struct dcp_proof **out_proof,
                  struct dcp_error *err);
void dcp_proof_free(struct dcp_proof *proof);

/* The record that a piece lies in, and where it begins there; -1: in none. */
#define DCP_NO_RECORD (-1)
int64_t dcp_proof_record(const struct dcp_proof *proof, size_t piece, uint64_t *out_at);

/* Block `block` of a record's content was read. With it the record may be complete, then
 * its CRC-32 must be the one it has; where that stands behind the content, crc32 points
 * to it when the last block is given, whenever that is. Errors: CORRUPT (it is not; or
 * the block is not what was read before). */
int dcp_proof_add(struct dcp_proof *proof, size_t record, uint64_t block,
                  const void *data, size_t n, const uint32_t *crc32,
                  struct dcp_error *err);
/* A record could not be read as it is: `err` says why, and is told of the record. */
void dcp_proof_break(struct dcp_proof *proof, size_t record, struct dcp_error *err);
/* Whether that block was read before. */
bool dcp_proof_has(const struct dcp_proof *proof, size_t record, uint64_t block);

/* The records that were read in part, by index; caller frees. all: those that were not
 * read, too. Errors: MEMORY. */
int dcp_proof_open(const struct dcp_proof *proof, bool all, size_t **out_records,
                   size_t *out_n, struct dcp_error *err);
/* Whether a record was found to be corrupt. */
bool dcp_proof_is_broken(const struct dcp_proof *proof, size_t record);
/* Whether digests prove all of a tensor: its fingerprint, or for each of its pieces one
 * of the piece, of its blocks or of the record it lies in. */
bool dcp_proof_covers(const struct dcp_proof *proof, const struct dcp_tensor *tensor);
/* The first piece in a record, or n_pieces when none is. */
size_t dcp_proof_first_piece(const struct dcp_proof *proof, size_t record);

/* What was read, for another process: the CRC-32 of each block; and adding it to the
 * proof of the same catalog there, as if it were read there. Errors: those of
 * dcp_proof_add; CORRUPT also when it is of another source; nothing of it is trusted. */
void dcp_proof_pack(const struct dcp_proof *proof, struct dcp_buf *buf);
int dcp_proof_unpack(struct dcp_proof *proof, struct dcp_cursor *in,
                     struct dcp_error *err);

#endif
