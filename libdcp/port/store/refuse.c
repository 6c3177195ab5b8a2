#include "refuse.h"

static int refuse(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_UNSUPPORTED,
                         "an archive is written once, from front to back, and only read"
                         " afterwards");
}

static int refuse_list(void *self, const char *dir, struct dcp_store_entry **out,
                       size_t *out_n, struct dcp_error *err)
{
    (void)self, (void)dir;
    *out = NULL;
    *out_n = 0;
    return refuse(err);
}

static int refuse_stat(void *self, const char *name, bool *out_is_dir,
                       uint64_t *out_size_bytes, struct dcp_error *err)
{
    (void)self, (void)name, (void)out_is_dir, (void)out_size_bytes;
    return refuse(err);
}

static int refuse_open(void *self, const char *name, struct dcp_store_file **out,
                       struct dcp_error *err)
{
    (void)self, (void)name;
    *out = NULL;
    return refuse(err);
}

static int refuse_create(void *self, const char *name, uint64_t size_bytes,
                         struct dcp_store_file **out, struct dcp_error *err)
{
    (void)self, (void)name, (void)size_bytes;
    *out = NULL;
    return refuse(err);
}

static int refuse_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                          void *out, size_t size_bytes, struct dcp_error *err)
{
    (void)self, (void)file, (void)offset, (void)out, (void)size_bytes;
    return refuse(err);
}

static int refuse_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                           const void *data, size_t size_bytes, struct dcp_error *err)
{
    (void)self, (void)file, (void)offset, (void)data, (void)size_bytes;
    return refuse(err);
}

static int refuse_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                       struct dcp_error *err)
{
    (void)self, (void)file, (void)size_bytes;
    return refuse(err);
}

static int refuse_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    (void)self, (void)file;
    return refuse(err);
}

static int refuse_name(void *self, const char *name, struct dcp_error *err)
{
    (void)self, (void)name;
    return refuse(err);
}

static int refuse_names(void *self, const char *from, const char *to,
                        struct dcp_error *err)
{
    (void)self, (void)from, (void)to;
    return refuse(err);
}

static int refuse_replace(void *self, const char *name, const void *data,
                          size_t size_bytes, struct dcp_error *err)
{
    (void)self, (void)name, (void)data, (void)size_bytes;
    return refuse(err);
}

static int refuse_lock(void *self, struct dcp_error *err)
{
    (void)self;
    return refuse(err);
}

static void refuse_unlock(void *self)
{
    (void)self;
}

static uint64_t refuse_free_bytes(void *self)
{
    (void)self;
    return UINT64_MAX;
}

const struct dcp_store_ops dcp_store_refuse = {
    .list = refuse_list,
    .stat = refuse_stat,
    .open = refuse_open,
    .reopen = refuse_open,
    .create = refuse_create,
    .read_at = refuse_read_at,
    .write_at = refuse_write_at,
    .sync = refuse_sync,
    .close = refuse_close,
    .make_dir = refuse_name,
    .sync_dir = refuse_name,
    .publish = refuse_names,
    .replace = refuse_replace,
    .remove = refuse_name,
    .lock = refuse_lock,
    .unlock = refuse_unlock,
    .free_bytes = refuse_free_bytes,
};
