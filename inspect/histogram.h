/* histogram: the distribution of numbers that are seen once, in any order.
 *
 * The bins lie evenly over -reach .. reach, and reach is a power of two: a number beyond
 * it doubles the reach and merges the bins in pairs, so that counts stay exact. */
#ifndef INSPECT_HISTOGRAM_H
#define INSPECT_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#define INSPECT_FINE_BINS 4096

struct inspect_histogram {
    double reach;   /* 0 until the first number that is not 0 */
    double scale;   /* bins in 1.0 */
    uint64_t zeros; /* until then */
    uint64_t bins[INSPECT_FINE_BINS];
};

/* Finite numbers only; `most` is the greatest of their absolute values. */
void inspect_histogram_add(struct inspect_histogram *h, const double *v, size_t n,
                           double most);

/* The same counts in at most n_most bins between the least and the greatest number:
 * returns how many, and their bounds: low + i × width. 0 when there was no number. */
size_t inspect_histogram_view(const struct inspect_histogram *h, size_t n_most,
                              uint64_t *out_counts, double *out_low, double *out_width);

#endif
