/* parts: the parts of all ranks that a collective moves, one behind the other, for
 * this folder only. */
#ifndef TRAINER_COLL_PARTS_H
#define TRAINER_COLL_PARTS_H

#include <stdint.h>

static inline int64_t parts_largest(const int64_t *counts, int world_size)
{
    int64_t max = 0;
    for (int r = 0; r < world_size; r++)
        max = counts[r] > max ? counts[r] : max;
    return max;
}

/* Where the part of a rank begins. */
static inline int64_t parts_before(const int64_t *counts, int rank)
{
    int64_t n = 0;
    for (int r = 0; r < rank; r++)
        n += counts[r];
    return n;
}

#endif
