#include "graph_cudnn.h"

#include <dcp/dcp.h>
#include <string.h>

#define FIRST_ID 100   /* of tensors that nobody names */
#define ALIGN_BYTES 16 /* of every address */
#define MAX_ENGINES 16
#define MAX_NOTES 32

int cudnn_failed(cudnnStatus_t why, int code, const char *act, int line,
                 struct dcp_error *err)
{
    return dcp_error_set(err, code, "the GPU cannot %s: cuDNN says '%s' (%s:%d)", act,
                         cudnnGetErrorString(why), __FILE__, line);
}

/* --- descriptors --- */

static void keep(struct cudnn_graph *graph, cudnnStatus_t why, int line)
{
    if (why && !graph->why) {
        graph->why = why;
        graph->line = line;
    }
}

#define KEEP(graph, call)                    \
    do {                                     \
        if (!(graph)->why)                   \
            keep((graph), (call), __LINE__); \
    } while (0)

/* The graph owns it. */
static cudnn_node make(struct cudnn_graph *graph, cudnnBackendDescriptorType_t type)
{
    cudnn_node node = NULL;
    if (graph->n_items == CUDNN_GRAPH_ITEMS)
        keep(graph, CUDNN_STATUS_BAD_PARAM, __LINE__);
    KEEP(graph, cudnnBackendCreateDescriptor(type, &node));
    if (node)
        graph->items[graph->n_items++] = node;
    return node;
}

static void set(struct cudnn_graph *graph, cudnn_node node,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *values)
{
    KEEP(graph, cudnnBackendSetAttribute(node, name, type, n, values));
}

/* Another node; none is fine. */
static void link_to(struct cudnn_graph *graph, cudnn_node node,
                    cudnnBackendAttributeName_t name, cudnn_node other)
{
    if (other)
        set(graph, node, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

static cudnn_node finish(struct cudnn_graph *graph, cudnn_node node)
{
    KEEP(graph, cudnnBackendFinalize(node));
    return graph->why ? NULL : node;
}

void cudnn_graph_fini(struct cudnn_graph *graph)
{
    while (graph->n_items)
        cudnnBackendDestroyDescriptor(graph->items[--graph->n_items]);
    *graph = (struct cudnn_graph){ .n_ops = 0 };
}

/* --- tensors --- */

static cudnn_node tensor(struct cudnn_graph *graph, const struct cudnn_shape *shape,
                         int64_t id, bool is_virtual, bool is_number)
{
    int64_t align = ALIGN_BYTES;
    cudnn_node node = make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(graph, node, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &shape->dtype);
    set(graph, node, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, CUDNN_GRAPH_DIMS,
        shape->dims);
    set(graph, node, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, CUDNN_GRAPH_DIMS,
        shape->strides);
    set(graph, node, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(graph, node, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set(graph, node, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(graph, node, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_number);
    return finish(graph, node);
}

cudnn_node cudnn_tensor(struct cudnn_graph *graph, const struct cudnn_shape *shape,
                        int64_t id)
{
    return tensor(graph, shape, id, false, false);
}

cudnn_node cudnn_number(struct cudnn_graph *graph, int64_t id)
{
    static const struct cudnn_shape one = { CUDNN_DATA_FLOAT,
                                            { 1, 1, 1, 1 },
                                            { 1, 1, 1, 1 } };
    return tensor(graph, &one, id, false, true);
}

cudnn_node cudnn_virtual(struct cudnn_graph *graph, const struct cudnn_shape *shape)
{
    return tensor(graph, shape, FIRST_ID + graph->last_id++, true, false);
}

/* --- operations --- */

struct link {
    cudnnBackendAttributeName_t name;
    cudnn_node node; /* NULL: it has none */
};

/* Returns out. */
static cudnn_node add_op(struct cudnn_graph *graph, cudnnBackendDescriptorType_t type,
                         const struct link *links, size_t n_links, cudnn_node out)
{
    cudnn_node op = make(graph, type);
    for (size_t i = 0; i < n_links; i++)
        link_to(graph, op, links[i].name, links[i].node);
    if (graph->n_ops == CUDNN_GRAPH_OPS)
        keep(graph, CUDNN_STATUS_BAD_PARAM, __LINE__);
    if (!finish(graph, op))
        return NULL;
    graph->ops[graph->n_ops++] = op;
    return out;
}
#define ADD_OP(graph, type, links, out) \
    add_op((graph), (type), (links), sizeof(links) / sizeof *(links), (out))

/* How an operation computes: in that precision. */
static cudnn_node how_to(struct cudnn_graph *graph, cudnnBackendDescriptorType_t type,
                         cudnnBackendAttributeName_t name, cudnnDataType_t precision)
{
    cudnn_node how = make(graph, type);
    set(graph, how, name, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    return how;
}

static cudnn_node add_pointwise(struct cudnn_graph *graph, cudnnPointwiseMode_t mode,
                                const int64_t *axis, cudnn_node x, cudnn_node b,
                                cudnn_node t, cudnn_node out)
{
    bool compares = mode == CUDNN_POINTWISE_CMP_GE;
    cudnn_node how =
        how_to(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC,
               compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT);
    set(graph, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    if (axis)
        set(graph, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, axis);
    const struct link links[] = {
        { CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finish(graph, how) },
        { CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x },
        { CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b },
        { CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t },
        { CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out },
    };
    return ADD_OP(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, links, out);
}

cudnn_node cudnn_pointwise(struct cudnn_graph *graph, cudnnPointwiseMode_t mode,
                           cudnn_node x, cudnn_node b, cudnn_node t, cudnn_node out)
{
    return add_pointwise(graph, mode, NULL, x, b, t, out);
}

cudnn_node cudnn_index(struct cudnn_graph *graph, int64_t axis, cudnn_node x,
                       cudnn_node out)
{
    return add_pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, &axis, x, NULL, NULL, out);
}

cudnn_node cudnn_matmul(struct cudnn_graph *graph, cudnn_node a, cudnn_node b,
                        cudnn_node out)
{
    cudnn_node how = how_to(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                            CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    const struct link links[] = {
        { CUDNN_ATTR_OPERATION_MATMUL_DESC, finish(graph, how) },
        { CUDNN_ATTR_OPERATION_MATMUL_ADESC, a },
        { CUDNN_ATTR_OPERATION_MATMUL_BDESC, b },
        { CUDNN_ATTR_OPERATION_MATMUL_CDESC, out },
    };
    return ADD_OP(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, links, out);
}

cudnn_node cudnn_reduce(struct cudnn_graph *graph, cudnnReduceTensorOp_t mode,
                        cudnn_node x, cudnn_node out)
{
    cudnn_node how = how_to(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                            CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
        &mode);
    const struct link links[] = {
        { CUDNN_ATTR_OPERATION_REDUCTION_DESC, finish(graph, how) },
        { CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x },
        { CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out },
    };
    return ADD_OP(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, links, out);
}

cudnn_node cudnn_reshape(struct cudnn_graph *graph, cudnn_node x, cudnn_node out)
{
    const struct link links[] = {
        { CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x },
        { CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out },
    };
    return ADD_OP(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, links, out);
}

/* --- plans --- */

static cudnn_node whole(struct cudnn_graph *graph, const struct cudnn_target *target)
{
    cudnn_node all = make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(graph, all, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        graph->n_ops, graph->ops);
    if (target->handle)
        set(graph, all, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
            &target->handle);
    return finish(graph, all);
}

/* The engines that cuDNN would take for it, best first. Knowing none is no failure. */
static int engines(struct cudnn_graph *graph, const struct cudnn_target *target,
                   cudnn_node all, cudnnBackendHeurMode_t mode, cudnn_node *out)
{
    int64_t n = 0;
    cudnnStatus_t before = graph->why;
    cudnn_node how = make(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    link_to(graph, how, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, all);
    set(graph, how, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    link_to(graph, how, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target->device);
    finish(graph, how);
    for (int i = 0; i < MAX_ENGINES; i++)
        out[i] = make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    KEEP(graph,
         cudnnBackendGetAttribute(how, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES, &n, out));
    if (graph->why)
        n = 0;
    graph->why = before;
    return (int)n;
}

/* Whether an engine says that it gives the same bits each time. */
static bool is_deterministic(struct cudnn_graph *graph, cudnn_node config)
{
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    cudnnStatus_t before = graph->why;
    int64_t n = 0;
    cudnn_node engine = make(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    KEEP(graph, cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    KEEP(graph,
         cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                  CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES, &n, notes));
    bool varies = graph->why != CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; !varies && i < n && i < MAX_NOTES; i++)
        varies = notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    graph->why = before;
    return !varies;
}

/* The plan of one engine; NULL if it cannot after all, which is no failure. */
static cudnn_node plan_of(struct cudnn_graph *graph, const struct cudnn_target *target,
                          cudnn_node config)
{
    cudnn_node plan = NULL;
    cudnnStatus_t before = graph->why;
    if (before ||
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan))
        return NULL;
    link_to(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (target->handle)
        set(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
            &target->handle);
    link_to(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target->device);
    if (finish(graph, plan))
        return plan;
    graph->why = before;
    cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

static cudnn_node first_plan(struct cudnn_graph *graph, const struct cudnn_target *target,
                             cudnn_node all)
{
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A,
                                                    CUDNN_HEUR_MODE_FALLBACK };
    cudnn_node configs[MAX_ENGINES], plan = NULL;
    for (size_t m = 0; !plan && m < sizeof modes / sizeof *modes; m++) {
        int n = engines(graph, target, all, modes[m], configs);
        for (int i = 0; !plan && i < n; i++)
            if (is_deterministic(graph, configs[i]))
                plan = plan_of(graph, target, configs[i]);
    }
    return plan;
}

int cudnn_plan_init(struct cudnn_graph *graph, const struct cudnn_target *target,
                    struct cudnn_plan *out_plan, struct dcp_error *err)
{
    int64_t n = 0;
    *out_plan = (struct cudnn_plan){ .plan = NULL };
    cudnn_node all = whole(graph, target);
    out_plan->plan = first_plan(graph, target, all);
    if (out_plan->plan)
        KEEP(graph, cudnnBackendGetAttribute(
                        out_plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                        CUDNN_TYPE_INT64, 1, &n, &out_plan->workspace_bytes));
    else
        keep(graph, CUDNN_STATUS_NOT_SUPPORTED, __LINE__);
    if (!graph->why)
        return DCP_OK;
    cudnn_plan_fini(out_plan);
    return cudnn_failed(graph->why, DCP_E_UNSUPPORTED, "be given a graph", graph->line,
                        err);
}

void cudnn_plan_fini(struct cudnn_plan *plan)
{
    if (plan->plan)
        cudnnBackendDestroyDescriptor(plan->plan);
    *plan = (struct cudnn_plan){ .plan = NULL };
}

int cudnn_plan_run(const struct cudnn_plan *plan, cudnnHandle_t handle, int n,
                   const int64_t *ids, void *const *pointers, void *workspace,
                   struct dcp_error *err)
{
    struct cudnn_graph pack = { .n_ops = 0 };
    cudnn_node node = make(&pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&pack, node, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    set(&pack, node, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n,
        pointers);
    set(&pack, node, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
        &workspace);
    finish(&pack, node);
    KEEP(&pack, cudnnBackendExecute(handle, plan->plan, node));
    int rc = pack.why ? cudnn_failed(pack.why, DCP_E_IO, "run a graph", pack.line, err)
                      : DCP_OK;
    cudnn_graph_fini(&pack);
    return rc;
}
