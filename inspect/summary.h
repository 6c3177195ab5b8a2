/* summary: what the numbers of a tensor are like, from seeing each once. */
#ifndef INSPECT_SUMMARY_H
#define INSPECT_SUMMARY_H

#include "histogram.h"
#include <dcp/tensor.h>

struct inspect_summary {
    uint64_t n; /* numbers; a complex element is two */
    uint64_t n_nan, n_inf, n_zero;
    double min, max;              /* of the finite ones; min > max when there are none */
    long double sum, sum_squares; /* likewise */
    struct inspect_histogram histogram;
};

void inspect_summary_init(struct inspect_summary *summary);
void inspect_summary_add(struct inspect_summary *summary, const double *values, size_t n);

/* Of the finite numbers; NaN when there are none. The norm is the Euclidean one. */
double inspect_summary_mean(const struct inspect_summary *summary);
double inspect_summary_deviation(const struct inspect_summary *summary);
double inspect_summary_norm(const struct inspect_summary *summary);

#endif
