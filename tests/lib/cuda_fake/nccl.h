/* The functions of NCCL that the project calls, and what tests ask of them. */
#ifndef CUDA_FAKE_NCCL_H
#define CUDA_FAKE_NCCL_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;
typedef enum {
    ncclChar = 0,
    ncclInt64 = 4,
    ncclFloat = 7,
    ncclDouble = 8
} ncclDataType_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;

typedef struct nccl_comm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct {
    int blocking;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER \
    {                           \
        1                       \
    }

const char *ncclGetErrorString(ncclResult_t why);
ncclResult_t ncclGetUniqueId(ncclUniqueId *out);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int world_size, ncclUniqueId id,
                                    int rank, ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *out);
ncclResult_t ncclCommCount(ncclComm_t comm, int *out);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
/* Sums of integers alone. */
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);

/* --- for tests --- */

/* Calls of this thread since it asked last: what a rank told NCCL to do. */
struct nccl_record {
    char what[16]; /* "send", "recv", "reducescatter", "reduce", "allgather", "broadcast"
                    */
    int world_size, rank, peer;
    size_t size_bytes;
    cudaStream_t stream;
    int group; /* calls of one group have one number, from 1 */
};
/* Moves up to `max` of them to `out`; returns how many there were. */
int nccl_records(struct nccl_record *out, int max);
/* The next call of this thread fails with that; ncclSuccess: none. */
void nccl_fail_next(ncclResult_t why);

#ifdef __cplusplus
}
#endif
#endif
