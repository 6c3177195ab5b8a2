/* erasure: Reed-Solomon over GF(256), by ISA-L: m parity units for k units of the same
 * size, any m of the k + m can be lost.
 *
 * The code is systematic: row k + j of a (k + m) × k Cauchy matrix gives parity unit j,
 * with the element 1 / (i ⊕ c) in row i and column c, in the field with polynomial 0x11d.
 * Any k rows are invertible. Thread rule: a code does not change and may be shared. */
#ifndef DCP_BASE_ERASURE_H
#define DCP_BASE_ERASURE_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>

#define DCP_ERASURE_MAX_UNITS 255 /* k + m: the matrix needs as many elements */

struct dcp_erasure;

/* k and m are 1 or more, together at most DCP_ERASURE_MAX_UNITS. Caller owns. Errors:
 * USAGE, MEMORY. */
int dcp_erasure_new(int k, int m, struct dcp_erasure **out_erasure,
                    struct dcp_error *err);
void dcp_erasure_free(struct dcp_erasure *erasure);

/* Bytes of the m parity units from those of the k units, n each. */
void dcp_erasure_encode(const struct dcp_erasure *erasure, size_t n,
                        const unsigned char *const *data, unsigned char *const *parity);
/* units: all k + m, n bytes each, parity last. Those that are not good are computed from
 * the others. Errors: CORRUPT (more than m are not good), MEMORY. */
int dcp_erasure_rebuild(const struct dcp_erasure *erasure, size_t n,
                        unsigned char *const *units, const bool *good,
                        struct dcp_error *err);

#endif
