#include "rank_threads.h"
#include "must.h"
#include <pthread.h>
#include <stdlib.h>

struct rank {
    void (*fn)(void *arg, struct dcp_comm *comm);
    void *arg;
    struct dcp_comm *comm;
    pthread_t thread;
};

static void *run(void *p)
{
    struct rank *rank = p;
    rank->fn(rank->arg, rank->comm);
    return NULL;
}

void rank_threads_run(int n, void (*fn)(void *arg, struct dcp_comm *comm), void *arg)
{
    struct dcp_comm *comms = calloc((size_t)n, sizeof *comms);
    struct rank *ranks = calloc((size_t)n, sizeof *ranks);

    must(comms && ranks && dcp_comm_threads(comms, n, NULL) == 0);
    for (int r = 0; r < n; r++) {
        ranks[r] = (struct rank){ .fn = fn, .arg = arg, .comm = &comms[r] };
        must(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]) == 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < n; r++)
        dcp_comm_free(&comms[r]);
    free(comms);
    free(ranks);
}
