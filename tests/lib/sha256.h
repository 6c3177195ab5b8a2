/* sha256: FIPS 180-4, for comparing with the digests of the fixtures. */
#ifndef TESTS_LIB_SHA256_H
#define TESTS_LIB_SHA256_H

#include <stddef.h>

/* 64 hex digits and NUL. */
void sha256_hex(const void *data, size_t size_bytes, char out[65]);

#endif
