/* two_parts: catalogs of a reshard in two parts, of which nothing is stored. */
#ifndef TESTS_LIB_TWO_PARTS_H
#define TESTS_LIB_TWO_PARTS_H

#include <dcp/tensor.h>

enum { TWO_PARTS_FILES = 3, TWO_PARTS_BLOCKS = 3 };

/* By file: who makes it. */
extern const int two_parts_of[TWO_PARTS_FILES];

/* Files "a", "b" and "c" of 110 bytes, each with one tensor of 100 bytes at byte 10; that
 * of "c" is coded. Caller owns; aborts when it cannot be made. */
struct dcp_catalog *two_parts_target(void);
/* One file, with a record of so many blocks. */
struct dcp_catalog *two_parts_source(void);

#endif
