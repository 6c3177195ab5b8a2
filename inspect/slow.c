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
    const struct dcp_store *inner = slow->forward.inner;
    return inner->ops->read_at(inner->self, file, offset, out, size_bytes, err);
}

void inspect_slow_init(struct inspect_slow *slow, const struct dcp_store *inner,
                       uint64_t bytes_per_s)
{
    *slow = (struct inspect_slow){ .bytes_per_s = bytes_per_s };
    pthread_mutex_init(&slow->lock, NULL);
    dcp_store_forward(&slow->store, &slow->forward, inner);
    slow->forward.ops.read_at = slow_read_at;
}

void inspect_slow_fini(struct inspect_slow *slow)
{
    pthread_mutex_destroy(&slow->lock);
}
