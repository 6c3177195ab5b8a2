/* share: what writing some of a target's files found out, as bytes: a process that wrote
 * a part of a target tells it to the one that puts the parts together. */
#ifndef DCP_CORE_WRITE_SHARE_H
#define DCP_CORE_WRITE_SHARE_H

#include "base/buf.h"
#include "base/bytes.h"
#include "core/integrity/proof.h"
#include <dcp/tensor.h>

/* Whose files are whose: all parts and who joins them have it alike. */
struct dcp_shares {
    const int *part_of; /* of each writer, which is the rank of a file: a part, from 0 */
    int n_writers;
    size_t n_files; /* the catalog's once the target was opened; later ones depend on what
                     * was written */
};

struct dcp_share {
    const struct dcp_shares *of;
    int part;
    struct dcp_catalog *target;
    /* Each by tensor of the target. */
    uint64_t *parts;             /* of fingerprints of what was written */
    _Atomic uint64_t *src_parts; /* of what was read; NULL: nobody needs them */
    _Atomic uint64_t *overflows; /* NULL: nothing is cast */
    struct dcp_proof *proof;     /* of the source; NULL: it is not verified */
    uint64_t *shared_bytes;      /* with the source's files; NULL: nobody wants to know */
};

/* Appends sizes and digests of the part's files and pieces, and the rest as it is. */
void dcp_share_pack(const struct dcp_share *share, struct dcp_buf *buf);
/* Takes that into the catalog, and adds it to the rest: fingerprints by exclusive or.
 * Nothing is trusted: a file or piece must be the part's, be told once, and lie where the
 * plan has it. Errors: CORRUPT (it is no share of that part; or two parts read different
 * bytes in one place of the source), MEMORY. */
int dcp_share_unpack(const struct dcp_share *share, struct dcp_cursor *in,
                     struct dcp_error *err);
/* Whether all parts told: every file and piece has its digest. */
bool dcp_shares_complete(const struct dcp_catalog *target);

#endif
