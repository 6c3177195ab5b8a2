/* must: for the helpers of tests, what assert is when NDEBUG does not remove it. */
#ifndef TESTS_LIB_MUST_H
#define TESTS_LIB_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define must(condition)                                                                \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

#endif
