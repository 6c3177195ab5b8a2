/* verify_lost: what is lost with a shard manifest, which alone says where pieces lie. */
#ifndef DCP_CORE_VERIFY_LOST_H
#define DCP_CORE_VERIFY_LOST_H

#include <dcp/checkpoint.h>

/* Of a sorted partial catalog: for each tensor of which elements are in no piece, one
 * call of `add`, from the first such element to the last; broken[tensor] becomes true.
 * Errors: those of add; MEMORY. */
int dcp_verify_lost(const struct dcp_catalog *catalog, _Atomic bool *broken,
                    int (*add)(void *self, const struct dcp_damage *damage,
                               struct dcp_error *err),
                    void *self, struct dcp_error *err);

#endif
