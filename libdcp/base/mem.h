/* mem: allocation with checked sizes, and leaving a scope: what is released then, and
 * DCP_TRY, which leaves it early. */
#ifndef DCP_BASE_MEM_H
#define DCP_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* n × size_bytes zeroed bytes, at least 1; NULL when out of memory or when it overflows.
 */
void *dcp_mem_calloc(size_t n, size_t size_bytes);
/* Grows an array to hold `want` items, doubling; *cap is updated. NULL (old array
 * untouched) when out of memory. */
void *dcp_mem_grow(void *array, size_t *cap, size_t want, size_t size_bytes);
/* size_bytes aligned to align (a power of two); freed with free. */
void *dcp_mem_aligned(size_t align, size_t size_bytes);

/* `DCP_CLEANUP_FREE char *p = NULL;` frees p at the end of its scope. */
static inline void dcp_mem_cleanup_free(void *p)
{
    free(*(void **)p);
}
#define DCP_CLEANUP(fn) __attribute__((cleanup(fn)))
#define DCP_CLEANUP_FREE DCP_CLEANUP(dcp_mem_cleanup_free)

/* `DCP_TRY(f(x, err));` returns the code of f from this function, unless it is 0. Not
 * where something waits for the end of the function: docs/CODING.md, "Errors". */
#define DCP_TRY(expression)            \
    do {                               \
        int dcp_try_rc = (expression); \
        if (dcp_try_rc)                \
            return dcp_try_rc;         \
    } while (0)

/* Checked arithmetic: false when the result does not fit. */
static inline bool dcp_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool dcp_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool dcp_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool dcp_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool dcp_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#define DCP_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
