/* check_ops: every kernel of a table against ops_cpu(), which computes in double: odd
 * sizes, each dtype, fresh random inputs, outputs poisoned before. */
#ifndef TESTS_LIB_CHECK_OPS_H
#define TESTS_LIB_CHECK_OPS_H

#include "trainer/ops/ops.h"

/* A group of cmocka's tests; returns how many failed. Arrays are where array_use says,
 * and the host can read them. Numbers in fp32 may be off by `bound` of their size.
 * `threads`: once more with several threads of the host. */
int check_ops(const struct ops *ops, double bound, bool threads);

/* Fixtures of cmocka: what follows runs with so many threads of the host. */
int check_ops_one_thread(void **state);
int check_ops_three_threads(void **state);

#endif
