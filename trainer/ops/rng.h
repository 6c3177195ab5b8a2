/* rng: counter-based random numbers (Philox 4x32-10, Salmon et al., SC'11): a pure
 * function of (key, counter), so there is no state to carry between ranks, threads or
 * world sizes. */
#ifndef TRAINER_OPS_RNG_H
#define TRAINER_OPS_RNG_H

#include "rng_words.h"

/* Uniform in [0, 1), 53 bits. */
double rng_uniform(uint64_t key, uint64_t stream, uint64_t index);
/* Standard normal (Box-Muller on one counter). */
double rng_normal(uint64_t key, uint64_t stream, uint64_t index);
/* A bijection of 0 .. n-1 (Feistel network with cycle walking): element i of a shuffle.
 * n is at least 1, i in 0 .. n-1. */
int64_t rng_permute(uint64_t key, uint64_t stream, int64_t n, int64_t i);

#endif
