/* simd: what makes plain loops fast, each part empty where the compiler or a
 * sanitizer does not take it. */
#ifndef TRAINER_OPS_SIMD_H
#define TRAINER_OPS_SIMD_H

#include "base/vectors.h"
#include <stdint.h>
#include <string.h>

/* DCP_VECTORS: such a function must not open a parallel region itself: what it runs in
 * threads would be compiled for the narrowest vectors. */

/* Iterations are independent and are shared out among threads, in a fixed way; `enough`
 * says when that pays. TASKS: so many threads take them as they get done. The thread
 * sanitizer does not know OpenMP's barriers. */
#define OPS_PRAGMA(text) _Pragma(#text)
#if defined(_OPENMP) && !defined(DCP_TSAN)
#include <omp.h>
#define OPS_PARALLEL_FOR(enough) OPS_PRAGMA(omp parallel for schedule(static) if (enough))
#define OPS_PARALLEL_TASKS(threads) \
    OPS_PRAGMA(omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1))
#define OPS_THREAD() omp_get_thread_num()
#else
#define OPS_PARALLEL_FOR(enough)
#define OPS_PARALLEL_TASKS(threads)
#define OPS_THREAD() 0
#endif

/* The loop's iterations may be computed side by side, and its sum or maximum in parts. */
#if defined(_OPENMP)
#define OPS_SIMD OPS_PRAGMA(omp simd)
#define OPS_SIMD_SUM(...) OPS_PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define OPS_SIMD_MAX(x) OPS_PRAGMA(omp simd reduction(max : x))
#else
#define OPS_SIMD
#define OPS_SIMD_SUM(...)
#define OPS_SIMD_MAX(x)
#endif

/* exp(x) within 2 units in the last place, without a branch, for x in -87 .. 88; outside,
 * the value at the nearer end. x = k ln 2 + r with |r| <= ln(2)/2; the polynomial is the
 * minimax fit of (exp(r) - 1 - r) / r^2, relative error of the whole 3e-9. */
static inline float ops_exp(float x)
{
    const float round = 0x1.8p23f; /* adding it leaves a whole number in the low bits */
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + round;
    float k = shifted - round;
    float r = x - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2 in two parts */
    float q = 1.39506022e-3f;
    q = q * r + 8.36895352e-3f;
    q = q * r + 4.16662041e-2f;
    q = q * r + 1.66665183e-1f;
    q = q * r + 5.00000010e-1f;
    float y = q * r * r + r + 1.0f;

    uint32_t bits, power;
    memcpy(&bits, &y, sizeof bits);
    memcpy(&power, &shifted, sizeof power);
    bits += power << 23; /* y × 2^k: the bits of `round` leave at the top */
    memcpy(&y, &bits, sizeof y);
    return y;
}

#endif
