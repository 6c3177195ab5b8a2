/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "arrays.h"
#include "base/mem.h"
#include "trainer/ops/rng.h"
#include "trainer/ops/value.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static uint64_t stream; /* a new one for each array */

uint64_t array_seed(void)
{
    static uint64_t seed;
    if (!seed) {
        const char *given = getenv("DCP_TEST_SEED");
        seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    }
    return seed;
}

static void *host_alloc(size_t size_bytes)
{
    return dcp_mem_aligned(64, size_bytes);
}

static void host_sync(void)
{
}

static struct array_memory memory = { host_alloc, free, host_sync };

void array_use(const struct array_memory *use)
{
    memory = *use;
}

void array_sync(void)
{
    memory.sync();
}

void *array_bytes(int64_t n, size_t size)
{
    void *p = memory.alloc((size_t)n * size + 64);
    assert_non_null(p);
    memset(p, 0xff, (size_t)n * size + 64);
    return p;
}

void array_free(void *bytes)
{
    memory.free(bytes);
}

int32_t *array_tokens(int64_t n, int32_t vocab_size)
{
    int32_t *tokens = array_bytes(n, sizeof *tokens);
    stream++;
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(rng_uniform(array_seed(), stream, (uint64_t)i) *
                              (double)vocab_size);
    return tokens;
}

struct array array_poisoned(enum dcp_dtype dtype, int64_t n)
{
    struct array a = { n, dtype, array_bytes(n, 4), NULL };
    a.t = dtype == DCP_F32 ? a.f32 : array_bytes(n, 2);
    return a;
}

struct array array_normal(enum dcp_dtype dtype, int64_t n, double std)
{
    struct array a = array_poisoned(dtype, n);
    stream++;
    for (int64_t i = 0; i < n; i++)
        array_set(&a, i, (float)(std * rng_normal(array_seed(), stream, (uint64_t)i)));
    return a;
}

struct array array_constant(enum dcp_dtype dtype, int64_t n, float value)
{
    struct array a = array_poisoned(dtype, n);
    for (int64_t i = 0; i < n; i++)
        array_set(&a, i, value);
    return a;
}

void array_set(struct array *a, int64_t i, float value)
{
    value_put(a->dtype, a->t, i, value);
    a->f32[i] = value_get(a->dtype, a->t, i);
}

struct array array_copy(const struct array *a)
{
    struct array b = array_poisoned(a->dtype, a->n);
    memcpy(b.f32, a->f32, (size_t)a->n * 4);
    if (a->dtype != DCP_F32)
        memcpy(b.t, a->t, (size_t)a->n * 2);
    return b;
}

void array_fini(struct array *a)
{
    if (a->t != a->f32)
        array_free(a->t);
    array_free(a->f32);
}

/* After a kernel wrote the dtype side. */
void array_widen(struct array *a)
{
    array_sync();
    for (int64_t i = 0; a->dtype != DCP_F32 && i < a->n; i++)
        a->f32[i] = value_get(a->dtype, a->t, i);
}

void assert_array_near(const char *what, struct array *got, struct array *want,
                       double bound)
{
    array_widen(got);
    array_widen(want);
    double off = 0, squares = 0;
    for (int64_t i = 0; i < want->n; i++) {
        double difference = (double)got->f32[i] - (double)want->f32[i];
        off += difference * difference;
        squares += (double)want->f32[i] * (double)want->f32[i];
    }
    if (!(sqrt(off) <= bound * sqrt(squares)))
        fail_msg("%s is off by %.3g of its norm (seed %llu)", what, sqrt(off / squares),
                 (unsigned long long)array_seed());
}

void assert_array_sum(const char *what, struct array *got, struct array *want,
                      double bound, double terms)
{
    array_widen(got);
    array_widen(want);
    double squares = 0;
    for (int64_t i = 0; i < want->n; i++)
        squares += (double)want->f32[i] * (double)want->f32[i];
    double rms = sqrt(squares / (double)want->n);
    for (int64_t i = 0; i < want->n; i++) {
        double g = (double)got->f32[i], w = (double)want->f32[i];
        if (!(fabs(g - w) <= bound * (fabs(w) + rms + terms)))
            fail_msg("%s[%lld] is %.9g, should be %.9g (seed %llu)", what, (long long)i,
                     g, w, (unsigned long long)array_seed());
    }
}

void assert_array(const char *what, struct array *got, struct array *want, double bound)
{
    assert_array_sum(what, got, want, bound, 0);
}
