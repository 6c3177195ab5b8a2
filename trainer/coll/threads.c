/* Ranks as threads of one process. Each rank shows the others where its data are, all
 * meet at a barrier, each takes what it needs, all meet again. */
#include "coll.h"

#include "base/mem.h"
#include "parts.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#define TIMEOUT_S 60

struct group {
    pthread_mutex_t lock;
    pthread_cond_t met;
    int world_size, refs;
    bool broken; /* somebody timed out: nobody waits again */
    uint64_t turn;
    int n_here;
    bool *here; /* who waits at the barrier */
    const void **data;
    int (*color_keys)[2];
    struct group **splits; /* by first rank of a color */
};

struct member {
    struct group *group;
    int rank;
};

static void group_free(struct group *g)
{
    if (!g)
        return;
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->met);
    free(g->here);
    free(g->data);
    free(g->color_keys);
    free(g->splits);
    free(g);
}

static struct group *group_new(int world_size)
{
    struct group *g = dcp_mem_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    size_t n = (size_t)world_size;
    pthread_condattr_t attr;
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->met, &attr);
    pthread_condattr_destroy(&attr);
    g->world_size = g->refs = world_size;
    g->here = dcp_mem_calloc(n, sizeof *g->here);
    g->data = dcp_mem_calloc(n, sizeof *g->data);
    g->color_keys = dcp_mem_calloc(n, sizeof *g->color_keys);
    g->splits = dcp_mem_calloc(n, sizeof(struct group *));
    if (!g->here || !g->data || !g->color_keys || !g->splits) {
        group_free(g);
        return NULL;
    }
    return g;
}

static int member_of(struct group *g, int rank, struct coll *out_coll,
                     struct dcp_error *err);

/* Every rank comes here before any leaves. */
static int meet(struct member *m, struct dcp_error *err)
{
    struct group *g = m->group;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += TIMEOUT_S;
    pthread_mutex_lock(&g->lock);
    uint64_t turn = g->turn;
    g->here[m->rank] = true;
    if (++g->n_here == g->world_size) {
        memset(g->here, 0, (size_t)g->world_size * sizeof *g->here);
        g->n_here = 0;
        g->turn++;
        pthread_cond_broadcast(&g->met);
    }
    while (g->turn == turn && !g->broken)
        if (pthread_cond_timedwait(&g->met, &g->lock, &until) == ETIMEDOUT) {
            g->broken = true;
            pthread_cond_broadcast(&g->met);
        }
    int missing = -1;
    for (int r = 0; g->turn == turn && missing < 0 && r < g->world_size; r++)
        if (!g->here[r])
            missing = r;
    pthread_mutex_unlock(&g->lock);
    if (missing < 0)
        return DCP_OK;
    dcp_error_set(err, DCP_E_COMM, "rank %d did not join a collective within %d s",
                  missing, TIMEOUT_S);
    if (err) {
        err->rank = missing;
        err->rank_state = DCP_RANK_SILENT;
    }
    return DCP_E_COMM;
}

/* Shows `data` to the others; when it returns all are shown. */
static int show(struct member *m, const void *data, struct dcp_error *err)
{
    m->group->data[m->rank] = data;
    return meet(m, err);
}

static int threads_reduce_scatter(void *self, const int64_t *in, const int64_t *counts,
                                  int64_t *out, struct dcp_error *err)
{
    struct member *m = self;
    struct group *g = m->group;
    int64_t n = counts[m->rank], at = parts_before(counts, m->rank);
    DCP_CLEANUP_FREE const int64_t **parts =
        dcp_mem_calloc((size_t)g->world_size, sizeof(int64_t *));
    DCP_CLEANUP_FREE int64_t *sum = dcp_mem_calloc((size_t)n, sizeof *sum);
    int rc = show(m, in, err);
    if (rc)
        return rc;
    if (parts && sum) {
        for (int r = 0; r < g->world_size; r++)
            parts[r] = (const int64_t *)g->data[r] + at;
        coll_sum(parts, g->world_size, n, sum);
    }
    rc = meet(m, err); /* nobody reads `in` any more, so out may lie in it */
    if (rc)
        return rc;
    if (!parts || !sum)
        return dcp_error_memory(err, "a reduce-scatter");
    memcpy(out, sum, (size_t)n * sizeof *out);
    return DCP_OK;
}

static int threads_all_to_all(void *self, const void *in, const int64_t *counts,
                              int64_t begin, int64_t most, size_t item_bytes, void *out,
                              struct dcp_error *err)
{
    struct member *m = self;
    size_t at = (size_t)(parts_before(counts, m->rank) + begin) * item_bytes;
    size_t size_bytes = (size_t)coll_in_round(counts[m->rank], begin, most) * item_bytes;
    int rc = show(m, in, err);
    if (rc)
        return rc;
    for (int r = 0; size_bytes && r < m->group->world_size; r++)
        memcpy((char *)out + (size_t)r * size_bytes, (const char *)m->group->data[r] + at,
               size_bytes);
    return meet(m, err);
}

static int threads_all_gather(void *self, const void *in, const int64_t *counts,
                              size_t item_bytes, void *out, struct dcp_error *err)
{
    struct member *m = self;
    struct group *g = m->group;
    int rc = show(m, in, err);
    if (rc)
        return rc;
    char *to = out;
    for (int r = 0; r < g->world_size; r++) {
        size_t size_bytes = (size_t)counts[r] * item_bytes;
        if (g->data[r] != to)
            memcpy(to, g->data[r], size_bytes);
        to += size_bytes;
    }
    return meet(m, err);
}

static int threads_all_reduce(void *self, double *values, int n, struct dcp_error *err)
{
    struct member *m = self;
    struct group *g = m->group;
    size_t size_bytes = (size_t)n * sizeof *values;
    DCP_CLEANUP_FREE double *parts = dcp_mem_calloc((size_t)g->world_size, size_bytes);
    int rc = show(m, values, err);
    if (rc)
        return rc;
    for (int r = 0; parts && r < g->world_size; r++)
        memcpy(parts + (size_t)r * (size_t)n, g->data[r], size_bytes);
    rc = meet(m, err);
    if (rc)
        return rc;
    if (!parts)
        return dcp_error_memory(err, "an all-reduce");
    coll_tree_sum_f64(parts, g->world_size, n);
    memcpy(values, parts, size_bytes);
    return DCP_OK;
}

static int threads_split(void *self, int color, int key, struct coll *out_coll,
                         struct dcp_error *err)
{
    struct member *m = self;
    struct group *g = m->group;
    g->color_keys[m->rank][0] = color;
    g->color_keys[m->rank][1] = key;
    int rc = meet(m, err);
    if (rc)
        return rc;
    int first = g->world_size, place = 0, n = 0;
    for (int r = 0; r < g->world_size; r++) {
        const int *ck = g->color_keys[r];
        if (ck[0] != color)
            continue;
        n++;
        first = r < first ? r : first;
        place += ck[1] < key || (ck[1] == key && r < m->rank);
    }
    if (first == m->rank)
        g->splits[first] = group_new(n);
    rc = meet(m, err);
    if (rc)
        return rc;
    struct group *mine = g->splits[first];
    rc = meet(m, err); /* the slots are free for the next split */
    if (rc || !mine)
        return rc ? rc : dcp_error_memory(err, "a process group");
    return member_of(mine, place, out_coll, err);
}

static void leave(struct group *g)
{
    pthread_mutex_lock(&g->lock);
    bool last = --g->refs == 0;
    pthread_mutex_unlock(&g->lock);
    if (last)
        group_free(g);
}

static void threads_free(void *self)
{
    struct member *m = self;
    leave(m->group);
    free(m);
}

static const struct coll_ops threads_ops = {
    .reduce_scatter = threads_reduce_scatter,
    .all_to_all = threads_all_to_all,
    .all_gather = threads_all_gather,
    .all_reduce = threads_all_reduce,
    .split = threads_split,
    .free = threads_free,
};

static int member_of(struct group *g, int rank, struct coll *out_coll,
                     struct dcp_error *err)
{
    struct member *m = dcp_mem_calloc(1, sizeof *m);
    if (!m) {
        leave(g);
        return dcp_error_memory(err, "a rank");
    }
    *m = (struct member){ .group = g, .rank = rank };
    *out_coll = (struct coll){
        .ops = &threads_ops, .self = m, .rank = rank, .world_size = g->world_size
    };
    return DCP_OK;
}

int coll_threads(struct coll *out_colls, int world_size, struct dcp_error *err)
{
    struct group *g = group_new(world_size);
    if (!g)
        return dcp_error_memory(err, "ranks as threads");
    int rc = DCP_OK;
    for (int r = 0; r < world_size; r++)
        out_colls[r] = (struct coll){ .ops = NULL };
    for (int r = 0; r < world_size; r++)
        rc = member_of(g, r, &out_colls[r], err) ? DCP_E_MEMORY : rc;
    for (int r = 0; rc && r < world_size; r++)
        coll_free(&out_colls[r]);
    return rc;
}
