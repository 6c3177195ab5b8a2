/* portable: marks functions that CPU and GPU compile from one text, so that both give the
 * same bits, and functions that are compiled anew where they are called, so that their
 * constants count. */
#ifndef TRAINER_OPS_PORTABLE_H
#define TRAINER_OPS_PORTABLE_H

#define INLINE static inline __attribute__((always_inline))

#ifdef __CUDACC__
#define PORTABLE static __host__ __device__ __forceinline__
#else
#define PORTABLE INLINE
#endif

#endif
