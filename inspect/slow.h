/* slow: a store that reads no faster than a rate, for work in the background. */
#ifndef INSPECT_SLOW_H
#define INSPECT_SLOW_H

#include <dcp/store.h>
#include <pthread.h>

struct inspect_slow {
    struct dcp_store_forward forward;
    struct dcp_store store; /* borrows this */
    pthread_mutex_t lock;
    uint64_t bytes_per_s;
    double free_at; /* when the next read may begin */
};
void inspect_slow_init(struct inspect_slow *slow, const struct dcp_store *inner,
                       uint64_t bytes_per_s);
void inspect_slow_fini(struct inspect_slow *slow);

#endif
