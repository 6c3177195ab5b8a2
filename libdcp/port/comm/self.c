#include <dcp/comm.h>

#include <string.h>

static int self_allgather(void *self, const void *in, size_t size_bytes, void *out,
                          int timeout_ms, struct dcp_error *err)
{
    (void)self;
    (void)timeout_ms;
    (void)err;
    if (size_bytes)
        memcpy(out, in, size_bytes);
    return DCP_OK;
}

static int self_bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                      struct dcp_error *err)
{
    (void)self;
    (void)data;
    (void)size_bytes;
    (void)root;
    (void)timeout_ms;
    (void)err;
    return DCP_OK;
}

static void self_free(void *self)
{
    (void)self;
}

static const struct dcp_comm_ops self_ops = {
    .allgather = self_allgather,
    .bcast = self_bcast,
    .free = self_free,
};

void dcp_comm_self(struct dcp_comm *out_comm)
{
    *out_comm = (struct dcp_comm){ .ops = &self_ops, .rank = 0, .world_size = 1 };
}
