/* device: memory that the host may not be able to read, and the way its bytes get out.
 * Thread rule: the calls of one device may come from several threads. */
#ifndef DCP_DEVICE_H
#define DCP_DEVICE_H

#include <dcp/error.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dcp_device_ops {
    /* Host memory that transfers to and from the device are fast with. */
    int (*alloc_staging)(void *self, size_t size_bytes, void **out,
                         struct dcp_error *err);
    void (*free_staging)(void *self, void *staging, size_t size_bytes);
    /* Copy between device memory and host memory; done when they return. */
    int (*to_host)(void *self, void *host, const void *device, size_t size_bytes,
                   struct dcp_error *err);
    int (*to_device)(void *self, void *device, const void *host, size_t size_bytes,
                     struct dcp_error *err);
    void (*free)(void *self); /* optional */
    /* Optional: 1 where `data` is memory of the host, which a state may be in as well:
     * what a trainer offloads from the device. */
    int (*is_host)(void *self, const void *data);
};

struct dcp_device {
    const struct dcp_device_ops *ops;
    void *self;
    int host_readable; /* 1: data pointers may be read and written directly */
};

/* The host's own memory. Needs no freeing. */
DCP_PUBLIC void dcp_device_host(struct dcp_device *out_device);

/* The memory of a CUDA device, by CUDA's number of it, in libdcp_cuda; tensors may also
 * lie in the host's, pinned or not. What computes in memory must have finished before a
 * save takes it, and a load is complete when it returns: copies run on a stream that
 * waits for no other. Caller owns, dcp_device_free. Errors: UNSUPPORTED (no such device,
 * or no driver that fits), MEMORY. */
DCP_PUBLIC int dcp_device_cuda(struct dcp_device *out_device, int number,
                               struct dcp_error *err);

/* Whether the host may read and write there itself. */
DCP_PUBLIC int dcp_device_reads(const struct dcp_device *device, const void *data);

/* Frees what self points to; a zeroed device is fine. */
DCP_PUBLIC void dcp_device_free(struct dcp_device *device);

#ifdef __cplusplus
}
#endif
#endif
