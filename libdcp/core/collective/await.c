#include "await.h"
#include "base/clock.h"
#include "base/pool.h"

/* Who works comes back when an eighth of the time that went by has passed again. */
enum { FIRST_PAUSE_US = 100, LAST_PAUSE_US = 20000, SHARE = 8 };

int dcp_all_done(struct dcp_comm *comm, bool mine, bool *out_done, struct dcp_error *err)
{
    int64_t least = 0;
    int rc = dcp_comm_least(comm, mine, &least, err);

    *out_done = !rc && least;
    return rc;
}

void dcp_pause(struct dcp_group *group, uint64_t begin_ns)
{
    uint64_t us = (dcp_clock_ns() - begin_ns) / 1000 / SHARE;

    us = us > FIRST_PAUSE_US ? us : FIRST_PAUSE_US;
    dcp_group_done_within(group, us < LAST_PAUSE_US ? us : LAST_PAUSE_US);
}

/* Until the work is done on all ranks, or one of them is gone. */
static int poll_all(struct dcp_comm *comm, struct dcp_group *group, struct dcp_error *err)
{
    uint64_t begin = dcp_clock_ns();
    bool done = false;
    int rc = DCP_OK;

    while (!done && !rc) {
        rc = dcp_all_done(comm, !group || dcp_group_done(group), &done, err);
        if (!done && !rc && group)
            dcp_pause(group, begin);
    }
    return rc;
}

int dcp_await(struct dcp_comm *comm, int (*work)(void *arg, struct dcp_error *err),
              void *arg, struct dcp_error *err)
{
    struct dcp_pool *pool = NULL;
    struct dcp_group *group = NULL;
    struct dcp_error failure = { 0 };

    if (comm->world_size == 1)
        return work ? work(arg, err) : DCP_OK;
    int rc = work ? dcp_pool_new(1, &pool, &failure) : DCP_OK;
    if (!rc && work)
        rc = dcp_group_new(pool, &group, &failure);
    if (group)
        dcp_group_start(group, work, arg);
    int gone = poll_all(comm, group, err);
    if (group)
        rc = dcp_group_wait(group, &failure);
    dcp_group_free(group);
    dcp_pool_free(pool);
    if (gone)
        return gone;
    if (rc && err)
        *err = failure;
    return dcp_agree(comm, rc, err);
}
