/* prove: the end of a collective read of other programs' files: the records that ranks
 * have read in part are read whole, each by one of them. */
#ifndef DCP_CORE_READ_PROVE_H
#define DCP_CORE_READ_PROVE_H

#include "blocks.h"
#include <dcp/comm.h>

/* Collective. blocks: n readers of this rank, which share the proof; the catalog, of
 * n_records, is the same on all ranks. Errors: CORRUPT (a checksum differs), IO, MEMORY,
 * COMM. */
int dcp_prove(struct dcp_comm *comm, const struct dcp_proof *proof, size_t n_records,
              struct dcp_blocks *const *blocks, int n, struct dcp_error *err);

#endif
