/* fold: the bits of all ranks, made one. */
#ifndef DCP_CORE_COLLECTIVE_FOLD_H
#define DCP_CORE_COLLECTIVE_FOLD_H

#include <dcp/comm.h>

enum dcp_fold { DCP_FOLD_OR, DCP_FOLD_XOR };

/* Collective. n bytes of every rank are folded into what all have afterwards. Rank 0 does
 * it, a slice of all ranks' at a time: nobody holds what grows with n and the world size.
 * Errors: MEMORY, COMM. */
int dcp_fold(struct dcp_comm *comm, enum dcp_fold how, void *bytes, size_t n,
             struct dcp_error *err);

#endif
