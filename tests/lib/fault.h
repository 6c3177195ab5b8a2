/* fault: a store that counts what is done in another one, and makes one operation, or all
 * from one on, fail. */
#ifndef TESTS_LIB_FAULT_H
#define TESTS_LIB_FAULT_H

#include <dcp/store.h>

enum fault_kind {
    FAULT_NONE,
    FAULT_FAIL, /* it fails with IO, once */
    FAULT_TEAR, /* a write stops half way and fails; any other operation fails */
    FAULT_STOP  /* it and all after it fail: the process is as good as dead */
};
struct fault {
    enum fault_kind kind;
    uint64_t at;    /* which operation, from 1 */
    uint64_t count; /* operations seen; atomic */
};

/* inner and fault are borrowed until the store is freed. Errors: MEMORY. */
int fault_store(struct dcp_store *out_store, const struct dcp_store *inner,
                struct fault *fault, struct dcp_error *err);

#endif
