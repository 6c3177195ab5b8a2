/* ops: the choice of kernels, and the threads. */
#include "ops.h"
#include "ops_dnn.h"
#include "ops_simd.h"
#include <signal.h>
#ifdef _OPENMP
#include <omp.h>
#endif

const struct ops *ops_best(void)
{
    const struct ops *dnn = ops_dnn();
    return dnn ? dnn : ops_cpu();
}

int ops_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void ops_set_threads(int n)
{
    n = n < 1 ? 1 : n;
#ifdef _OPENMP
    omp_set_num_threads(n);
#endif
    ops_dnn_set_threads(n);
}

void ops_start_threads(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#ifdef _OPENMP
#pragma omp parallel
    (void)omp_get_thread_num();
#endif
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
