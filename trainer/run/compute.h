/* compute: what a rank computes with: the CPU, or a GPU with its memory and collectives.
 */
#ifndef TRAINER_RUN_COMPUTE_H
#define TRAINER_RUN_COMPUTE_H

#include "trainer/coll/coll.h"
#include "trainer/launch/join.h"
#include "trainer/ops/ops.h"
#include <dcp/device.h>
#include <stdbool.h>

enum compute_device { COMPUTE_AUTO, COMPUTE_CPU, COMPUTE_CUDA };

struct compute {
    const struct ops *ops;
    struct dcp_device device; /* where their memory is; ops NULL: the host's */
    struct compute_gpu {
        bool is_open;
        char uuid[16]; /* the same for all ranks that share it */
    } gpu;
    const struct compute_module *module; /* of the GPU, or NULL */
    bool own_gpu;                        /* no other rank uses it */
    char name[300]; /* for people: "CPU (oneDNN)", "NVIDIA H100 80GB HBM3" */
    char why[640];  /* AUTO took the CPU, though the build has kernels for a GPU */
};

/* Whether this build can compute on a GPU at all. Errors: UNSUPPORTED. */
int compute_check(enum compute_device wanted, struct dcp_error *err);
/* Collective: all ranks take the same kind. Ranks of one machine share out its GPUs. AUTO
 * takes a GPU when every rank sees one. Errors: UNSUPPORTED (no GPU; this build has no
 * kernels for one), COMM, those of the device. */
int compute_open(enum compute_device wanted, struct join *join,
                 struct compute *out_compute, struct dcp_error *err);
void compute_close(struct compute *compute);
/* The coll that moves what lies in a GPU's memory: NCCL's where each rank has a GPU of
 * its own, else the ranks' own through the host. Collective; caller owns. Errors: COMM,
 * MEMORY, UNSUPPORTED (the CPU computes: then it is join's). */
int compute_coll(const struct compute *compute, struct join *join,
                 const struct kernels *kernels, struct coll *out_coll,
                 struct dcp_error *err);

/* -- the part for CUDA --------------------------------------------------------------- */

/* It is a module that is loaded when a GPU is asked for: the libraries that it needs take
 * 240 MB and a fifth of a second. */
struct compute_module {
    /* The GPU of this rank. Errors: UNSUPPORTED, those of the device. */
    int (*open)(const struct join *join, struct compute *compute, struct dcp_error *err);
    /* coll_nccl; NULL: built without NCCL. */
    int (*coll)(struct coll *out_coll, const struct kernels *kernels,
                struct dcp_comm *comm, struct dcp_error *err);
};
#define COMPUTE_MODULE "dcp-train-cuda.so"
#define COMPUTE_MODULE_SYMBOL "dcp_train_cuda" /* a struct compute_module in it */
/* Loads it, once; it stays until the process ends. Errors: UNSUPPORTED. */
int compute_module(const struct compute_module **out_module, struct dcp_error *err);

#endif
