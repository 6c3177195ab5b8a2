#include "slow.h"

#include "base/clock.h"

static int slow_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                        void *out, size_t size_bytes, struct dcp_error *err)
{
    struct inspect_slow *slow = self;
    pthread_mutex_lock(&slow->lock);
    double now = dcp_clock_s();
    double begin = slow->free_at > now ? slow->free_at : now;
    slow->free_at = begin + (double)size_bytes / (double)slow->bytes_per_s;
    pthread_mutex_unlock(&slow->lock);
    if (begin > now)
        dcp_clock_sleep_us((uint64_t)((begin - now) * 1e6));
    return slow->inner->ops->read_at(slow->inner->self, file, offset, out, size_bytes,
                                     err);
}

static int slow_list(void *self, const char *dir, struct dcp_store_entry **out,
                     size_t *out_n, struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->list(slow->inner->self, dir, out, out_n, err);
}

static int slow_stat(void *self, const char *name, bool *out_is_dir,
                     uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->stat(slow->inner->self, name, out_is_dir, out_size_bytes,
                                  err);
}

static int slow_open(void *self, const char *name, struct dcp_store_file **out,
                     struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->open(slow->inner->self, name, out, err);
}

static int slow_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    const struct inspect_slow *slow = self;
    return slow->inner->ops->close(slow->inner->self, file, err);
}

static const struct dcp_store_ops slow_ops = {
    .list = slow_list,
    .stat = slow_stat,
    .open = slow_open,
    .read_at = slow_read_at,
    .close = slow_close,
};

void inspect_slow_init(struct inspect_slow *slow, const struct dcp_store *inner,
                       uint64_t bytes_per_s)
{
    *slow = (struct inspect_slow){ .inner = inner, .bytes_per_s = bytes_per_s };
    pthread_mutex_init(&slow->lock, NULL);
    slow->store = *inner;
    slow->store.ops = &slow_ops;
    slow->store.self = slow;
}

void inspect_slow_fini(struct inspect_slow *slow)
{
    pthread_mutex_destroy(&slow->lock);
}
