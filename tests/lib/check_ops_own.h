/* check_ops_own: the inside of check_ops, for check_ops*.c only. */
#ifndef TESTS_LIB_CHECK_OPS_OWN_H
#define TESTS_LIB_CHECK_OPS_OWN_H

#include "arrays.h"
#include "check_ops.h"

/* Both tables, opened once. */
struct pair {
    const struct ops *fast, *oracle;
    void *fast_ctx, *oracle_ctx;
};
extern struct pair both;
extern double f32_bound;
double bound_of(enum dcp_dtype dtype);
/* By how much the worst of the rows enlarges the rounding of its mean (if there is one)
   on the way to dx: over 1 only where a few numbers hardly vary. */
double norm_condition(int64_t rows, const float *mean, const float *rstd);

void check_ops_memory(void **state);
void check_ops_ranges(void **state);
void check_ops_quant(void **state);
void check_ops_llama(void **state);

#endif
