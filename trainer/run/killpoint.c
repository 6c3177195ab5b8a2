#include "killpoint.h"

#include "base/mem.h"
#include "base/str.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Programs for users have none: see tests/CMakeLists.txt. */
#ifndef DCP_KILLPOINTS
#define DCP_KILLPOINTS 0
#endif

#define SHARD_WRITE_BYTES 1024 /* a write so large belongs to a shard */

static void die(void)
{
    raise(SIGKILL);
}

static enum killpoint_where parse_where(const char *text)
{
    static const char *const words[] = {
        [KILL_STEP] = "step",
        [KILL_SAVE_WRITE] = "save-write",
        [KILL_SAVE_PUBLISH] = "save-publish",
    };
    for (size_t i = 1; i < DCP_ARRAY_LEN(words); i++)
        if (!strcmp(text, words[i]))
            return (enum killpoint_where)i;
    return KILL_NOWHERE;
}

int killpoint_read(struct killpoint *out_point, int rank, struct dcp_error *err)
{
    const char *text = DCP_KILLPOINTS ? getenv("DCP_TEST_KILL") : NULL;
    char copy[64], *step, *where = NULL;
    int64_t its_rank;
    out_point->where = KILL_NOWHERE;
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

void killpoint_step(const struct killpoint *point, int64_t step)
{
    if (point->where == KILL_STEP && point->step == step)
        die();
}

static bool is_due(const struct killpoint *point, enum killpoint_where where)
{
    return point->where == where && atomic_load(&point->saving) == point->step;
}

/* Every call goes to the store inside; two are watched. */
#define INNER(self) (&((struct killpoint *)(self))->inner)

static int kp_list(void *self, const char *dir, struct dcp_store_entry **out,
                   size_t *out_n, struct dcp_error *err)
{
    return INNER(self)->ops->list(INNER(self)->self, dir, out, out_n, err);
}

static int kp_stat(void *self, const char *name, bool *out_is_dir,
                   uint64_t *out_size_bytes, struct dcp_error *err)
{
    return INNER(self)->ops->stat(INNER(self)->self, name, out_is_dir, out_size_bytes,
                                  err);
}

static int kp_open(void *self, const char *name, struct dcp_store_file **out,
                   struct dcp_error *err)
{
    return INNER(self)->ops->open(INNER(self)->self, name, out, err);
}

static int kp_reopen(void *self, const char *name, struct dcp_store_file **out,
                     struct dcp_error *err)
{
    return INNER(self)->ops->reopen(INNER(self)->self, name, out, err);
}

static int kp_create(void *self, const char *name, uint64_t size_bytes,
                     struct dcp_store_file **out, struct dcp_error *err)
{
    return INNER(self)->ops->create(INNER(self)->self, name, size_bytes, out, err);
}

static int kp_read_at(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                      size_t size_bytes, struct dcp_error *err)
{
    return INNER(self)->ops->read_at(INNER(self)->self, file, offset, out, size_bytes,
                                     err);
}

static int kp_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                       const void *data, size_t size_bytes, struct dcp_error *err)
{
    bool kill = size_bytes >= SHARD_WRITE_BYTES && is_due(self, KILL_SAVE_WRITE);
    int rc = INNER(self)->ops->write_at(INNER(self)->self, file, offset, data,
                                        kill ? size_bytes / 2 : size_bytes, err);
    if (kill)
        die();
    return rc;
}

static void kp_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                          uint64_t size_bytes)
{
    if (INNER(self)->ops->flush_hint)
        INNER(self)->ops->flush_hint(INNER(self)->self, file, offset, size_bytes);
}

static int kp_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                   struct dcp_error *err)
{
    return INNER(self)->ops->sync(INNER(self)->self, file, size_bytes, err);
}

static int kp_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    return INNER(self)->ops->close(INNER(self)->self, file, err);
}

static int kp_make_dir(void *self, const char *name, struct dcp_error *err)
{
    return INNER(self)->ops->make_dir(INNER(self)->self, name, err);
}

static int kp_sync_dir(void *self, const char *name, struct dcp_error *err)
{
    return INNER(self)->ops->sync_dir(INNER(self)->self, name, err);
}

static int kp_publish(void *self, const char *from, const char *to, struct dcp_error *err)
{
    if (is_due(self, KILL_SAVE_PUBLISH))
        die();
    return INNER(self)->ops->publish(INNER(self)->self, from, to, err);
}

static int kp_replace(void *self, const char *name, const void *data, size_t size_bytes,
                      struct dcp_error *err)
{
    return INNER(self)->ops->replace(INNER(self)->self, name, data, size_bytes, err);
}

static int kp_remove(void *self, const char *name, struct dcp_error *err)
{
    return INNER(self)->ops->remove(INNER(self)->self, name, err);
}

static int kp_lock(void *self, struct dcp_error *err)
{
    return INNER(self)->ops->lock(INNER(self)->self, err);
}

static void kp_unlock(void *self)
{
    INNER(self)->ops->unlock(INNER(self)->self);
}

static uint64_t kp_free_bytes(void *self)
{
    return INNER(self)->ops->free_bytes(INNER(self)->self);
}

static void kp_drop_cache(void *self, struct dcp_store_file *file)
{
    if (INNER(self)->ops->drop_cache)
        INNER(self)->ops->drop_cache(INNER(self)->self, file);
}

static void kp_free(void *self)
{
    dcp_store_free(INNER(self));
}

static const struct dcp_store_ops killpoint_ops = {
    .list = kp_list,
    .stat = kp_stat,
    .open = kp_open,
    .reopen = kp_reopen,
    .create = kp_create,
    .read_at = kp_read_at,
    .write_at = kp_write_at,
    .flush_hint = kp_flush_hint,
    .sync = kp_sync,
    .close = kp_close,
    .make_dir = kp_make_dir,
    .sync_dir = kp_sync_dir,
    .publish = kp_publish,
    .replace = kp_replace,
    .remove = kp_remove,
    .lock = kp_lock,
    .unlock = kp_unlock,
    .free_bytes = kp_free_bytes,
    .drop_cache = kp_drop_cache,
    .free = kp_free,
};

void killpoint_store(struct killpoint *point, struct dcp_store *store)
{
    if (point->where != KILL_SAVE_WRITE && point->where != KILL_SAVE_PUBLISH)
        return;
    point->inner = *store;
    store->ops = &killpoint_ops;
    store->self = point;
}
