#include "findings.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int by_place(const void *a, const void *b)
{
    const struct dcp_finding *x = a, *y = b;
    int order = !x->file - !y->file;

    if (!order && x->file)
        order = strcmp(x->file, y->file);
    if (order)
        return order;
    if (!x->tensor != !y->tensor) /* the file, then what lies in it */
        return x->tensor ? 1 : -1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

void dcp_findings_sort(struct dcp_finding *findings, size_t n)
{
    if (n)
        qsort(findings, n, sizeof *findings, by_place);
}

int dcp_findings_judge(const struct dcp_finding *findings, size_t n,
                       struct dcp_error *err)
{
    bool only_io = true;

    for (size_t d = 0; d < n; d++)
        only_io = only_io && findings[d].code == DCP_E_IO;
    if (only_io)
        return dcp_error_set(err, DCP_E_IO, "%zu %s could not be read", n,
                             n == 1 ? "file" : "files");
    return dcp_error_set(err, DCP_E_CORRUPT, "%zu corrupt %s", n,
                         n == 1 ? "range was found" : "ranges were found");
}
