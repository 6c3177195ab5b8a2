#include "pool.h"

#include "clock.h"
#include "mem.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

struct job {
    struct job *next;
    int (*fn)(void *arg, struct dcp_error *err);
    void *arg;
};

/* Everything in a group is guarded by its pool's lock. */
struct dcp_group {
    struct dcp_pool *pool;
    struct dcp_group *next_ready; /* in the pool's list, while it has queued jobs */
    struct job *first, *last;     /* queued, in order */
    size_t n_open;                /* jobs queued or running */
    int rc;                       /* of the first failure */
    struct dcp_error error;
    pthread_cond_t done; /* n_open became 0 */
};

struct dcp_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;                  /* a job was queued, or stop was set */
    struct dcp_group *ready, *last_ready; /* groups with queued jobs take turns */
    bool stop;
    int n_threads;
    pthread_t *threads;
};

/* Takes a job from the group, which leaves the ready list with its last one. */
static struct job *take_job(struct dcp_group *group)
{
    struct job *job = group->first;
    group->first = job->next;
    if (!group->first)
        group->last = NULL;
    return job;
}

static void push_ready(struct dcp_pool *pool, struct dcp_group *group)
{
    group->next_ready = NULL;
    if (pool->last_ready)
        pool->last_ready->next_ready = group;
    else
        pool->ready = group;
    pool->last_ready = group;
}

static void remove_ready(struct dcp_pool *pool, struct dcp_group *group)
{
    struct dcp_group *before = NULL;
    for (struct dcp_group *g = pool->ready; g != group; g = g->next_ready)
        before = g;
    if (before)
        before->next_ready = group->next_ready;
    else
        pool->ready = group->next_ready;
    if (pool->last_ready == group)
        pool->last_ready = before;
}

static void note_failure(struct dcp_group *group, int rc, const struct dcp_error *error)
{
    if (!rc || group->rc)
        return;
    group->rc = rc;
    group->error = *error;
    dcp_error_set(&group->error, rc, "%s", dcp_error_text(rc));
}

/* Runs a job that was taken. Called and returns with the lock held. */
static void run_job(struct dcp_pool *pool, struct dcp_group *group, struct job *job)
{
    if (!group->rc) {
        pthread_mutex_unlock(&pool->lock);
        struct dcp_error error = { 0 };
        int rc = job->fn(job->arg, &error);
        pthread_mutex_lock(&pool->lock);
        note_failure(group, rc, &error);
    }
    free(job);
    if (--group->n_open == 0)
        pthread_cond_broadcast(&group->done);
}

static void *work(void *arg)
{
    struct dcp_pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct dcp_group *group = pool->ready;
        if (!group && pool->stop)
            break;
        if (!group) {
            pthread_cond_wait(&pool->work, &pool->lock);
            continue;
        }
        remove_ready(pool, group);
        struct job *job = take_job(group);
        if (group->first)
            push_ready(pool, group);
        run_job(pool, group, job);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Signals are for the program's own threads: the pool's take none. */
static int start_threads(struct dcp_pool *pool, int n_threads)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->n_threads < n_threads &&
           pthread_create(&pool->threads[pool->n_threads], NULL, work, pool) == 0)
        pool->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool->n_threads;
}

int dcp_pool_new(int n_threads, struct dcp_pool **out, struct dcp_error *err)
{
    *out = NULL;
    if (n_threads < 1)
        n_threads = 1;
    struct dcp_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return dcp_error_memory(err, "a pool of threads");
    pool->threads = dcp_mem_calloc((size_t)n_threads, sizeof *pool->threads);
    if (!pool->threads) {
        free(pool);
        return dcp_error_memory(err, "a pool of threads");
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    if (start_threads(pool, n_threads) == 0) { /* fewer than wanted are enough */
        dcp_pool_free(pool);
        return dcp_error_memory(err, "a thread");
    }
    *out = pool;
    return DCP_OK;
}

void dcp_pool_free(struct dcp_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}

int dcp_pool_workers(const struct dcp_pool *pool)
{
    return pool ? pool->n_threads + 1 : 1;
}

int dcp_group_new(struct dcp_pool *pool, struct dcp_group **out, struct dcp_error *err)
{
    struct dcp_group *group = calloc(1, sizeof *group);
    *out = group;
    if (!group)
        return dcp_error_memory(err, "a group of jobs");
    group->pool = pool;
    pthread_condattr_t steady; /* whatever becomes of the time of day */
    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    pthread_cond_init(&group->done, &steady);
    pthread_condattr_destroy(&steady);
    return DCP_OK;
}

void dcp_group_free(struct dcp_group *group)
{
    if (!group)
        return;
    dcp_group_wait(group, NULL);
    pthread_cond_destroy(&group->done);
    free(group);
}

void dcp_group_start(struct dcp_group *group, int (*fn)(void *arg, struct dcp_error *err),
                     void *arg)
{
    struct dcp_pool *pool = group->pool;
    struct job *job = malloc(sizeof *job);
    if (job)
        *job = (struct job){ .fn = fn, .arg = arg };
    pthread_mutex_lock(&pool->lock);
    if (job) {
        group->n_open++;
        if (group->last)
            group->last->next = job;
        else
            group->first = job;
        if (!group->last)
            push_ready(pool, group);
        group->last = job;
        pthread_cond_signal(&pool->work);
    } else if (!group->rc) { /* no memory to queue it */
        pthread_mutex_unlock(&pool->lock);
        struct dcp_error error = { 0 };
        int rc = fn(arg, &error);
        pthread_mutex_lock(&pool->lock);
        note_failure(group, rc, &error);
    }
    pthread_mutex_unlock(&pool->lock);
}

bool dcp_group_done(struct dcp_group *group)
{
    pthread_mutex_lock(&group->pool->lock);
    bool done = group->n_open == 0;
    pthread_mutex_unlock(&group->pool->lock);
    return done;
}

bool dcp_group_failed(struct dcp_group *group)
{
    pthread_mutex_lock(&group->pool->lock);
    bool failed = group->rc != DCP_OK;
    pthread_mutex_unlock(&group->pool->lock);
    return failed;
}

bool dcp_group_done_within(struct dcp_group *group, uint64_t us)
{
    struct timespec end = dcp_clock_after_us(us);
    int rc = 0;

    pthread_mutex_lock(&group->pool->lock);
    while (group->n_open && !rc)
        rc = pthread_cond_timedwait(&group->done, &group->pool->lock, &end);
    bool done = group->n_open == 0;
    pthread_mutex_unlock(&group->pool->lock);
    return done;
}

int dcp_group_wait(struct dcp_group *group, struct dcp_error *err)
{
    struct dcp_pool *pool = group->pool;
    pthread_mutex_lock(&pool->lock);
    while (group->n_open) {
        if (!group->first) {
            pthread_cond_wait(&group->done, &pool->lock);
            continue;
        }
        struct job *job = take_job(group);
        if (!group->first)
            remove_ready(pool, group);
        run_job(pool, group, job);
    }
    int rc = group->rc;
    if (rc && err && !err->code)
        *err = group->error;
    group->rc = DCP_OK;
    group->error = (struct dcp_error){ 0 };
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

/* A loop shared by the threads: each takes the next index until none is left. */
struct loop {
    int (*fn)(void *arg, int worker, size_t i, struct dcp_error *err);
    void *arg;
    size_t n;
    size_t next;   /* atomic */
    int n_workers; /* atomic: runners that have begun */
    size_t failed; /* lowest index that failed so far, n: none; guarded by lock */
    pthread_mutex_t lock;
    struct dcp_error error;
    int rc;
};

static int run_loop(void *arg, struct dcp_error *err)
{
    (void)err; /* the loop keeps the failure of its lowest index itself */
    struct loop *loop = arg;
    int worker = __atomic_fetch_add(&loop->n_workers, 1, __ATOMIC_RELAXED);
    for (;;) {
        size_t i = __atomic_fetch_add(&loop->next, 1, __ATOMIC_RELAXED);
        if (i >= loop->n)
            return DCP_OK;
        struct dcp_error error = { 0 };
        int rc = loop->fn(loop->arg, worker, i, &error);
        if (!rc)
            continue;
        dcp_error_set(&error, rc, "%s", dcp_error_text(rc));
        pthread_mutex_lock(&loop->lock);
        if (i < loop->failed) {
            loop->failed = i;
            loop->rc = rc;
            loop->error = error;
        }
        pthread_mutex_unlock(&loop->lock);
        __atomic_store_n(&loop->next, loop->n, __ATOMIC_RELAXED);
    }
}

static int run_in_order(size_t n,
                        int (*fn)(void *arg, int worker, size_t i, struct dcp_error *err),
                        void *arg, struct dcp_error *err)
{
    for (size_t i = 0; i < n; i++)
        DCP_TRY(fn(arg, 0, i, err));
    return DCP_OK;
}

int dcp_pool_for(struct dcp_pool *pool, size_t n,
                 int (*fn)(void *arg, int worker, size_t i, struct dcp_error *err),
                 void *arg, struct dcp_error *err)
{
    struct dcp_group *group;
    if (!pool || n < 2 || dcp_group_new(pool, &group, NULL))
        return run_in_order(n, fn, arg, err);
    struct loop loop = { .fn = fn, .arg = arg, .n = n, .failed = n };
    pthread_mutex_init(&loop.lock, NULL);
    for (size_t i = 0; i + 1 < n && i < (size_t)pool->n_threads; i++)
        dcp_group_start(group, run_loop, &loop);
    run_loop(&loop, NULL);
    dcp_group_free(group);
    pthread_mutex_destroy(&loop.lock);
    if (loop.rc && err && !err->code)
        *err = loop.error;
    return loop.rc;
}
