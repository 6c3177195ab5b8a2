/* The functions of cuDNN that the project calls. */
#ifndef CUDA_FAKE_CUDNN_H
#define CUDA_FAKE_CUDNN_H

#include "cuda_runtime_api.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_NOT_SUPPORTED = 3000
} cudnnStatus_t;
typedef enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_HALF = 2,
    CUDNN_DATA_INT32 = 4,
    CUDNN_DATA_BFLOAT16 = 9,
    CUDNN_DATA_BOOLEAN = 11
} cudnnDataType_t;
typedef enum {
    CUDNN_REDUCE_TENSOR_ADD = 0,
    CUDNN_REDUCE_TENSOR_MAX = 3
} cudnnReduceTensorOp_t;
typedef enum {
    CUDNN_POINTWISE_ADD = 0,
    CUDNN_POINTWISE_MUL = 1,
    CUDNN_POINTWISE_DIV = 6,
    CUDNN_POINTWISE_SUB = 9,
    CUDNN_POINTWISE_EXP = 13,
    CUDNN_POINTWISE_LOG = 15,
    CUDNN_POINTWISE_CMP_GE = 403,
    CUDNN_POINTWISE_GEN_INDEX = 501,
    CUDNN_POINTWISE_BINARY_SELECT = 601
} cudnnPointwiseMode_t;
typedef enum {
    CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
    CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC = 4
} cudnnBackendNumericalNote_t;
typedef enum {
    CUDNN_HEUR_MODE_A = 3,
    CUDNN_HEUR_MODE_FALLBACK = 2
} cudnnBackendHeurMode_t;
typedef enum {
    CUDNN_TYPE_HANDLE,
    CUDNN_TYPE_DATA_TYPE,
    CUDNN_TYPE_BOOLEAN,
    CUDNN_TYPE_INT64,
    CUDNN_TYPE_VOID_PTR = 6,
    CUDNN_TYPE_HEUR_MODE = 8,
    CUDNN_TYPE_NUMERICAL_NOTE = 11,
    CUDNN_TYPE_POINTWISE_MODE = 14,
    CUDNN_TYPE_BACKEND_DESCRIPTOR = 15,
    CUDNN_TYPE_REDUCTION_OPERATOR_TYPE = 18
} cudnnBackendAttributeType_t;
typedef enum {
    CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
    CUDNN_BACKEND_ENGINE_DESCRIPTOR,
    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
    CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
    CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
    CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
    CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
    CUDNN_BACKEND_TENSOR_DESCRIPTOR,
    CUDNN_BACKEND_MATMUL_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
    CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
    CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR
} cudnnBackendDescriptorType_t;
typedef enum {
    CUDNN_ATTR_POINTWISE_MODE,
    CUDNN_ATTR_POINTWISE_MATH_PREC,
    CUDNN_ATTR_POINTWISE_AXIS,
    CUDNN_ATTR_ENGINEHEUR_MODE,
    CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
    CUDNN_ATTR_ENGINEHEUR_RESULTS,
    CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
    CUDNN_ATTR_ENGINECFG_ENGINE,
    CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
    CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
    CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
    CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
    CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
    CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
    CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
    CUDNN_ATTR_OPERATIONGRAPH_OPS,
    CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
    CUDNN_ATTR_TENSOR_DATA_TYPE,
    CUDNN_ATTR_TENSOR_DIMENSIONS,
    CUDNN_ATTR_TENSOR_STRIDES,
    CUDNN_ATTR_TENSOR_UNIQUE_ID,
    CUDNN_ATTR_TENSOR_IS_VIRTUAL,
    CUDNN_ATTR_TENSOR_IS_BY_VALUE,
    CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
    CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
    CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
    CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
    CUDNN_ATTR_MATMUL_COMP_TYPE,
    CUDNN_ATTR_OPERATION_MATMUL_ADESC,
    CUDNN_ATTR_OPERATION_MATMUL_BDESC,
    CUDNN_ATTR_OPERATION_MATMUL_CDESC,
    CUDNN_ATTR_OPERATION_MATMUL_DESC,
    CUDNN_ATTR_REDUCTION_OPERATOR,
    CUDNN_ATTR_REDUCTION_COMP_TYPE,
    CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
    CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
    CUDNN_ATTR_OPERATION_REDUCTION_DESC,
    CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
    CUDNN_ATTR_OPERATION_RESHAPE_YDESC
} cudnnBackendAttributeName_t;

typedef struct cudnn_handle *cudnnHandle_t;
typedef struct cudnn_descriptor *cudnnBackendDescriptor_t;

size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t why);
cudnnStatus_t cudnnCreate(cudnnHandle_t *out);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out);
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values);
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t cap,
                                       int64_t *out_n, void *values);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack);

#ifdef __cplusplus
}
#endif
#endif
