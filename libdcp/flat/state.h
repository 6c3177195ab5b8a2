/* state: what the ranks of another language hold, as the acts take it, and how they
 * talk. */
#ifndef DCP_FLAT_STATE_H
#define DCP_FLAT_STATE_H

#include "abi.h"
#include <dcp/checkpoint.h>

struct dcp_flat_held {
    struct dcp_state state;
    struct dcp_local_tensor *locals;
    struct dcp_object *objects;
    struct dcp_local_tensor *boxes; /* what is told of each: one to copy from */
};
/* Texts, arrays and tensors of `given` are borrowed; free it also after an error. Errors:
 * USAGE, MEMORY. */
int dcp_flat_held_make(const struct dcp_flat_state *given, struct dcp_flat_held *out,
                       struct dcp_error *err);
void dcp_flat_held_free(struct dcp_flat_held *held);

struct dcp_flat_talk {
    struct dcp_flat_comm given;
    struct dcp_comm comm;
};
/* NULL: a single rank. Errors: USAGE. Needs no freeing; stays where it is. */
int dcp_flat_talk_make(const struct dcp_flat_comm *given, struct dcp_flat_talk *out,
                       struct dcp_error *err);

#endif
