/* exact: bytes in memory of exactly their size, so that a sanitizer sees one too far. */
#ifndef TESTS_LIB_EXACT_H
#define TESTS_LIB_EXACT_H

#include <stddef.h>

/* Caller frees; aborts when there is no memory. */
unsigned char *exact(const void *data, size_t n);

#endif
