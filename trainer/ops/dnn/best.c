/* best: the choice of kernels for the CPU. */
#include "dnn.h"
#ifdef _OPENMP
#include <omp.h>
#endif

const struct ops *ops_best(void)
{
    const struct ops *dnn = ops_dnn();
    return dnn ? dnn : ops_cpu();
}

void ops_set_threads(int n)
{
    n = n < 1 ? 1 : n;
#ifdef _OPENMP
    omp_set_num_threads(n);
#endif
    ops_dnn_set_threads(n);
}
