#include "failpoint.h"

#include "base/mem.h"
#include "base/str.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Programs for users have none: see tests/CMakeLists.txt. */
#ifndef DCP_FAILPOINTS
#define DCP_FAILPOINTS 0
#endif

#define SHARD_WRITE_BYTES 1024 /* a write so large belongs to a shard */

static void die(void)
{
    raise(SIGKILL);
}

static enum failpoint_where parse_where(const char *text)
{
    static const char *const words[] = {
        [FAILPOINT_STEP] = "step",
        [FAILPOINT_SAVE_WRITE] = "save-write",
        [FAILPOINT_SAVE_PUBLISH] = "save-publish",
    };
    for (size_t i = 1; i < DCP_ARRAY_LEN(words); i++)
        if (!strcmp(text, words[i]))
            return (enum failpoint_where)i;
    return FAILPOINT_NOWHERE;
}

int failpoint_read(struct failpoint *out_point, int rank, struct dcp_error *err)
{
    const char *text = DCP_FAILPOINTS ? getenv("DCP_TEST_KILL") : NULL;
    char copy[64], *step, *where = NULL;
    int64_t its_rank;
    out_point->where = FAILPOINT_NOWHERE;
    if (!text)
        return DCP_OK;
    snprintf(copy, sizeof copy, "%s", text);
    step = strchr(copy, ':');
    if (step) {
        *step++ = '\0';
        where = strchr(step, ':');
    }
    if (where)
        *where++ = '\0';
    if (!where || !dcp_str_parse_i64(copy, &its_rank) ||
        !dcp_str_parse_i64(step, &out_point->step) || !parse_where(where))
        return dcp_error_set(err, DCP_E_USAGE,
                             "DCP_TEST_KILL is '%s', not rank:step:where with where one "
                             "of step, save-write, save-publish",
                             text);
    if (its_rank == rank)
        out_point->where = parse_where(where);
    return DCP_OK;
}

void failpoint_step(const struct failpoint *point, int64_t step)
{
    if (point->where == FAILPOINT_STEP && point->step == step)
        die();
}

static bool is_due(const struct failpoint *point, enum failpoint_where where)
{
    return point->where == where && atomic_load(&point->saving) == point->step;
}

/* --- the store, of which two calls are watched --- */

static int watch_write(void *self, struct dcp_store_file *file, uint64_t offset,
                       const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct failpoint *point = self;
    const struct dcp_store *inner = &point->inner;
    bool kill = size_bytes >= SHARD_WRITE_BYTES && is_due(point, FAILPOINT_SAVE_WRITE);
    int rc = inner->ops->write_at(inner->self, file, offset, data,
                                  kill ? size_bytes / 2 : size_bytes, err);
    if (kill)
        die();
    return rc;
}

static int watch_publish(void *self, const char *from, const char *to,
                         struct dcp_error *err)
{
    const struct failpoint *point = self;
    if (is_due(point, FAILPOINT_SAVE_PUBLISH))
        die();
    return point->inner.ops->publish(point->inner.self, from, to, err);
}

static void free_inner(void *self)
{
    dcp_store_free(&((struct failpoint *)self)->inner);
}

void failpoint_store(struct failpoint *point, struct dcp_store *store)
{
    if (point->where != FAILPOINT_SAVE_WRITE && point->where != FAILPOINT_SAVE_PUBLISH)
        return;
    point->inner = *store;
    dcp_store_forward(store, &point->forward, &point->inner);
    point->forward.ops.write_at = watch_write;
    point->forward.ops.publish = watch_publish;
    point->forward.ops.free = free_inner;
}
