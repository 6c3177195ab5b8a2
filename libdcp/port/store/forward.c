/* Calls of another store, passed on one by one. */
#include <dcp/store.h>

#include "base/mem.h"

static const struct dcp_store *inner_of(void *self)
{
    return ((const struct dcp_store_forward *)self)->inner;
}

static int forward_list(void *self, const char *dir, struct dcp_store_entry **out,
                        size_t *out_n, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->list(inner->self, dir, out, out_n, err);
}

static int forward_stat(void *self, const char *name, bool *out_is_dir,
                        uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->stat(inner->self, name, out_is_dir, out_size_bytes, err);
}

static int forward_open(void *self, const char *name, struct dcp_store_file **out,
                        struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->open(inner->self, name, out, err);
}

static int forward_create(void *self, const char *name, uint64_t size_bytes,
                          struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->create(inner->self, name, size_bytes, out, err);
}

static int forward_reopen(void *self, const char *name, struct dcp_store_file **out,
                          struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->reopen(inner->self, name, out, err);
}

static int forward_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                           void *out, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->read_at(inner->self, file, offset, out, size_bytes, err);
}

static int forward_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                            const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->write_at(inner->self, file, offset, data, size_bytes, err);
}

static void forward_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                               uint64_t size_bytes)
{
    const struct dcp_store *inner = inner_of(self);
    inner->ops->flush_hint(inner->self, file, offset, size_bytes);
}

static int forward_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                        struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->sync(inner->self, file, size_bytes, err);
}

static int forward_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->close(inner->self, file, err);
}

static int forward_make_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->make_dir(inner->self, name, err);
}

static int forward_sync_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->sync_dir(inner->self, name, err);
}

static int forward_publish(void *self, const char *from, const char *to,
                           struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->publish(inner->self, from, to, err);
}

static int forward_exchange(void *self, const char *name, const char *other,
                            struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->exchange(inner->self, name, other, err);
}

static int forward_replace(void *self, const char *name, const void *data,
                           size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->replace(inner->self, name, data, size_bytes, err);
}

static int forward_remove(void *self, const char *name, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->remove(inner->self, name, err);
}

static int forward_lock(void *self, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->lock(inner->self, err);
}

static void forward_unlock(void *self)
{
    const struct dcp_store *inner = inner_of(self);
    inner->ops->unlock(inner->self);
}

static int forward_hold(void *self, const char *name, bool exclusive,
                        struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->hold(inner->self, name, exclusive, out, err);
}

static uint64_t forward_free_bytes(void *self)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->free_bytes(inner->self);
}

static bool forward_direct(void *self, struct dcp_store_file *file)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->direct(inner->self, file);
}

static int forward_descriptor(void *self, struct dcp_store_file *file)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->descriptor(inner->self, file);
}

static int forward_try_clone(void *self, int from, uint64_t *out_block_bytes,
                             struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->try_clone(inner->self, from, out_block_bytes, err);
}

static int forward_clone(void *self, struct dcp_store_file *file, uint64_t offset,
                         int from, uint64_t from_offset, uint64_t size_bytes,
                         struct dcp_error *err)
{
    const struct dcp_store *inner = inner_of(self);
    return inner->ops->clone(inner->self, file, offset, from, from_offset, size_bytes,
                             err);
}

static void forward_drop_cache(void *self, struct dcp_store_file *file)
{
    const struct dcp_store *inner = inner_of(self);
    inner->ops->drop_cache(inner->self, file);
}

static void forward_follow(void *self, bool follow)
{
    const struct dcp_store *inner = inner_of(self);
    inner->ops->follow(inner->self, follow);
}

void dcp_store_forward(struct dcp_store *out_store, struct dcp_store_forward *wrapper,
                       const struct dcp_store *inner)
{
    *wrapper = (struct dcp_store_forward){
        .inner = inner,
        .ops = {
            .list = forward_list,
            .stat = forward_stat,
            .open = forward_open,
            .create = forward_create,
            .reopen = forward_reopen,
            .read_at = forward_read_at,
            .write_at = forward_write_at,
            .flush_hint = inner->ops->flush_hint ? forward_flush_hint : NULL,
            .sync = forward_sync,
            .close = forward_close,
            .make_dir = forward_make_dir,
            .sync_dir = forward_sync_dir,
            .publish = forward_publish,
            .exchange = inner->ops->exchange ? forward_exchange : NULL,
            .replace = forward_replace,
            .remove = forward_remove,
            .lock = forward_lock,
            .unlock = forward_unlock,
            .hold = inner->ops->hold ? forward_hold : NULL,
            .free_bytes = forward_free_bytes,
            .direct = inner->ops->direct ? forward_direct : NULL,
            .descriptor = inner->ops->descriptor ? forward_descriptor : NULL,
            .try_clone = inner->ops->try_clone ? forward_try_clone : NULL,
            .clone = inner->ops->clone ? forward_clone : NULL,
            .drop_cache = inner->ops->drop_cache ? forward_drop_cache : NULL,
            .follow = inner->ops->follow ? forward_follow : NULL,
        },
    };
    *out_store = *inner;
    out_store->ops = &wrapper->ops;
    out_store->self = wrapper;
}

void dcp_store_override(struct dcp_store_forward *wrapper,
                        const struct dcp_store_ops *own)
{
    struct dcp_store_ops *ops = &wrapper->ops;

#define TAKE(call) ops->call = own->call && ops->call ? own->call : ops->call
    TAKE(list);
    TAKE(stat);
    TAKE(open);
    TAKE(create);
    TAKE(reopen);
    TAKE(read_at);
    TAKE(write_at);
    TAKE(flush_hint);
    TAKE(sync);
    TAKE(close);
    TAKE(make_dir);
    TAKE(sync_dir);
    TAKE(publish);
    TAKE(exchange);
    TAKE(replace);
    TAKE(remove);
    TAKE(lock);
    TAKE(unlock);
    TAKE(hold);
    TAKE(free_bytes);
    TAKE(drop_cache);
    TAKE(direct);
    TAKE(descriptor);
    TAKE(try_clone);
    TAKE(clone);
    TAKE(follow);
#undef TAKE
    ops->free = own->free;
}

/* -- a lease that is held ------------------------------------------------------------ */

struct leased {
    struct dcp_store_forward forward;
    struct dcp_store inner;
};

static int leased_lock(void *self, struct dcp_error *err)
{
    (void)self, (void)err;
    return DCP_OK;
}

static void leased_unlock(void *self)
{
    (void)self;
}

static void leased_free(void *self)
{
    struct leased *leased = self;
    leased->inner.ops->unlock(leased->inner.self);
    dcp_store_free(&leased->inner);
    free(leased);
}

int dcp_store_lease(struct dcp_store *store, struct dcp_error *err)
{
    if (store->ops->lock == leased_lock)
        return DCP_OK;
    struct leased *leased = calloc(1, sizeof *leased);
    if (!leased)
        return dcp_error_memory(err, "a lease");
    int rc = store->ops->lock(store->self, err);
    if (rc) {
        free(leased);
        return rc;
    }
    leased->inner = *store;
    dcp_store_forward(store, &leased->forward, &leased->inner);
    leased->forward.ops.lock = leased_lock;
    leased->forward.ops.unlock = leased_unlock;
    leased->forward.ops.free = leased_free;
    return DCP_OK;
}
