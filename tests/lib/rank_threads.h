/* world: n ranks as threads of one process, each with its comm. */
#ifndef TESTS_LIB_RANK_THREADS_H
#define TESTS_LIB_RANK_THREADS_H

#include <dcp/comm.h>

/* Runs fn(arg, comm) on a thread for each of n ranks; returns when all are done. */
void rank_threads_run(int n, void (*fn)(void *arg, struct dcp_comm *comm), void *arg);

#endif
