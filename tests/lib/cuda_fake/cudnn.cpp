/* Graphs of cuDNN, operation by operation, in double; what lies between two of them is
 * rounded as its tensor says. A plan may be made of an engine whose sums vary: running
 * one ends the test. */
#include "cudnn.h"
#include "fake.h"
#include "trainer/ops/bf16.h"
#include "trainer/ops/f16.h"
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#define RANK 4
#define WORKSPACE_BYTES 4096

struct cudnn_handle {
    cudaStream_t stream = nullptr;
};

/* An attribute as it was given: bytes, or other descriptors, which live as long. */
struct cudnn_node;
using node_ptr = std::shared_ptr<cudnn_node>;
struct attribute {
    std::vector<char> bytes;
    std::vector<node_ptr> nodes;
};
struct cudnn_node {
    cudnnBackendDescriptorType_t type;
    bool finished = false, varies = false;
    std::map<cudnnBackendAttributeName_t, attribute> attributes;
};
struct cudnn_descriptor {
    node_ptr node;
};

size_t cudnnGetVersion(void)
{
    return 92800;
}

const char *cudnnGetErrorString(cudnnStatus_t why)
{
    return why == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                             : "CUDNN_STATUS_BAD_PARAM";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    *out = new cudnn_handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* --- descriptors --- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    *out = new cudnn_descriptor{ std::make_shared<cudnn_node>() };
    (*out)->node->type = type;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    delete descriptor;
    return CUDNN_STATUS_SUCCESS;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64:
        return sizeof(int64_t);
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(int);
    }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values)
{
    cudnn_node &node = *descriptor->node;
    if (node.finished)
        return CUDNN_STATUS_BAD_PARAM;
    attribute &a = node.attributes[name];
    const char *bytes = (const char *)values;
    a.bytes.assign(bytes, bytes + (size_t)n * size_of(type));
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++) {
        node_ptr other = ((const cudnnBackendDescriptor_t *)values)[i]->node;
        if (!other->finished)
            return CUDNN_STATUS_BAD_PARAM;
        a.nodes.push_back(other);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor->node->finished)
        return CUDNN_STATUS_BAD_PARAM;
    descriptor->node->finished = true;
    return CUDNN_STATUS_SUCCESS;
}

/* The one number, or the one descriptor, of an attribute. */
template <typename T>
static T number(const cudnn_node &node, cudnnBackendAttributeName_t name)
{
    auto found = node.attributes.find(name);
    T value;
    if (found == node.attributes.end() || found->second.bytes.size() != sizeof value)
        cuda_fake_fail("cuDNN: a descriptor of type %d lacks its attribute %d", node.type,
                       name);
    std::memcpy(&value, found->second.bytes.data(), sizeof value);
    return value;
}

template <typename T>
static std::vector<T> numbers(const cudnn_node &node, cudnnBackendAttributeName_t name)
{
    const std::vector<char> &bytes = node.attributes.at(name).bytes;
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

static node_ptr child(const cudnn_node &node, cudnnBackendAttributeName_t name)
{
    auto found = node.attributes.find(name);
    return found == node.attributes.end() ? nullptr : found->second.nodes.at(0);
}

/* Two engines for every graph: the first one's sums vary. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t cap,
                                       int64_t *out_n, void *values)
{
    const cudnn_node &node = *descriptor->node;
    auto given = (cudnnBackendDescriptor_t *)values;
    *out_n = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *out_n = 2;
        for (int64_t i = 0; i < 2 && i < cap; i++) {
            cudnn_node &config = *given[i]->node;
            config.attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH].nodes = { child(
                node, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) };
            config.finished = true;
            config.varies = i == 0;
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        given[0]->node->varies = node.varies;
        given[0]->node->finished = true;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
        auto notes = (cudnnBackendNumericalNote_t *)values;
        notes[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        if (node.varies)
            notes[(*out_n)++] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = WORKSPACE_BYTES;
        return CUDNN_STATUS_SUCCESS;
    default:
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
}

/* --- tensors --- */

/* One while a graph runs: its values, dense. */
struct tensor {
    cudnnDataType_t dtype;
    std::vector<int64_t> dims, strides;
    std::vector<double> values;
    size_t n() const
    {
        return (size_t)(dims[0] * dims[1] * dims[2] * dims[3]);
    }
};

static tensor tensor_of(const cudnn_node &node)
{
    return { number<cudnnDataType_t>(node, CUDNN_ATTR_TENSOR_DATA_TYPE),
             numbers<int64_t>(node, CUDNN_ATTR_TENSOR_DIMENSIONS),
             numbers<int64_t>(node, CUDNN_ATTR_TENSOR_STRIDES),
             {} };
}

/* Calls f(i, place) for every element: its number, and its four indices. */
template <typename F> static void each(const tensor &t, F f)
{
    int64_t at[RANK];
    size_t i = 0;
    for (at[0] = 0; at[0] < t.dims[0]; at[0]++)
        for (at[1] = 0; at[1] < t.dims[1]; at[1]++)
            for (at[2] = 0; at[2] < t.dims[2]; at[2]++)
                for (at[3] = 0; at[3] < t.dims[3]; at[3]++)
                    f(i++, (const int64_t *)at);
}

/* The number of an element; an axis of one is the same everywhere. */
static size_t index_of(const tensor &t, const int64_t *at)
{
    int64_t i = 0;
    for (int d = 0; d < RANK; d++)
        i = i * t.dims[d] + (t.dims[d] == 1 ? 0 : at[d]);
    return (size_t)i;
}

static int64_t place_of(const tensor &t, const int64_t *at)
{
    int64_t place = 0;
    for (int d = 0; d < RANK; d++)
        place += at[d] * t.strides[d];
    return place;
}

static double rounded(cudnnDataType_t dtype, double value)
{
    return dtype == CUDNN_DATA_BFLOAT16 ? bf16_to_f32(bf16_from_f32((float)value))
           : dtype == CUDNN_DATA_HALF   ? f16_to_f32(f16_from_f32((float)value))
           : dtype == CUDNN_DATA_FLOAT  ? (float)value
                                        : value;
}

static void load(tensor &t, const void *from)
{
    t.values.resize(t.n());
    each(t, [&](size_t i, const int64_t *at) {
        int64_t p = place_of(t, at);
        t.values[i] =
            t.dtype == CUDNN_DATA_BFLOAT16 ? bf16_to_f32(((const uint16_t *)from)[p])
            : t.dtype == CUDNN_DATA_HALF   ? f16_to_f32(((const uint16_t *)from)[p])
                                           : ((const float *)from)[p];
    });
}

static void store(const tensor &t, void *to)
{
    each(t, [&](size_t i, const int64_t *at) {
        int64_t p = place_of(t, at);
        if (t.dtype == CUDNN_DATA_BFLOAT16)
            ((uint16_t *)to)[p] = bf16_from_f32((float)t.values[i]);
        else if (t.dtype == CUDNN_DATA_HALF)
            ((uint16_t *)to)[p] = f16_from_f32((float)t.values[i]);
        else
            ((float *)to)[p] = (float)t.values[i];
    });
}

/* --- operations --- */

struct graph_run {
    std::map<const cudnn_node *, tensor> between; /* virtual tensors */
    std::map<int64_t, double> numbers;            /* of the host, by id */
    std::map<int64_t, void *> pointers;

    /* An input: what an operation before made, a number, or what lies in memory now. */
    tensor in(const node_ptr &node)
    {
        tensor t = tensor_of(*node);
        int64_t id = number<int64_t>(*node, CUDNN_ATTR_TENSOR_UNIQUE_ID);
        auto found = between.find(node.get());
        if (found != between.end())
            return found->second;
        if (number<bool>(*node, CUDNN_ATTR_TENSOR_IS_VIRTUAL))
            cuda_fake_fail("cuDNN: an operation comes before what it needs");
        if (number<bool>(*node, CUDNN_ATTR_TENSOR_IS_BY_VALUE))
            t.values.assign(1, numbers.at(id));
        else
            load(t, pointer(*node));
        return t;
    }

    void *pointer(const cudnn_node &node)
    {
        int64_t id = number<int64_t>(node, CUDNN_ATTR_TENSOR_UNIQUE_ID);
        int64_t align = number<int64_t>(node, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
        void *at = pointers[id];
        if (!at || (uintptr_t)at % (uintptr_t)align)
            cuda_fake_fail("cuDNN: tensor %lld is at %p, to be aligned to %lld",
                           (long long)id, at, (long long)align);
        return at;
    }

    void out(const node_ptr &node, tensor t)
    {
        for (double &value : t.values)
            value = rounded(t.dtype, value);
        if (number<bool>(*node, CUDNN_ATTR_TENSOR_IS_VIRTUAL))
            between[node.get()] = t;
        else
            store(t, pointer(*node));
    }
};

static double element(cudnnPointwiseMode_t mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return std::exp(x);
    case CUDNN_POINTWISE_LOG:
        return std::log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        cuda_fake_fail("cuDNN: an operation that the double does not know");
    }
}

static void pointwise(graph_run &run, const cudnn_node &op)
{
    node_ptr how = child(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    node_ptr x = child(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    node_ptr b = child(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    node_ptr t = child(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    node_ptr y = child(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    auto mode = number<cudnnPointwiseMode_t>(*how, CUDNN_ATTR_POINTWISE_MODE);
    bool index = mode == CUDNN_POINTWISE_GEN_INDEX;
    int64_t axis = index ? number<int64_t>(*how, CUDNN_ATTR_POINTWISE_AXIS) : 0;
    tensor result = tensor_of(*y), none = { CUDNN_DATA_FLOAT, { 1, 1, 1, 1 }, {}, { 0 } };
    tensor left = run.in(x), second = b ? run.in(b) : none, third = t ? run.in(t) : none;
    result.values.resize(result.n());
    each(result, [&](size_t i, const int64_t *at) {
        result.values[i] = index ? (double)at[axis]
                                 : element(mode, left.values[index_of(left, at)],
                                           second.values[index_of(second, at)],
                                           third.values[index_of(third, at)]);
    });
    run.out(y, result);
}

static void matmul(graph_run &run, const cudnn_node &op)
{
    const tensor a = run.in(child(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    const tensor b = run.in(child(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    node_ptr c = child(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    tensor result = tensor_of(*c);
    if (a.dims[3] != b.dims[2] || a.dims[2] != result.dims[2] ||
        b.dims[3] != result.dims[3])
        cuda_fake_fail("cuDNN: a product of matrices that do not fit");
    result.values.resize(result.n());
    each(result, [&](size_t i, const int64_t *at) {
        double sum = 0;
        for (int64_t k = 0; k < a.dims[3]; k++) {
            int64_t left[] = { at[0], at[1], at[2], k },
                    right[] = { at[0], at[1], k, at[3] };
            sum += a.values[index_of(a, left)] * b.values[index_of(b, right)];
        }
        result.values[i] = sum;
    });
    run.out(c, result);
}

static void reduce(graph_run &run, const cudnn_node &op)
{
    node_ptr how = child(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const tensor x = run.in(child(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    node_ptr y = child(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    bool max = number<cudnnReduceTensorOp_t>(*how, CUDNN_ATTR_REDUCTION_OPERATOR) ==
               CUDNN_REDUCE_TENSOR_MAX;
    tensor result = tensor_of(*y);
    result.values.assign(result.n(), max ? -INFINITY : 0);
    each(x, [&](size_t i, const int64_t *at) {
        double &to = result.values[index_of(result, at)];
        to = max ? std::fmax(to, x.values[i]) : to + x.values[i];
    });
    run.out(y, result);
}

/* Elements keep their places, which the strides of both give. */
static void reshape(graph_run &run, const cudnn_node &op)
{
    const tensor x = run.in(child(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
    node_ptr y = child(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    tensor result = tensor_of(*y);
    std::map<int64_t, double> by_place;
    each(x,
         [&](size_t i, const int64_t *at) { by_place[place_of(x, at)] = x.values[i]; });
    result.values.resize(result.n());
    each(result, [&](size_t i, const int64_t *at) {
        result.values[i] = by_place.at(place_of(result, at));
    });
    run.out(y, result);
}

/* The operations may use the workspace as they like. */
static void run_graph(const cudnn_node &graph, graph_run run, void *workspace)
{
    for (const node_ptr &op : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
        std::memset(workspace, 0xff, WORKSPACE_BYTES);
        switch (op->type) {
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            pointwise(run, *op);
            break;
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            matmul(run, *op);
            break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            reduce(run, *op);
            break;
        default:
            reshape(run, *op);
        }
    }
}

/* Calls f for every tensor of a graph, perhaps several times. */
template <typename F> static void each_tensor(const cudnn_node &graph, F f)
{
    for (const node_ptr &op : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes)
        for (auto &entry : op->attributes)
            for (const node_ptr &node : entry.second.nodes)
                if (node->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
                    f(*node);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack)
{
    const cudnn_node &pack = *variant_pack->node;
    node_ptr config = child(*plan->node, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    node_ptr graph = child(*config, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    auto ids = numbers<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    auto pointers = numbers<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    void *workspace = number<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    graph_run run;
    if (config->varies)
        cuda_fake_fail("cuDNN: a plan whose sums vary is run");
    for (size_t i = 0; i < ids.size(); i++)
        run.pointers[ids[i]] = pointers[i];
    each_tensor(
        *graph,
        [&](const cudnn_node &node) { /* read now, not when it runs */
                                      int64_t id = number<int64_t>(
                                          node, CUDNN_ATTR_TENSOR_UNIQUE_ID);
                                      if (number<bool>(node,
                                                       CUDNN_ATTR_TENSOR_IS_BY_VALUE))
                                          run.numbers[id] =
                                              *(const float *)run.pointers.at(id);
        });
    cuda_lock lock(cuda_fake_get().mutex);
    cuda_give(lock, handle->stream, [graph, run, workspace](cuda_lock &) {
        cuda_open_memory open;
        run_graph(*graph, run, workspace);
        return true;
    });
    return CUDNN_STATUS_SUCCESS;
}
