#include "lib/poisoned.h"

#include <string.h>

#define POISON 0xa5 /* a pattern that no test's data holds */

static struct dcp_device_ops ops; /* the host's, but for this */

static int alloc_staging(void *self, size_t size_bytes, void **out, struct dcp_error *err)
{
    struct dcp_device host;

    dcp_device_host(&host);
    int rc = host.ops->alloc_staging(self, size_bytes, out, err);
    if (!rc)
        memset(*out, POISON, size_bytes);
    return rc;
}

void poisoned_device(struct dcp_device *out_device)
{
    dcp_device_host(out_device);
    ops = *out_device->ops;
    ops.alloc_staging = alloc_staging;
    out_device->ops = &ops;
    out_device->host_readable = 0;
}
