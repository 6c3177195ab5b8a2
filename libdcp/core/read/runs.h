/* runs: tensors of which every rank reads the bytes that it wants, and no more.
 *
 * A block has one digest, so who wants a part of it reads it all: of a tensor that was
 * saved in rows a rank that wants columns reads all rows. Here the ranks read their parts
 * alone, and prove them together. CRC is linear: where the regions that all ranks want
 * are the tensor, each element once, what was read of them adds up to its fingerprint,
 * and one wrong byte does not. Equal regions (replicas) must give the same.
 *
 * What does not add up, or could not be read, is read again by blocks, which name what is
 * corrupt. Rank 0 alone holds what grows with world size and tensors. */
#ifndef DCP_CORE_READ_RUNS_H
#define DCP_CORE_READ_RUNS_H

#include "core/plan/plan.h"
#include <dcp/comm.h>

struct dcp_runs;

/* Collective. Chooses such tensors of dst, where any rank has much to gain by it. src and
 * dst are sorted; from[t] is the tensor of src behind tensor t of dst, -1: none. They and
 * the plan are borrowed. rc and err are how this rank came here, and without rc 0 the
 * others are not looked at; all return alike. *out is NULL when there is no such tensor;
 * caller owns. Errors: MEMORY, COMM. */
int dcp_runs_choose(struct dcp_comm *comm, const struct dcp_plan *plan,
                    const struct dcp_catalog *src, const struct dcp_catalog *dst,
                    const int *from, int rc, struct dcp_runs **out,
                    struct dcp_error *err);
void dcp_runs_free(struct dcp_runs *runs);

/* Whether a tensor of dst is read so. runs may be NULL: none is. */
bool dcp_runs_has(const struct dcp_runs *runs, int tensor);
/* What was read of a piece of dst, in the dtype of the source, gives to the fingerprint;
 * rc: how reading ended. For each piece once or in parts, from any thread. */
void dcp_runs_note(struct dcp_runs *runs, size_t piece, uint64_t part, int rc);
/* Collective, once all is read. Afterwards dcp_runs_has tells which tensors are to be
 * read again by blocks; *out_again: some rank has one. Errors: MEMORY, COMM. */
int dcp_runs_prove(struct dcp_comm *comm, struct dcp_runs *runs, bool *out_again,
                   struct dcp_error *err);

#endif
