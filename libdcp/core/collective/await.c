#include "await.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

enum { FIRST_PAUSE_US = 200, LAST_PAUSE_US = 20000, USUAL_WORLD_SIZE = 1 << 16 };

int dcp_all_done(struct dcp_comm *comm, bool mine, unsigned char *flags, bool *out_done,
                 struct dcp_error *err)
{
    unsigned char flag = mine;
    int rc = dcp_comm_allgather(comm, &flag, 1, flags, err);

    *out_done = !rc;
    for (int r = 0; r < comm->world_size && !rc; r++)
        *out_done = *out_done && flags[r];
    return rc;
}

/* Until the work is done on all ranks, or one of them is gone. */
static int poll_all(struct dcp_comm *comm, struct dcp_group *group, unsigned char *flags,
                    struct dcp_error *err)
{
    uint64_t pause_us = FIRST_PAUSE_US;
    bool done = false;
    int rc = DCP_OK;

    while (!done && !rc) {
        rc = dcp_all_done(comm, !group || dcp_group_done(group), flags, &done, err);
        if (!done && !rc)
            dcp_clock_sleep_us(pause_us);
        pause_us = 2 * pause_us < LAST_PAUSE_US ? 2 * pause_us : LAST_PAUSE_US;
    }
    return rc;
}

int dcp_await(struct dcp_comm *comm, int (*work)(void *arg, struct dcp_error *err),
              void *arg, struct dcp_error *err)
{
    unsigned char usual[USUAL_WORLD_SIZE];
    DCP_CLEANUP_FREE unsigned char *more = NULL;
    struct dcp_pool *pool = NULL;
    struct dcp_group *group = NULL;
    struct dcp_error failure = { 0 };

    if (comm->world_size == 1)
        return work ? work(arg, err) : DCP_OK;
    if (comm->world_size > USUAL_WORLD_SIZE && !(more = malloc((size_t)comm->world_size)))
        return dcp_error_memory(
            err, "an agreement"); /* the others see this rank fall silent */
    int rc = work ? dcp_pool_new(1, &pool, &failure) : DCP_OK;
    if (!rc && work)
        rc = dcp_group_new(pool, &group, &failure);
    if (group)
        dcp_group_start(group, work, arg);
    int gone = poll_all(comm, group, more ? more : usual, err);
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
