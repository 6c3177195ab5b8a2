/* reconstruction: a step with parity as it was written, whatever of it is lost or corrupt
 * since.
 *
 * Its store reads like the one below it, but every unit of a protected file is held
 * against its digest first, and rebuilt from its stripe when it is not what was written.
 * Slower than reading plainly, so it is for steps known to be corrupt. Thread rule: as
 * any store; stripes may be asked for on several threads. */
#ifndef DCP_CORE_PARITY_RECONSTRUCTION_H
#define DCP_CORE_PARITY_RECONSTRUCTION_H

#include "parity.h"

struct dcp_reconstruction;

/* The step in a folder of a store (borrowed until free). Caller owns. Errors: NOT_FOUND
 * (no parity file that can be read, and none in the manifest), CORRUPT (they do not agree
 * what is protected), IO, MEMORY. */
int dcp_reconstruction_open(const struct dcp_store *store, const char *folder,
                            struct dcp_reconstruction **out_rebuilt,
                            struct dcp_error *err);
void dcp_reconstruction_free(struct dcp_reconstruction *rebuilt);

/* The sorted catalog of a checkpoint, or its head (dcp_index_head); caller owns. Of a
 * native step of which a file is missing, or a manifest corrupt, through its parity if
 * that gives what is lost: *out_rebuilt (else NULL; caller owns) and *out_why, what was
 * wrong. Errors: those of index.
 */
int dcp_reconstruction_index(const struct dcp_source *source,
                             const struct dcp_format *format, bool head,
                             struct dcp_catalog **out_catalog,
                             struct dcp_reconstruction **out_rebuilt,
                             struct dcp_error *out_why, struct dcp_error *err);

/* Borrowed until free; only for reading. */
const struct dcp_store *dcp_reconstruction_store(
    const struct dcp_reconstruction *rebuilt);
const struct dcp_parity *dcp_reconstruction_parity(
    const struct dcp_reconstruction *rebuilt);
/* manifest.json as it was written, and whether the file is that. */
const void *dcp_reconstruction_manifest(const struct dcp_reconstruction *rebuilt,
                                        size_t *out_n, bool *out_intact);

/* What is known of a stripe. */
struct dcp_reconstruction_stripe {
    unsigned char *units[DCP_ERASURE_MAX_UNITS]; /* of the caller: columns, then parity */
    bool good[DCP_ERASURE_MAX_UNITS]; /* it was read, and is what was written; of a parity
                                       * file also the trailer */
    uint64_t digests[DCP_ERASURE_MAX_UNITS];
    bool proved; /* a trailer says what was written; if not, every parity file is lost
                  * here and columns are taken as they are */
};
/* Reads a stripe of a group and rebuilds what is not good. Errors: CORRUPT (more is lost
 * than there is parity for), MEMORY. */
int dcp_reconstruction_stripe(struct dcp_reconstruction *rebuilt, int group,
                              uint64_t stripe, struct dcp_reconstruction_stripe *at,
                              struct dcp_error *err);

#endif
