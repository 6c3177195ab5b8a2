/* weights: the files of a step without those tensors that are the optimizer's. */
#ifndef DCP_CORE_WRITE_WEIGHTS_H
#define DCP_CORE_WRITE_WEIGHTS_H

#include <dcp/checkpoint.h>

#define DCP_WEIGHTS_MEMORY ((uint64_t)32 << 20)

/* Writes them under `prefix`, durable and read back: a native step of the same number,
 * world size, sharding, codec and parity, with all other tensors and objects of the step
 * `name`, and the files that were made of it, bit for bit. Of an optimizer's settings it
 * has none. One thread, DCP_WEIGHTS_MEMORY. Errors: CORRUPT (the step is), NO_SPACE, IO,
 * MEMORY. */
int dcp_write_weights(const struct dcp_store *store, const char *name, const char *prefix,
                      struct dcp_error *err);

#endif
