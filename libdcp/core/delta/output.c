#include "output.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

/* The folders of a file, from the outermost on: each once. */
static int make_folders(const struct dcp_delta_output *output, const char *name,
                        struct dcp_error *err)
{
    const struct dcp_store *store = output->store;
    DCP_CLEANUP_FREE char *path = dcp_str_join(output->prefix, name, "");

    if (!path)
        return dcp_error_memory(err, "a file name");
    char *slash = path + strlen(output->prefix);
    while ((slash = strchr(slash, '/'))) {
        struct dcp_error why = { 0 };
        *slash = '\0';
        int rc = store->ops->make_dir(store->self, path, &why);
        if (rc && rc != DCP_E_EXISTS) {
            if (err)
                *err = why;
            return rc;
        }
        *slash++ = '/';
    }
    return DCP_OK;
}

int dcp_delta_output_create(const struct dcp_delta_output *output, const char *name,
                            const char *suffix, uint64_t size_bytes,
                            struct dcp_store_file **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(output->prefix, name, suffix);

    *out = NULL;
    if (!path)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(make_folders(output, name, err));
    return output->store->ops->create(output->store->self, path, size_bytes, out, err);
}

int dcp_delta_output_close(const struct dcp_delta_output *output,
                           struct dcp_store_file *file, uint64_t size_bytes,
                           struct dcp_error *err)
{
    const struct dcp_store *store = output->store;
    int rc = store->ops->sync(store->self, file, size_bytes, err);
    int closed = store->ops->close(store->self, file, rc ? NULL : err);

    return rc ? rc : closed;
}

int dcp_delta_output_sync_folders(const struct dcp_delta_output *output, const char *file,
                                  struct dcp_error *err)
{
    const struct dcp_store *store = output->store;
    DCP_CLEANUP_FREE char *path = dcp_str_join(output->prefix, file, "");

    if (!path)
        return dcp_error_memory(err, "a file name");
    char *begin = path + strlen(output->prefix);
    for (char *slash = strrchr(begin, '/'); slash; slash = strrchr(begin, '/')) {
        *slash = '\0';
        DCP_TRY(store->ops->sync_dir(store->self, path, err));
    }
    return DCP_OK;
}
