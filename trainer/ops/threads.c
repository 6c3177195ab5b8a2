/* threads: those of kernels. */
#include "ops.h"
#include "simd.h"
#include <signal.h>
#ifdef _OPENMP
#include <omp.h>
#endif

int ops_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
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
