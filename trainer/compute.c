#include "compute.h"

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

/* How many ranks say so. */
static int count(struct join *join, bool mine, double *out_n, struct dcp_error *err)
{
    *out_n = mine;
    return coll_all_reduce(&join->coll, out_n, 1, err);
}

int compute_open(enum compute_device wanted, struct join *join,
                 struct compute *out_compute, struct dcp_error *err)
{
    struct compute *compute = out_compute;
    struct dcp_error why = { 0 };
    double n_open, n_own;
    *compute = (struct compute){ .ops = NULL };
    if (wanted == COMPUTE_CPU) {
        take_cpu(compute);
        return DCP_OK;
    }
    int opened = compute_open_cuda(join, compute, &why);
    if (wanted == COMPUTE_CUDA) {
        if (opened && err)
            *err = why;
        opened = dcp_agree(&join->comm, opened, err);
        if (opened) {
            compute_close(compute);
            return opened;
        }
    }
    int rc = count(join, !opened, &n_open, err);
    if (!rc)
        rc = count(join, !opened && compute->own_gpu, &n_own, err);
    if (rc) {
        compute_close(compute);
        return rc;
    }
    compute->own_gpu = n_own == join->world;
    if (n_open == join->world)
        return DCP_OK;
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
#if DCP_HAS_NCCL
    if (compute->own_gpu)
        return coll_nccl(out_coll, kernels, &join->comm, err);
#else
    (void)compute;
#endif
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
