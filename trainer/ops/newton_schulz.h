/* newton_schulz: the orthogonal matrix that is nearest to a matrix, about: with the same
 * singular vectors, and singular values between 0.7 and 1.2 where they were not much
 * smaller than the largest. (Jordan et al., "Muon", 2024; Higham, "Functions of
 * Matrices", 2008, section 8.3.)
 *
 *   x = x / max(|x|, eps), |x| the root of the sum of squares; then `steps` times
 *   g = x x^T,  x = a x + (b g + c g g) x;  with more rows than columns g = x^T x and
 *   x = a x + x (b g + c g g)
 *
 * in fp32, where torch.optim.Muon rounds everything to bf16. The products are those of
 * the table, so the bits are the same at any number of threads. */
#ifndef TRAINER_OPS_NEWTON_SCHULZ_H
#define TRAINER_OPS_NEWTON_SCHULZ_H

#include <dcp/error.h>
#include <stdint.h>

struct kernels;

struct newton_schulz {
    double coefficients[3], eps; /* a, b, c */
    int steps;
};

/* Floats that it needs beside the matrix. */
int64_t newton_schulz_room(int64_t rows, int64_t columns);
/* x[rows,columns] in place; x and room are in the memory of the kernels, aligned to 64
 * bytes. What is not finite becomes NaN. Errors: those of kernels. */
int newton_schulz(const struct kernels *kernels, const struct newton_schulz *how,
                  int64_t rows, int64_t columns, float *x, float *room,
                  struct dcp_error *err);

#endif
