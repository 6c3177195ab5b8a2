/* portable: marks functions that CPU and GPU compile from one text, so that both give the
 * same bits. */
#ifndef TRAINER_OPS_PORTABLE_H
#define TRAINER_OPS_PORTABLE_H

#ifdef __CUDACC__
#define PORTABLE static __host__ __device__ __forceinline__
#else
#define PORTABLE static inline __attribute__((always_inline))
#endif

#endif
