#include "await.h"
#include "agree.h"
#include "base/pool.h"

enum { AT_WORK = -1 }; /* less than what any rank that is done says */
enum { PAUSE_US = 20000 };

int dcp_all_done(struct dcp_comm *comm, struct dcp_group *group, int rc, bool *out_done,
                 struct dcp_error *err)
{
    bool is_done = rc || !group || dcp_group_done(group);
    bool failed = rc || (is_done && group && dcp_group_failed(group));
    int64_t mine = is_done ? dcp_agree_vote(comm, failed) : AT_WORK, least = 0;
    int lost = dcp_comm_least(comm, mine, &least, err);

    *out_done = !lost && least != AT_WORK;
    if (!*out_done)
        return lost;
    if (group && !rc)
        rc = dcp_group_wait(group, err);
    return dcp_agree_on(comm, least, rc, err);
}

void dcp_pause(struct dcp_group *group)
{
    dcp_group_done_within(group, PAUSE_US);
}

/* Until the work is done on all ranks, or one of them is gone. */
static int poll_all(struct dcp_comm *comm, struct dcp_group *group, int rc,
                    struct dcp_error *err)
{
    for (;;) {
        bool done = false;
        if (group)
            dcp_pause(group);
        int failed = dcp_all_done(comm, group, rc, &done, err);
        if (failed || done)
            return failed;
    }
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
    rc = poll_all(comm, group, rc, &failure);
    if (group)
        dcp_group_wait(group, NULL); /* it is at work yet where a rank is gone */
    dcp_group_free(group);
    dcp_pool_free(pool);
    if (rc && err)
        *err = failure;
    return rc;
}
