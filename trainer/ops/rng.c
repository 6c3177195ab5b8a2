/* rng: what is built on random words. */
#include "rng.h"
#include <math.h>

#define FEISTEL_ROUNDS 8
#define TWO_PI 6.283185307179586

/* 53 bits of two words, in [0, 1). */
static double unit(uint32_t high, uint32_t low)
{
    uint64_t bits = (uint64_t)(high >> 5) << 26 | low >> 6;
    return (double)bits * 0x1p-53;
}

double rng_uniform(uint64_t key, uint64_t stream, uint64_t index)
{
    uint32_t w[4];
    rng_words(key, stream, index, w);
    return unit(w[0], w[1]);
}

double rng_normal(uint64_t key, uint64_t stream, uint64_t index)
{
    uint32_t w[4];
    rng_words(key, stream, index, w);
    double u = 1.0 - unit(w[0], w[1]); /* in (0, 1]: its logarithm is finite */
    return sqrt(-2.0 * log(u)) * cos(TWO_PI * unit(w[2], w[3]));
}

int64_t rng_permute(uint64_t key, uint64_t stream, int64_t n, int64_t i)
{
    /* The network permutes 0 .. 4^half - 1, the smallest such range that holds n. An
     * image outside 0 .. n-1 is permuted again: the walk along the cycle of i comes back
     * to the range, in fewer than four turns on average. */
    unsigned half = 1;
    while (half < 32 && (uint64_t)(n - 1) >> (2 * half) != 0)
        half++;
    uint32_t mask = UINT32_MAX >> (32 - half);

    uint64_t x = (uint64_t)i;
    do {
        uint32_t left = (uint32_t)(x >> half), right = (uint32_t)x & mask;
        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint32_t w[4];
            rng_words(key, stream, round << 32 | right, w);
            uint32_t next = left ^ (w[0] & mask);
            left = right;
            right = next;
        }
        x = (uint64_t)left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
