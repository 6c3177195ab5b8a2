/* Counts the operations that reach a store, and makes one of them, or all from one on,
 * fail. Hints and the end of a lease count as nothing: they cannot fail. */
#include <dcp/store.h>

#include "base/mem.h"

struct fault {
    const struct dcp_store *inner;
    struct dcp_fault *plan;
};

/* The next operation: true when it is to fail. */
static bool strikes(const struct fault *fault)
{
    uint64_t n = __atomic_add_fetch(&fault->plan->count, 1, __ATOMIC_RELAXED);
    switch (fault->plan->kind) {
    case DCP_FAULT_NONE:
        return false;
    case DCP_FAULT_FAIL:
    case DCP_FAULT_TEAR:
        return n == fault->plan->at;
    case DCP_FAULT_STOP:
        return n >= fault->plan->at;
    }
    return false;
}

static int fail(const struct fault *fault, const char *act, const char *name,
                struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_IO, "cannot %s '%s/%s': injected fault", act,
                         fault->inner->root, name);
}

static int fault_list(void *self, const char *dir, struct dcp_store_entry **out,
                      size_t *out_n, struct dcp_error *err)
{
    const struct fault *fault = self;
    *out = NULL;
    *out_n = 0;
    if (strikes(fault))
        return fail(fault, "list", dir, err);
    return fault->inner->ops->list(fault->inner->self, dir, out, out_n, err);
}

static int fault_stat(void *self, const char *name, bool *out_is_dir,
                      uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "look at", name, err);
    return fault->inner->ops->stat(fault->inner->self, name, out_is_dir, out_size_bytes,
                                   err);
}

static int fault_open(void *self, const char *name, struct dcp_store_file **out,
                      struct dcp_error *err)
{
    const struct fault *fault = self;
    *out = NULL;
    if (strikes(fault))
        return fail(fault, "open", name, err);
    return fault->inner->ops->open(fault->inner->self, name, out, err);
}

static int fault_reopen(void *self, const char *name, struct dcp_store_file **out,
                        struct dcp_error *err)
{
    const struct fault *fault = self;
    *out = NULL;
    if (strikes(fault))
        return fail(fault, "open", name, err);
    return fault->inner->ops->reopen(fault->inner->self, name, out, err);
}

static int fault_create(void *self, const char *name, uint64_t size_bytes,
                        struct dcp_store_file **out, struct dcp_error *err)
{
    const struct fault *fault = self;
    *out = NULL;
    if (strikes(fault))
        return fail(fault, "create", name, err);
    return fault->inner->ops->create(fault->inner->self, name, size_bytes, out, err);
}

static int fault_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                         void *out, size_t size_bytes, struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "read", "a file", err);
    return fault->inner->ops->read_at(fault->inner->self, file, offset, out, size_bytes,
                                      err);
}

static int fault_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                          const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct fault *fault = self;
    const struct dcp_store *inner = fault->inner;
    if (!strikes(fault))
        return inner->ops->write_at(inner->self, file, offset, data, size_bytes, err);
    if (fault->plan->kind == DCP_FAULT_TEAR && size_bytes > 1)
        inner->ops->write_at(inner->self, file, offset, data, size_bytes / 2, NULL);
    return fail(fault, "write", "a file", err);
}

static void fault_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                             uint64_t size_bytes)
{
    const struct fault *fault = self;
    if (fault->inner->ops->flush_hint)
        fault->inner->ops->flush_hint(fault->inner->self, file, offset, size_bytes);
}

static int fault_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                      struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "sync", "a file", err);
    return fault->inner->ops->sync(fault->inner->self, file, size_bytes, err);
}

/* The file is freed whatever is returned, so the inner close happens in any case. */
static int fault_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    const struct fault *fault = self;
    bool struck = strikes(fault);
    int rc = fault->inner->ops->close(fault->inner->self, file, struck ? NULL : err);
    return struck ? fail(fault, "close", "a file", err) : rc;
}

static int fault_make_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "make folder", name, err);
    return fault->inner->ops->make_dir(fault->inner->self, name, err);
}

static int fault_sync_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "sync folder", name, err);
    return fault->inner->ops->sync_dir(fault->inner->self, name, err);
}

static int fault_publish(void *self, const char *from, const char *to,
                         struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "publish", from, err);
    return fault->inner->ops->publish(fault->inner->self, from, to, err);
}

static int fault_exchange(void *self, const char *name, const char *other,
                          struct dcp_error *err)
{
    const struct fault *fault = self;
    if (!fault->inner->ops->exchange)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' cannot exchange names",
                             fault->inner->root);
    if (strikes(fault))
        return fail(fault, "exchange", name, err);
    return fault->inner->ops->exchange(fault->inner->self, name, other, err);
}

static int fault_replace(void *self, const char *name, const void *data,
                         size_t size_bytes, struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "replace", name, err);
    return fault->inner->ops->replace(fault->inner->self, name, data, size_bytes, err);
}

static int fault_remove(void *self, const char *name, struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "remove", name, err);
    return fault->inner->ops->remove(fault->inner->self, name, err);
}

static int fault_lock(void *self, struct dcp_error *err)
{
    const struct fault *fault = self;
    if (strikes(fault))
        return fail(fault, "lock", "", err);
    return fault->inner->ops->lock(fault->inner->self, err);
}

static void fault_unlock(void *self)
{
    const struct fault *fault = self;
    fault->inner->ops->unlock(fault->inner->self);
}

static uint64_t fault_free_bytes(void *self)
{
    const struct fault *fault = self;
    return fault->inner->ops->free_bytes(fault->inner->self);
}

static void fault_drop_cache(void *self, struct dcp_store_file *file)
{
    const struct fault *fault = self;
    if (fault->inner->ops->drop_cache)
        fault->inner->ops->drop_cache(fault->inner->self, file);
}

static void fault_free(void *self)
{
    free(self);
}

static const struct dcp_store_ops fault_ops = {
    .list = fault_list,
    .stat = fault_stat,
    .open = fault_open,
    .reopen = fault_reopen,
    .create = fault_create,
    .read_at = fault_read_at,
    .write_at = fault_write_at,
    .flush_hint = fault_flush_hint,
    .sync = fault_sync,
    .close = fault_close,
    .make_dir = fault_make_dir,
    .sync_dir = fault_sync_dir,
    .publish = fault_publish,
    .exchange = fault_exchange,
    .replace = fault_replace,
    .remove = fault_remove,
    .lock = fault_lock,
    .unlock = fault_unlock,
    .free_bytes = fault_free_bytes,
    .drop_cache = fault_drop_cache,
    .free = fault_free,
};

int dcp_store_fault(struct dcp_store *out_store, struct dcp_store *inner,
                    struct dcp_fault *fault, struct dcp_error *err)
{
    *out_store = (struct dcp_store){ 0 };
    struct fault *self = calloc(1, sizeof *self);
    if (!self)
        return dcp_error_memory(err, "a store with faults");
    *self = (struct fault){ .inner = inner, .plan = fault };
    *out_store = *inner;
    out_store->ops = &fault_ops;
    out_store->self = self;
    return DCP_OK;
}
