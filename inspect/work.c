#include "work.h"

#include "base/mem.h"
#include "base/pool.h"

struct shares {
    inspect_share *share;
    void *self;
    struct inspect_work work;
    size_t *first; /* of each share; one more than there are */
};

static int run_share(void *arg, int worker, size_t i, struct dcp_error *err)
{
    (void)worker;
    struct shares *shares = arg;
    if (shares->first[i] == shares->first[i + 1])
        return DCP_OK;
    return shares->share(shares->self, shares->first[i], shares->first[i + 1],
                         &shares->work, err);
}

/* Ends a share when it has its part of all bytes. */
static void cut(size_t *first, size_t n_shares, const uint64_t *sizes, size_t n,
                uint64_t total)
{
    uint64_t sum = 0;
    size_t share = 0;
    for (size_t i = 0; i < n; i++) {
        sum += sizes[i];
        while (share + 1 < n_shares &&
               (double)sum >= (double)total * (double)(share + 1) / (double)n_shares)
            first[++share] = i + 1;
    }
    while (share < n_shares)
        first[++share] = n;
}

int inspect_work_run(struct dcp_main *m, const char *label, const uint64_t *sizes,
                     size_t n, inspect_share *share, void *self, struct dcp_error *err)
{
    size_t n_shares = m->threads > 0 ? (size_t)m->threads : 2;
    if (n_shares > n)
        n_shares = n ? n : 1;
    struct shares shares = { .share = share,
                             .self = self,
                             .work.lock = PTHREAD_MUTEX_INITIALIZER };
    DCP_CLEANUP_FREE size_t *first = dcp_mem_calloc(n_shares + 1, sizeof *first);
    if (!first)
        return dcp_error_memory(err, "the shares of the work");
    for (size_t i = 0; i < n; i++)
        shares.work.total_bytes += sizes[i];
    cut(first, n_shares, sizes, n, shares.work.total_bytes);
    shares.first = first;
    struct dcp_pool *pool = NULL;
    if (n_shares > 1)
        DCP_TRY(dcp_pool_new((int)n_shares - 1, &pool, err));
    shares.work.progress = dcp_main_progress(m, label);
    int rc = dcp_pool_for(pool, n_shares, run_share, &shares, err);
    dcp_main_progress_end(m);
    dcp_pool_free(pool);
    return rc;
}

int inspect_work_add(struct inspect_work *work, uint64_t bytes, struct dcp_error *err)
{
    pthread_mutex_lock(&work->lock);
    work->done_bytes += bytes;
    bool stop =
        work->progress.report(work->progress.self, work->done_bytes, work->total_bytes);
    pthread_mutex_unlock(&work->lock);
    return stop ? dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted") : DCP_OK;
}
