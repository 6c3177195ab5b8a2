/* copy: the one engine that moves tensor bytes. It carries out a plan piece by piece, any
 * part of a target piece at a time, in memory that does not grow with the checkpoint. */
#ifndef DCP_CORE_READ_COPY_H
#define DCP_CORE_READ_COPY_H

#include "blocks.h"
#include "core/plan/plan.h"
#include "scale.h"

/* What a copy works with: plain data, all borrowed. One for each thread, for blocks and
 * scratch. */
struct dcp_copier {
    const struct dcp_plan *plan;
    const struct dcp_catalog *src, *dst;
    struct dcp_blocks *blocks; /* reads src */
    unsigned char *scratch;    /* DCP_COPY_SCRATCH bytes, for casts */
    _Atomic uint64_t
        *overflows; /* NULL, or by tensor of dst: numbers that a cast made infinite */
    _Atomic uint64_t
        *src_parts; /* NULL, or by tensor of dst: fingerprint parts of what was read */
    bool raw;       /* pieces, which are plain, are read without their blocks */
    uint64_t *part; /* NULL, or what was read is added to this, as to the fingerprint of
                     * the source's tensor */
    struct dcp_scale scale; /* of the 8-bit weight that was cast last; dcp_scale_fini */
};
#define DCP_COPY_SCRATCH \
    (16u * DCP_BLOCK_BYTES) /* 16-byte elements for a block of 1-byte ones */

/* Whether parts of the pieces that fill piece p of dst can be read alone: they are stored
 * as they are, in the order that is wanted. */
bool dcp_copy_is_plain(const struct dcp_plan *plan, const struct dcp_catalog *src,
                       const struct dcp_catalog *dst, size_t p);

/* Elements begin .. end of a target piece to out, in the target's dtype. Errors: those of
 * dcp_blocks_read, UNSUPPORTED (no such cast). */
int dcp_copy_piece(struct dcp_copier *copier, size_t dst_piece, int64_t begin,
                   int64_t end, void *out, struct dcp_error *err);

#endif
