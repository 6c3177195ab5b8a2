/* carve: gives out the parts of one block of memory. With a NULL base it only measures,
 * so that the same code says how much is needed and then takes it. */
#ifndef TRAINER_OPS_CARVE_H
#define TRAINER_OPS_CARVE_H

#include "base/mem.h"

#define CARVE_ALIGN 64

struct carve {
    char *base;
    uint64_t size_bytes; /* given out so far */
    bool too_large;      /* more than memory can be */
};

/* n × size_bytes, aligned to CARVE_ALIGN; NULL while measuring. */
static inline void *carve_take(struct carve *carve, int64_t n, size_t size_bytes)
{
    uint64_t wanted, end;
    if (!dcp_mul_u64((uint64_t)n, size_bytes, &wanted) ||
        !dcp_add_u64(carve->size_bytes, wanted, &end) ||
        !dcp_add_u64(end, CARVE_ALIGN - 1, &end) || end > INT64_MAX) {
        carve->too_large = true;
        return NULL;
    }
    void *part = carve->base ? carve->base + carve->size_bytes : NULL;
    carve->size_bytes = end / CARVE_ALIGN * CARVE_ALIGN;
    return part;
}

#endif
