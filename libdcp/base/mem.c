#include "mem.h"

void *dcp_mem_calloc(size_t n, size_t size_bytes)
{
    size_t total;
    if (!dcp_mul_size(n, size_bytes, &total))
        return NULL;
    return calloc(1, total ? total : 1);
}

void *dcp_mem_grow(void *array, size_t *cap, size_t want, size_t size_bytes)
{
    if (want <= *cap && array)
        return array;
    size_t more = *cap <= SIZE_MAX / 2 ? *cap * 2 : SIZE_MAX;
    size_t new_cap = more > want ? more : want;
    if (new_cap < 8)
        new_cap = 8;
    size_t total;
    if (!dcp_mul_size(new_cap, size_bytes, &total))
        return NULL;
    void *grown = realloc(array, total ? total : 1);
    if (grown)
        *cap = new_cap;
    return grown;
}

void *dcp_mem_aligned(size_t align, size_t size_bytes)
{
    void *out = NULL;
    if (align < sizeof(void *))
        align = sizeof(void *);
    if (posix_memalign(&out, align, size_bytes ? size_bytes : 1))
        return NULL;
    return out;
}
