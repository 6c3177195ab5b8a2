/* graph_cudnn: a graph of cuDNN's operations (its backend API), and a plan that runs it.
 *
 * A failure is kept: what is added after it is NULL, and the plan says why. A plan is
 * only made of engines that give the same bits for the same input. Tensors have four
 * dimensions. Thread rule: one graph, one thread. */
#ifndef TRAINER_OPS_CUDA_GRAPH_CUDNN_H
#define TRAINER_OPS_CUDA_GRAPH_CUDNN_H

#include <cudnn.h>
#include <dcp/error.h>

#define CUDNN_GRAPH_DIMS 4
#define CUDNN_GRAPH_ITEMS 192
#define CUDNN_GRAPH_OPS 24

typedef cudnnBackendDescriptor_t cudnn_node;

struct cudnn_graph {
    cudnn_node items[CUDNN_GRAPH_ITEMS]; /* all that was made */
    int n_items;
    cudnn_node ops[CUDNN_GRAPH_OPS];
    int n_ops;
    int64_t last_id; /* of tensors that nobody names */
    cudnnStatus_t why;
    int line;
};

struct cudnn_shape {
    cudnnDataType_t dtype;
    int64_t dims[CUDNN_GRAPH_DIMS], strides[CUDNN_GRAPH_DIMS];
};

/* Zeroed is empty. */
void cudnn_graph_fini(struct cudnn_graph *graph);

/* In memory, which a run names by the id, 1 to 99. */
cudnn_node cudnn_tensor(struct cudnn_graph *graph, const struct cudnn_shape *shape,
                        int64_t id);
/* One number of fp32, of the host; a run names it likewise. */
cudnn_node cudnn_number(struct cudnn_graph *graph, int64_t id);
/* Between two operations only. */
cudnn_node cudnn_virtual(struct cudnn_graph *graph, const struct cudnn_shape *shape);

/* Operations: out = what the inputs make; all return out. b and t may be NULL. */
cudnn_node cudnn_pointwise(struct cudnn_graph *graph, cudnnPointwiseMode_t mode,
                           cudnn_node x, cudnn_node b, cudnn_node t, cudnn_node out);
/* The index of each element along an axis, as INT32. */
cudnn_node cudnn_index(struct cudnn_graph *graph, int64_t axis, cudnn_node x,
                       cudnn_node out);
/* [.., m, k] [.., k, n] to [.., m, n]. */
cudnn_node cudnn_matmul(struct cudnn_graph *graph, cudnn_node a, cudnn_node b,
                        cudnn_node out);
/* Along the dimensions of which out has only one. */
cudnn_node cudnn_reduce(struct cudnn_graph *graph, cudnnReduceTensorOp_t op, cudnn_node x,
                        cudnn_node out);
/* The same memory with other dimensions. */
cudnn_node cudnn_reshape(struct cudnn_graph *graph, cudnn_node x, cudnn_node out);

/* What plans are made for: the device of a handle, or one that is described. */
struct cudnn_target {
    cudnnHandle_t handle;
    cudnn_node device; /* a finished DEVICEPROP, or NULL */
};

struct cudnn_plan {
    cudnn_node plan;
    int64_t workspace_bytes;
};

/* Caller owns, cudnn_plan_fini; the graph is not needed any more. Errors: UNSUPPORTED
 * when cuDNN has no such engine for the graph. */
int cudnn_plan_init(struct cudnn_graph *graph, const struct cudnn_target *target,
                    struct cudnn_plan *out_plan, struct dcp_error *err);
void cudnn_plan_fini(struct cudnn_plan *plan); /* zeroed is fine */
/* Runs it on the stream of the handle; ids[i] lies at pointers[i]. Errors: IO. */
int cudnn_plan_run(const struct cudnn_plan *plan, cudnnHandle_t handle, int n,
                   const int64_t *ids, void *const *pointers, void *workspace,
                   struct dcp_error *err);

/* Keeps what cuDNN says of a failure. */
int cudnn_failed(cudnnStatus_t why, int code, const char *act, int line,
                 struct dcp_error *err);

#endif
