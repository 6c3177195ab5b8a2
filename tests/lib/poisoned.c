#include "lib/poisoned.h"

#include <string.h>

#define POISON 0xa5 /* a pattern that no test's data holds */

/* The host's device needs no self. */
static int alloc_staging(void *self, size_t size_bytes, void **out, struct dcp_error *err)
{
    struct dcp_device host;

    dcp_device_host(&host);
    int rc = host.ops->alloc_staging(self, size_bytes, out, err);
    if (!rc)
        memset(*out, POISON, size_bytes);
    return rc;
}

static void free_staging(void *self, void *staging, size_t size_bytes)
{
    struct dcp_device host;

    dcp_device_host(&host);
    host.ops->free_staging(self, staging, size_bytes);
}

static int to_host(void *self, void *host, const void *device, size_t size_bytes,
                   struct dcp_error *err)
{
    (void)self, (void)err;
    if (size_bytes)
        memcpy(host, device, size_bytes);
    return DCP_OK;
}

static int to_device(void *self, void *device, const void *host, size_t size_bytes,
                     struct dcp_error *err)
{
    return to_host(self, device, host, size_bytes, err);
}

static const struct dcp_device_ops poisoned_ops = {
    .alloc_staging = alloc_staging,
    .free_staging = free_staging,
    .to_host = to_host,
    .to_device = to_device,
};

void poisoned_device(struct dcp_device *out_device)
{
    *out_device = (struct dcp_device){ .ops = &poisoned_ops };
}
