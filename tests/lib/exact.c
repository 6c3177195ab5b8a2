#include "exact.h"

#include "must.h"
#include <string.h>

unsigned char *exact(const void *data, size_t n)
{
    unsigned char *copy = malloc(n ? n : 1);

    must(copy);
    if (n)
        memcpy(copy, data, n);
    return copy;
}
