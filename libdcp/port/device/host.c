#include <dcp/device.h>

#include "base/mem.h"
#include <string.h>

#define STAGING_ALIGN 4096 /* a page: what direct I/O and pinned memory would ask for */

static int host_alloc_staging(void *self, size_t size_bytes, void **out,
                              struct dcp_error *err)
{
    (void)self;
    *out = dcp_mem_aligned(STAGING_ALIGN, size_bytes);
    return *out ? DCP_OK : dcp_error_memory(err, "staging");
}

static void host_free_staging(void *self, void *staging, size_t size_bytes)
{
    (void)self;
    (void)size_bytes;
    free(staging);
}

static int host_to_host(void *self, void *host, const void *device, size_t size_bytes,
                        struct dcp_error *err)
{
    (void)self;
    (void)err;
    if (size_bytes)
        memcpy(host, device, size_bytes);
    return DCP_OK;
}

static int host_to_device(void *self, void *device, const void *host, size_t size_bytes,
                          struct dcp_error *err)
{
    return host_to_host(self, device, host, size_bytes, err);
}

static const struct dcp_device_ops host_ops = {
    .alloc_staging = host_alloc_staging,
    .free_staging = host_free_staging,
    .to_host = host_to_host,
    .to_device = host_to_device,
};

void dcp_device_host(struct dcp_device *out_device)
{
    *out_device = (struct dcp_device){ .ops = &host_ops, .host_readable = 1 };
}

int dcp_device_reads(const struct dcp_device *device, const void *data)
{
    return device->host_readable ||
           (device->ops->is_host && device->ops->is_host(device->self, data));
}

void dcp_device_free(struct dcp_device *device)
{
    if (device && device->ops && device->ops->free)
        device->ops->free(device->self);
    if (device)
        *device = (struct dcp_device){ 0 };
}
