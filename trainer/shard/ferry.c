#include "ferry.h"

#include "base/mem.h"
#include <stdlib.h>

struct buffer {
    void *data;
    uint64_t copy; /* the last one that it was in */
};

struct ferry {
    struct kernels kernels;
    struct buffer buffers[OPS_N_WAYS][2];
    int turn[OPS_N_WAYS];
    bool has_buffers;
};

int ferry_new(const struct kernels *kernels, bool buffers, struct ferry **out,
              struct dcp_error *err)
{
    struct ferry *f = dcp_mem_calloc(1, sizeof *f);
    int rc = f ? DCP_OK : dcp_error_memory(err, "copies to the host");
    *out = f;
    if (rc)
        return rc;
    f->kernels = *kernels;
    f->has_buffers = buffers;
    for (int i = 0; !rc && buffers && i < 2 * OPS_N_WAYS; i++)
        rc = kernels->ops->pin(kernels->ctx, FERRY_BUFFER, "buffers of copies",
                               &f->buffers[i / 2][i % 2].data, err);
    return rc;
}

void ferry_free(struct ferry *f)
{
    for (int i = 0; f && i < 2 * OPS_N_WAYS; i++)
        if (f->buffers[i / 2][i % 2].data)
            f->kernels.ops->unpin(f->kernels.ctx, f->buffers[i / 2][i % 2].data);
    free(f);
}

uint64_t ferry_bytes(const struct ferry *f)
{
    return f && f->has_buffers ? 2 * OPS_N_WAYS * FERRY_BUFFER : 0;
}

static uint64_t part(uint64_t size_bytes, uint64_t at)
{
    return size_bytes - at < FERRY_BUFFER ? size_bytes - at : FERRY_BUFFER;
}

static struct buffer *next_buffer(struct ferry *f, enum ops_way way)
{
    f->turn[way] = 1 - f->turn[way];
    return &f->buffers[way][f->turn[way]];
}

static int wait_for(struct ferry *f, enum ops_way way, const struct buffer *buffer,
                    struct dcp_error *err)
{
    return f->kernels.ops->carry_wait(f->kernels.ctx, way, buffer->copy, err);
}

/* What came to a buffer goes on to where it belongs. */
static int empty(struct ferry *f, const struct buffer *buffer, char *host,
                 uint64_t size_bytes, struct dcp_error *err)
{
    DCP_TRY(wait_for(f, OPS_TO_HOST, buffer, err));
    ops_cpu()->copy(NULL, host, buffer->data, size_bytes);
    return DCP_OK;
}

int ferry_down(struct ferry *f, void *host, bool pinned, const void *from,
               uint64_t size_bytes, uint64_t *out_copy, struct dcp_error *err)
{
    const struct ops *ops = f->kernels.ops;
    struct buffer *before = NULL;
    uint64_t at = 0, n = 0;
    *out_copy = 0;
    if (pinned) {
        *out_copy = ops->carry(f->kernels.ctx, OPS_TO_HOST, host, from, size_bytes, 0);
        return DCP_OK;
    }
    for (uint64_t next; at < size_bytes || before; at = next) {
        struct buffer *now = NULL;
        next = at + part(size_bytes, at);
        if (at < size_bytes) {
            now = next_buffer(f, OPS_TO_HOST);
            *out_copy = now->copy = ops->carry(f->kernels.ctx, OPS_TO_HOST, now->data,
                                               (const char *)from + at, next - at, 0);
        }
        if (before)
            DCP_TRY(empty(f, before, (char *)host + at - n, n, err));
        before = now;
        n = next - at;
    }
    return DCP_OK;
}

int ferry_up(struct ferry *f, void *to, const void *host, bool pinned,
             uint64_t size_bytes, uint64_t after_down, uint64_t *out_copy,
             struct dcp_error *err)
{
    const struct ops *ops = f->kernels.ops;
    uint64_t n;
    *out_copy = 0;
    if (pinned) {
        *out_copy =
            ops->carry(f->kernels.ctx, OPS_FROM_HOST, to, host, size_bytes, after_down);
        return DCP_OK;
    }
    for (uint64_t at = 0; at < size_bytes; at += n) {
        struct buffer *now = next_buffer(f, OPS_FROM_HOST);
        n = part(size_bytes, at);
        DCP_TRY(wait_for(f, OPS_FROM_HOST, now, err));
        ops_cpu()->copy(NULL, now->data, (const char *)host + at, n);
        *out_copy = now->copy = ops->carry(f->kernels.ctx, OPS_FROM_HOST, (char *)to + at,
                                           now->data, n, after_down);
    }
    return DCP_OK;
}
