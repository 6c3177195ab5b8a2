/* Over the control plane, for ranks that were started without MPI: the numbers of a step,
 * and what there is no better way for. Everything goes through rank 0, a round at a time.
 */
#include "coll.h"

#include "base/mem.h"
#include "parts.h"
#include <string.h>

#define ROUND_BYTES ((size_t)1 << 20) /* of one rank */

struct control {
    struct dcp_comm *comm; /* borrowed */
    char *mine, *all;      /* a round of this rank, of all */
};

/* For each rank a round of its own: it gets that part of everybody's. */
static int control_reduce_scatter(void *self, const int64_t *in, const int64_t *counts,
                                  int64_t *out, struct dcp_error *err)
{
    struct control *c = self;
    int world_size = c->comm->world_size;
    int64_t items = (int64_t)(ROUND_BYTES / sizeof *in);
    DCP_CLEANUP_FREE const int64_t **parts =
        dcp_mem_calloc((size_t)world_size, sizeof *parts);
    int rc = parts ? DCP_OK : dcp_error_memory(err, "a reduce-scatter");
    for (int owner = 0; !rc && owner < world_size; owner++) {
        const int64_t *part = in + parts_before(counts, owner);
        for (int64_t at = 0; !rc && at < counts[owner]; at += items) {
            int64_t n = coll_in_round(counts[owner], at, items);
            rc = dcp_comm_allgather(c->comm, part + at, (size_t)n * sizeof *in, c->all,
                                    err);
            for (int r = 0; r < world_size; r++)
                parts[r] = (const int64_t *)(void *)c->all + r * n;
            if (!rc && owner == c->comm->rank)
                coll_sum(parts, world_size, n, out + at);
        }
    }
    return rc;
}

/* As in reduce_scatter. */
static int control_all_to_all(void *self, const void *in, const int64_t *counts,
                              int64_t begin, int64_t most, size_t item_bytes, void *out,
                              struct dcp_error *err)
{
    struct control *c = self;
    int world_size = c->comm->world_size, rc = DCP_OK;
    int64_t items = (int64_t)(ROUND_BYTES / item_bytes);
    for (int owner = 0; !rc && owner < world_size; owner++) {
        int64_t n = coll_in_round(counts[owner], begin, most);
        const char *part =
            (const char *)in + (size_t)(parts_before(counts, owner) + begin) * item_bytes;
        for (int64_t at = 0; !rc && at < n; at += items) {
            size_t size_bytes = (size_t)coll_in_round(n, at, items) * item_bytes;
            rc = dcp_comm_allgather(c->comm, part + (size_t)at * item_bytes, size_bytes,
                                    c->all, err);
            for (int r = 0; !rc && owner == c->comm->rank && r < world_size; r++)
                memcpy((char *)out + (size_t)(r * n + at) * item_bytes,
                       c->all + (size_t)r * size_bytes, size_bytes);
        }
    }
    return rc;
}

static int control_all_gather(void *self, const void *in, const int64_t *counts,
                              size_t item_bytes, void *out, struct dcp_error *err)
{
    struct control *c = self;
    int world_size = c->comm->world_size, rank = c->comm->rank, rc = DCP_OK;
    int64_t items = (int64_t)(ROUND_BYTES / item_bytes),
            most = parts_largest(counts, world_size);
    for (int64_t at = 0; !rc && at < most; at += items) {
        size_t room = (size_t)coll_in_round(most, at, items) * item_bytes;
        size_t mine = (size_t)coll_in_round(counts[rank], at, items) * item_bytes;
        memset(c->mine, 0, room);
        if (mine)
            memcpy(c->mine, (const char *)in + (size_t)at * item_bytes, mine);
        rc = dcp_comm_allgather(c->comm, c->mine, room, c->all, err);
        for (int r = 0; !rc && r < world_size; r++) {
            size_t theirs = (size_t)coll_in_round(counts[r], at, items) * item_bytes;
            char *to = (char *)out + (size_t)(parts_before(counts, r) + at) * item_bytes;
            if (theirs)
                memcpy(to, c->all + (size_t)r * room, theirs);
        }
    }
    return rc;
}

static int control_all_reduce(void *self, double *values, int n, struct dcp_error *err)
{
    struct control *c = self;
    int items = (int)(ROUND_BYTES / sizeof *values), rc = DCP_OK;
    for (int at = 0; !rc && at < n; at += items) {
        int size = n - at < items ? n - at : items;
        double *all = (double *)(void *)c->all;
        rc = dcp_comm_allgather(c->comm, values + at, (size_t)size * sizeof *values, all,
                                err);
        if (rc)
            break;
        coll_tree_sum_f64(all, c->comm->world_size, size);
        memcpy(values + at, all, (size_t)size * sizeof *values);
    }
    return rc;
}

static void control_free(void *self)
{
    struct control *c = self;
    if (!c)
        return;
    free(c->mine);
    free(c->all);
    free(c);
}

/* All ranks once more, in their order; the control plane knows no groups. */
static int control_split(void *self, int color, int key, struct coll *out_coll,
                         struct dcp_error *err)
{
    struct control *c = self;
    int *colors = (int *)(void *)c->all;
    int rc = dcp_comm_allgather(c->comm, &color, sizeof color, colors, err);
    (void)key;
    for (int r = 0; !rc && r < c->comm->world_size; r++)
        if (colors[r] != colors[0]) {
            dcp_error_set(err, DCP_E_UNSUPPORTED,
                          "process groups need MPI, or NCCL and a GPU for each rank");
            dcp_error_hint(err, "start it with mpirun");
            return DCP_E_UNSUPPORTED;
        }
    return rc ? rc : coll_control(out_coll, c->comm, err);
}

static const struct coll_ops control_ops = {
    .reduce_scatter = control_reduce_scatter,
    .all_to_all = control_all_to_all,
    .all_gather = control_all_gather,
    .all_reduce = control_all_reduce,
    .split = control_split,
    .free = control_free,
};

int coll_control(struct coll *out_coll, struct dcp_comm *comm, struct dcp_error *err)
{
    struct control *c = dcp_mem_calloc(1, sizeof *c);
    if (c) {
        c->comm = comm;
        c->mine = dcp_mem_calloc(1, ROUND_BYTES);
        c->all = dcp_mem_calloc((size_t)comm->world_size, ROUND_BYTES);
    }
    if (!c || !c->mine || !c->all) {
        control_free(c);
        return dcp_error_memory(err, "collectives");
    }
    *out_coll = (struct coll){
        .ops = &control_ops, .self = c, .rank = comm->rank, .world_size = comm->world_size
    };
    return DCP_OK;
}
