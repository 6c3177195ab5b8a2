/* identity: what makes two parts parts of one job: the same source, the same target, the
 * same number of parts and the same version of the program. It is a text file in the
 * folder that the parts share; its lines tell which of these differs. */
#ifndef DCP_CORE_PARTS_IDENTITY_H
#define DCP_CORE_PARTS_IDENTITY_H

#include "base/buf.h"
#include <dcp/format.h>

struct dcp_identity_of_job {
    const struct dcp_source *source;
    const struct dcp_catalog *src;
    bool unproved; /* no digest tells the source's bytes: some of them are looked at */
    const struct dcp_target *target; /* open: its literals say what its files will */
    const int *src_tensor;
    int parity, n;
    bool no_verify;
};

/* Appends the text. It names no path: every machine gets the same. Errors: IO, CORRUPT,
 * MEMORY. */
int dcp_job_identify(const struct dcp_identity_of_job *job, struct dcp_buf *text,
                     struct dcp_error *err);
/* Holds the text of a job against ours; `where` is its folder, for people. Errors:
 * MISMATCH, CORRUPT. */
int dcp_job_compare(const char *text, const char *ours, const char *where,
                    struct dcp_error *err);
/* The number of parts that a text tells, or 0. */
int dcp_job_parts(const char *text);

#endif
