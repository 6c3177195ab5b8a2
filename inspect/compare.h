/* compare: two tensors of one name, in two checkpoints. */
#ifndef INSPECT_COMPARE_H
#define INSPECT_COMPARE_H

#include "checkpoint.h"
#include "work.h"

/* When two elements count as equal: equal bits (of one dtype), both NaN, or, where a
 * tolerance is given, |a - b| <= atol + rtol × |b| or at most `ulp` steps of the coarser
 * dtype apart. */
struct inspect_tolerance {
    double atol, rtol;
    int64_t ulp;
};

enum inspect_verdict {
    INSPECT_SAME_BITS,        /* read, or by fingerprint */
    INSPECT_SAME_VALUES,      /* the dtypes differ, the values do not */
    INSPECT_WITHIN_TOLERANCE, /* some bits differ */
    INSPECT_OTHER_VALUES,
    INSPECT_OTHER_SHAPE,
    INSPECT_OTHER_KIND, /* dtypes that cannot be compared: complex and real */
    INSPECT_ONLY_A,
    INSPECT_ONLY_B,
};

struct inspect_pair {
    const struct dcp_tensor *a, *b; /* one may be NULL */
    enum inspect_verdict verdict;
    bool by_fingerprint;
    uint64_t n_differ; /* elements beyond the tolerance */
    int64_t first;     /* of them, in the flattened tensor */
    unsigned char first_a[16], first_b[16];
    double most;          /* the greatest |a - b| of all elements, NaNs left out */
    int64_t most_at;      /* -1: no number differs */
    uint64_t n_nan;       /* differing elements of which one is NaN */
    uint64_t n_changed;   /* elements of other bits, of one dtype, */
    uint64_t delta_bytes; /* and about what they would take in a delta */
};

/* Reads both and sets the verdict. Both tensors are there and have one shape, and both
 * checkpoints their readers, to be checked at the end. Errors: those of inspect_read,
 * MEMORY. */
struct inspect_comparer;
int inspect_comparer_new(const struct inspect_checkpoint *a,
                         const struct inspect_checkpoint *b,
                         const struct inspect_tolerance *tolerance,
                         struct inspect_comparer **out, struct dcp_error *err);
void inspect_comparer_free(struct inspect_comparer *comparer);
int inspect_compare(struct inspect_comparer *comparer, struct inspect_pair *pair,
                    struct inspect_work *work, struct dcp_error *err);

#endif
