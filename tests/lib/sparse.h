/* sparse: a file that is literals and zeros between them, so that targets over 4 GiB can
 * be read without being written. */
#ifndef TESTS_LIB_SPARSE_H
#define TESTS_LIB_SPARSE_H

#include <dcp/format.h>

struct sparse {
    uint64_t size_bytes;
    struct dcp_target target; /* its literals */
};

/* A store in which every name is this file. Nothing is to be freed. */
struct dcp_store sparse_store(struct sparse *sparse);

#endif
