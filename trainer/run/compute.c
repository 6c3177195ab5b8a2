#include "compute.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

int compute_check(enum compute_device wanted, struct dcp_error *err)
{
    if (wanted != COMPUTE_CUDA || DCP_HAS_CUDA)
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "this dcp-train was built without kernels for CUDA");
    dcp_error_hint(err, "--device cpu, or build it where the CUDA Toolkit is installed");
    return DCP_E_UNSUPPORTED;
}

static void take_cpu(struct compute *compute)
{
    compute->ops = ops_best();
    snprintf(compute->name, sizeof compute->name, "CPU (%s)", compute->ops->name);
}

#if DCP_HAS_CUDA

/* Whether all ranks have a GPU, and each one of its own. */
static int compare(struct join *join, struct compute *compute, bool *out_all,
                   struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct compute_gpu *gpus =
        dcp_mem_calloc((size_t)join->world_size, sizeof *gpus);
    int rc = gpus ? DCP_OK : dcp_error_memory(err, "the GPUs of all ranks");
    rc = dcp_agree(&join->comm, rc, err);
    if (!rc)
        rc = dcp_comm_allgather(&join->comm, &compute->gpu, sizeof *gpus, gpus, err);
    *out_all = compute->own_gpu = !rc;
    for (int r = 0; !rc && r < join->world_size; r++) {
        *out_all = *out_all && gpus[r].is_open;
        for (int other = 0; other < r; other++)
            if (!memcmp(gpus[r].uuid, gpus[other].uuid, sizeof gpus[r].uuid))
                compute->own_gpu = false;
    }
    return rc;
}

int compute_open(enum compute_device wanted, struct join *join,
                 struct compute *out_compute, struct dcp_error *err)
{
    struct compute *compute = out_compute;
    struct dcp_error why = { 0 };
    bool all = false;
    *compute = (struct compute){ .ops = NULL };
    if (wanted == COMPUTE_CPU) {
        take_cpu(compute);
        return DCP_OK;
    }
    int opened = compute_module(&compute->module, &why);
    if (!opened)
        opened = compute->module->open(join, compute, &why);
    if (wanted == COMPUTE_CUDA) {
        if (opened && err)
            *err = why;
        opened = dcp_agree(&join->comm, opened, err);
        if (opened) {
            compute_close(compute);
            return opened;
        }
    }
    int rc = compare(join, compute, &all, err);
    if (rc) {
        compute_close(compute);
        return rc;
    }
    if (all) {
        size_t n = strlen(compute->name);
        if (!compute->own_gpu)
            snprintf(compute->name + n, sizeof compute->name - n, ", shared by ranks");
        return DCP_OK;
    }
    compute_close(compute);
    take_cpu(compute);
    snprintf(compute->why, sizeof compute->why, "%s",
             opened ? why.message : "another rank sees no GPU");
    return DCP_OK;
}

void compute_close(struct compute *compute)
{
    if (compute->device.ops)
        dcp_device_free(&compute->device);
    *compute = (struct compute){ .ops = NULL };
}

int compute_coll(const struct compute *compute, struct join *join,
                 const struct kernels *kernels, struct coll *out_coll,
                 struct dcp_error *err)
{
    if (compute->own_gpu && compute->module->coll)
        return compute->module->coll(out_coll, kernels, &join->comm, err);
    int rc = coll_split(&join->coll, 0, join->rank, out_coll, err);
    return rc ? rc : coll_staged(out_coll, kernels, err);
}

#else

int compute_open(enum compute_device wanted, struct join *join,
                 struct compute *out_compute, struct dcp_error *err)
{
    (void)join;
    *out_compute = (struct compute){ .ops = NULL };
    int rc = compute_check(wanted, err);
    if (!rc)
        take_cpu(out_compute);
    return rc;
}

void compute_close(struct compute *compute)
{
    *compute = (struct compute){ .ops = NULL };
}

int compute_coll(const struct compute *compute, struct join *join,
                 const struct kernels *kernels, struct coll *out_coll,
                 struct dcp_error *err)
{
    (void)kernels;
    (void)join;
    (void)out_coll;
    return dcp_error_set(err, DCP_E_UNSUPPORTED, "%s has no memory of its own",
                         compute->name);
}

#endif
