/* ops: the choice of kernels, the threads, and the elementwise kernels on sharded data.
 */
#include "ops.h"
#include "ops_bf16.h"
#include "ops_dnn.h"
#include "ops_simd.h"
#include <signal.h>
#ifdef _OPENMP
#include <omp.h>
#endif

const struct ops *ops_best(void)
{
    const struct ops *dnn = ops_dnn();
    return dnn ? dnn : ops_cpu();
}

int ops_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void ops_set_threads(int n)
{
    n = n < 1 ? 1 : n;
#ifdef _OPENMP
    omp_set_num_threads(n);
#endif
    ops_dnn_set_threads(n);
}

void ops_start_threads(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#ifdef _OPENMP
#pragma omp parallel
    (void)omp_get_thread_num();
#endif
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Ranges are worked on in parts of this size, in threads when there are several. */
#define PART (INT64_C(1) << 18)

static int64_t n_parts(int64_t n)
{
    return (n + PART - 1) / PART;
}

static int64_t part_size(int64_t n, int64_t part)
{
    int64_t left = n - part * PART;
    return left < PART ? left : PART;
}

OPS_CLONES
static void to_bf16(const float *x, uint16_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_from_f32(x[i]);
}

OPS_CLONES
static void from_bf16(const uint16_t *x, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_to_f32(x[i]);
}

OPS_CLONES
static void add(float *sum, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

OPS_CLONES
static void add_bf16(float *sum, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += bf16_to_f32(x[i]);
}

void ops_to_bf16(const float *x, uint16_t *out, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts(n); p++)
        to_bf16(x + p * PART, out + p * PART, part_size(n, p));
}

void ops_from_bf16(const uint16_t *x, float *out, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts(n); p++)
        from_bf16(x + p * PART, out + p * PART, part_size(n, p));
}

void ops_add(float *sum, const float *x, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts(n); p++)
        add(sum + p * PART, x + p * PART, part_size(n, p));
}

void ops_add_bf16(float *sum, const uint16_t *x, int64_t n)
{
    OPS_PARALLEL_FOR(n > PART)
    for (int64_t p = 0; p < n_parts(n); p++)
        add_bf16(sum + p * PART, x + p * PART, part_size(n, p));
}

/* Always 16 sums side by side, whatever the vectors: the order of additions is fixed. The
 * rest goes to the first sums, one each. */
OPS_CLONES
static double sumsq(const float *x, int64_t n)
{
    double sums[16] = { 0 };
    int64_t whole = n - n % 16;
    for (int64_t i = 0; i < whole; i += 16)
        for (int j = 0; j < 16; j++)
            sums[j] += (double)x[i + j] * (double)x[i + j];
    for (int64_t i = whole; i < n; i++)
        sums[i - whole] += (double)x[i] * (double)x[i];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            sums[j] += sums[j + half];
    return sums[0];
}

double ops_sumsq(const float *x, int64_t n)
{
    enum { TURN = 64 }; /* parts whose sums are kept until they are added, in order */
    double total = 0;
    for (int64_t first = 0; first < n_parts(n); first += TURN) {
        double sums[TURN];
        int64_t last = first + TURN < n_parts(n) ? first + TURN : n_parts(n);
        OPS_PARALLEL_FOR(n > PART)
        for (int64_t p = first; p < last; p++)
            sums[p - first] = sumsq(x + p * PART, part_size(n, p));
        for (int64_t p = first; p < last; p++)
            total += sums[p - first];
    }
    return total;
}
