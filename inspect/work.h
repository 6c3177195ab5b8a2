/* work: reading many tensors with a few threads and one progress bar. */
#ifndef INSPECT_WORK_H
#define INSPECT_WORK_H

#include "cli/main.h"
#include <pthread.h>

/* How much of a tensor is looked at in one piece. */
#define INSPECT_CHUNK_BYTES (2u << 20)

struct inspect_work {
    struct dcp_progress progress;
    uint64_t done_bytes, total_bytes;
    pthread_mutex_t lock; /* of done_bytes and progress */
};

/* One share of the items: first .. last-1, on a thread of its own. */
typedef int inspect_share(void *self, size_t first, size_t last,
                          struct inspect_work *work, struct dcp_error *err);

/* Cuts n items (of sizes[i] bytes each) into one share for each thread, about equal in
 * bytes, and does them. Errors: those of `share`. */
int inspect_work_run(struct dcp_main *m, const char *label, const uint64_t *sizes,
                     size_t n, inspect_share *share, void *self, struct dcp_error *err);

/* Tells that bytes were done. DCP_E_INTERRUPTED when the work is to end. */
int inspect_work_add(struct inspect_work *work, uint64_t bytes, struct dcp_error *err);

#endif
