/* findings: what a verify found, in the order that it is told, and what it comes to. */
#ifndef DCP_CORE_VERIFY_FINDINGS_H
#define DCP_CORE_VERIFY_FINDINGS_H

#include <dcp/checkpoint.h>

/* By file, and in each by place: the file itself before what lies in it. */
void dcp_findings_sort(struct dcp_finding *findings, size_t n);
/* The error that they are. What cannot be read is not corrupt for all that is known: IO
 * where they are all such, else CORRUPT. There is one at least. */
int dcp_findings_judge(const struct dcp_finding *findings, size_t n,
                       struct dcp_error *err);

#endif
