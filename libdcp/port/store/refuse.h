/* refuse: a store in which nothing can be done, for stores that can do little: they
 * copy its table, put in what they can, and keep the copy. */
#ifndef DCP_PORT_STORE_REFUSE_H
#define DCP_PORT_STORE_REFUSE_H

#include <dcp/store.h>

/* Every operation fails with UNSUPPORTED; `free` is NULL. */
extern const struct dcp_store_ops dcp_store_refuse;

#endif
