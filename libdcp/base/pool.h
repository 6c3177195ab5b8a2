/* pool: a few threads and a queue of jobs. Groups of jobs are waited for together and
 * share one result: the first failure, with its sentence. */
#ifndef DCP_BASE_POOL_H
#define DCP_BASE_POOL_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_pool;
struct dcp_group; /* jobs that are waited for together */

/* n_threads >= 1. Errors: MEMORY. */
int dcp_pool_new(int n_threads, struct dcp_pool **out, struct dcp_error *err);
/* Waits for all jobs. */
void dcp_pool_free(struct dcp_pool *pool);
/* Workers of dcp_pool_for: the threads and the caller; 1 for NULL. */
int dcp_pool_workers(const struct dcp_pool *pool);

int dcp_group_new(struct dcp_pool *pool, struct dcp_group **out, struct dcp_error *err);
/* Waits for its jobs. */
void dcp_group_free(struct dcp_group *group);
/* Queues fn(arg, err). After a failure in the group, jobs not begun are skipped. When
 * there is no memory to queue it the job runs at once on the caller. Jobs may start jobs,
 * not wait. */
void dcp_group_start(struct dcp_group *group, int (*fn)(void *arg, struct dcp_error *err),
                     void *arg);
/* True when no job is queued or running. Does not wait. */
bool dcp_group_done(struct dcp_group *group);
/* The same, as soon as it is so, or false when so many microseconds have passed. */
bool dcp_group_done_within(struct dcp_group *group, uint64_t us);
/* True when one of its jobs failed since the last wait. */
bool dcp_group_failed(struct dcp_group *group);
/* Waits (the caller helps with queued jobs of the group), gives the first failure, and
 * readies the group for new jobs. */
int dcp_group_wait(struct dcp_group *group, struct dcp_error *err);

/* fn(arg, worker, i, err) for i in 0 .. n-1 over the pool and the caller; the first
 * failure. worker is 0 .. dcp_pool_workers - 1, and no two calls run with the same one at
 * once: it picks scratch memory. A NULL pool runs them in order on the caller. */
int dcp_pool_for(struct dcp_pool *pool, size_t n,
                 int (*fn)(void *arg, int worker, size_t i, struct dcp_error *err),
                 void *arg, struct dcp_error *err);

#endif
