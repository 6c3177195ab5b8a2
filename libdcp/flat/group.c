#include "group.h"

#include "abi.h"

#include <stdlib.h>

struct dcp_flat_group {
    struct dcp_comm comm;
};

const struct dcp_comm *dcp_flat_group_comm(const struct dcp_flat_group *group)
{
    return &group->comm;
}

int32_t dcp_flat_group_open(const struct dcp_flat_group_options *options,
                            struct dcp_flat_group **out, struct dcp_flat_error *err)
{
    struct dcp_flat_group *group = calloc(1, sizeof *group);
    struct dcp_flat_group_options given;
    struct dcp_error why = { 0 };

    *out = NULL;
    if (!group) /* the others learn it by their time-out */
        return dcp_flat_fail(err, dcp_error_memory(&why, "a group of ranks"), &why);
    dcp_flat_take(&given, sizeof given, options);
    int rc = dcp_comm_tcp(&group->comm,
                          &(struct dcp_comm_tcp_options){ .rank = given.rank,
                                                          .world_size = given.world_size,
                                                          .host = given.host,
                                                          .port = given.port,
                                                          .job = given.job,
                                                          .timeout_ms = given.timeout_ms,
                                                          .secret = given.secret },
                          &why);
    group->comm.timeout_ms = given.timeout_ms;
    if (rc)
        free(group);
    else
        *out = group;
    return dcp_flat_fail(err, rc, &why);
}

void dcp_flat_group_close(struct dcp_flat_group *group)
{
    if (!group)
        return;
    dcp_comm_free(&group->comm);
    free(group);
}

int32_t dcp_flat_group_allgather(struct dcp_flat_group *group, const void *in,
                                 uint64_t size_bytes, void *out,
                                 struct dcp_flat_error *err)
{
    struct dcp_error why = { 0 };

    return dcp_flat_fail(
        err, dcp_comm_allgather(&group->comm, in, (size_t)size_bytes, out, &why), &why);
}
