/* gather: rank 0 learns what the others wrote. */
#ifndef DCP_CORE_WRITE_GATHER_H
#define DCP_CORE_WRITE_GATHER_H

#include "finish.h"
#include <dcp/comm.h>

/* What was seen of the numbers while they were written. */
struct dcp_findings {
    bool diverged; /* some are not finite */
    bool learned;  /* some moment is not zero */
};

/* Collective, once the files of all ranks are durable. Rank 0 has those of all in its
 * catalog and the parts of all fingerprints in finish->parts afterwards, and the pieces
 * of all where an export is to be made of them; with parity all ranks have all files.
 * *findings are this rank's, and those of all on rank 0. Errors: CORRUPT, MEMORY, COMM.
 */
int dcp_gather_written(struct dcp_comm *comm, struct dcp_finish *finish,
                       struct dcp_findings *findings, struct dcp_error *err);

#endif
