/* Counts the operations that reach a store, and makes one of them, or all from one on,
 * fail. Hints and the end of a lease count as nothing: they cannot fail. */
#include "lib/fault.h"

#include <stdlib.h>

struct faulty {
    struct dcp_store_forward forward;
    struct dcp_store_ops passed; /* what happens when nothing strikes */
    struct fault *plan;
};

/* The next operation: true when it is to fail. */
static bool strikes(const struct faulty *faulty)
{
    uint64_t n = __atomic_add_fetch(&faulty->plan->count, 1, __ATOMIC_RELAXED);
    switch (faulty->plan->kind) {
    case FAULT_NONE:
        return false;
    case FAULT_FAIL:
    case FAULT_TEAR:
        return n == faulty->plan->at;
    case FAULT_STOP:
        return n >= faulty->plan->at;
    }
    return false;
}

static int fail(const struct faulty *faulty, const char *act, const char *name,
                struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_IO, "cannot %s '%s/%s': injected fault", act,
                         faulty->forward.inner->root, name);
}

static int fault_list(void *self, const char *dir, struct dcp_store_entry **out,
                      size_t *out_n, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    *out = NULL;
    *out_n = 0;
    if (strikes(faulty))
        return fail(faulty, "list", dir, err);
    return faulty->passed.list(self, dir, out, out_n, err);
}

static int fault_stat(void *self, const char *name, bool *out_is_dir,
                      uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "look at", name, err);
    return faulty->passed.stat(self, name, out_is_dir, out_size_bytes, err);
}

static int fault_open(void *self, const char *name, struct dcp_store_file **out,
                      struct dcp_error *err)
{
    const struct faulty *faulty = self;
    *out = NULL;
    if (strikes(faulty))
        return fail(faulty, "open", name, err);
    return faulty->passed.open(self, name, out, err);
}

static int fault_reopen(void *self, const char *name, struct dcp_store_file **out,
                        struct dcp_error *err)
{
    const struct faulty *faulty = self;
    *out = NULL;
    if (strikes(faulty))
        return fail(faulty, "open", name, err);
    return faulty->passed.reopen(self, name, out, err);
}

static int fault_create(void *self, const char *name, uint64_t size_bytes,
                        struct dcp_store_file **out, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    *out = NULL;
    if (strikes(faulty))
        return fail(faulty, "create", name, err);
    return faulty->passed.create(self, name, size_bytes, out, err);
}

static int fault_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                         void *out, size_t size_bytes, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "read", "a file", err);
    return faulty->passed.read_at(self, file, offset, out, size_bytes, err);
}

static int fault_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                          const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (!strikes(faulty))
        return faulty->passed.write_at(self, file, offset, data, size_bytes, err);
    if (faulty->plan->kind == FAULT_TEAR && size_bytes > 1)
        faulty->passed.write_at(self, file, offset, data, size_bytes / 2, NULL);
    return fail(faulty, "write", "a file", err);
}

/* Torn, only the first block of the range is shared. */
static int fault_clone(void *self, struct dcp_store_file *file, uint64_t offset, int from,
                       uint64_t from_offset, uint64_t size_bytes, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (!strikes(faulty))
        return faulty->passed.clone(self, file, offset, from, from_offset, size_bytes,
                                    err);
    if (faulty->plan->kind == FAULT_TEAR && size_bytes > 4096)
        faulty->passed.clone(self, file, offset, from, from_offset, 4096, NULL);
    return fail(faulty, "share blocks in", "a file", err);
}

static int fault_try_clone(void *self, int from, uint64_t *out_block_bytes,
                           struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "share blocks in", "", err);
    return faulty->passed.try_clone(self, from, out_block_bytes, err);
}

static int fault_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                      struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "sync", "a file", err);
    return faulty->passed.sync(self, file, size_bytes, err);
}

/* The file is freed whatever is returned, so the inner close happens in any case. */
static int fault_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    bool struck = strikes(faulty);
    int rc = faulty->passed.close(self, file, struck ? NULL : err);
    return struck ? fail(faulty, "close", "a file", err) : rc;
}

static int fault_make_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "make folder", name, err);
    return faulty->passed.make_dir(self, name, err);
}

static int fault_sync_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "sync folder", name, err);
    return faulty->passed.sync_dir(self, name, err);
}

static int fault_publish(void *self, const char *from, const char *to,
                         struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "publish", from, err);
    return faulty->passed.publish(self, from, to, err);
}

static int fault_exchange(void *self, const char *name, const char *other,
                          struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "exchange", name, err);
    return faulty->passed.exchange(self, name, other, err);
}

static int fault_replace(void *self, const char *name, const void *data,
                         size_t size_bytes, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "replace", name, err);
    return faulty->passed.replace(self, name, data, size_bytes, err);
}

static int fault_remove(void *self, const char *name, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "remove", name, err);
    return faulty->passed.remove(self, name, err);
}

static int fault_lock(void *self, struct dcp_error *err)
{
    const struct faulty *faulty = self;
    if (strikes(faulty))
        return fail(faulty, "lock", "", err);
    return faulty->passed.lock(self, err);
}

static void fault_free(void *self)
{
    free(self);
}

static const struct dcp_store_ops own_ways = {
    .list = fault_list,
    .stat = fault_stat,
    .open = fault_open,
    .reopen = fault_reopen,
    .create = fault_create,
    .read_at = fault_read_at,
    .write_at = fault_write_at,
    .try_clone = fault_try_clone,
    .clone = fault_clone,
    .sync = fault_sync,
    .close = fault_close,
    .make_dir = fault_make_dir,
    .sync_dir = fault_sync_dir,
    .publish = fault_publish,
    .replace = fault_replace,
    .remove = fault_remove,
    .lock = fault_lock,
    .free = fault_free,
    .exchange = fault_exchange,
};

int fault_store(struct dcp_store *out_store, const struct dcp_store *inner,
                struct fault *fault, struct dcp_error *err)
{
    *out_store = (struct dcp_store){ 0 };
    struct faulty *faulty = calloc(1, sizeof *faulty);
    if (!faulty)
        return dcp_error_memory(err, "a store with faults");
    dcp_store_forward(out_store, &faulty->forward, inner);
    faulty->passed = faulty->forward.ops;
    faulty->plan = fault;
    dcp_store_override(&faulty->forward, &own_ways);
    faulty->forward.ops.hold = NULL;
    return DCP_OK;
}
