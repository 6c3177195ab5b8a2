/* wants: rank 0's list of what all ranks want of which tensor, and what reading it gave.
 * See runs.h. Every rank packs its own into a message. */
#ifndef DCP_CORE_READ_WANTS_H
#define DCP_CORE_READ_WANTS_H

#include "base/buf.h"
#include <dcp/tensor.h>

/* A part of a tensor that a rank wants. */
struct dcp_want {
    int tensor; /* of the checkpoint */
    struct dcp_region region;
    bool gains;    /* that rank would read much more by blocks */
    bool fits;     /* it can be read without them */
    size_t turn;   /* among all, rank by rank */
    uint64_t part; /* what was read of it gives to the fingerprint; */
    bool read;     /* false: it could not be read */
};

struct dcp_wants {
    const struct dcp_catalog *catalog; /* of the checkpoint */
    struct dcp_want *items;
    size_t n, cap;
    struct dcp_arena *arena; /* of numbers of regions */
};

/* One of this rank's, into its message. */
void dcp_wants_pack(const struct dcp_tensor *tensor, const struct dcp_want *want,
                    struct dcp_buf *message);
void dcp_wants_pack_read(uint64_t part, bool read, struct dcp_buf *message);

/* wants: the catalog is set, the rest is zero; fini also after a failure. Hears the
 * messages of n ranks, which lie one behind the other, keeps what they want of tensors
 * that are wanted each element once, can be read so and are worth it, and adds the
 * numbers of these tensors to the list, 4 bytes each. Errors: CORRUPT (a message is),
 * MEMORY. */
int dcp_wants_choose(struct dcp_wants *wants, const void *messages, const size_t *sizes,
                     int n, struct dcp_buf *list, struct dcp_error *err);
/* Hears what was read of each want that was kept, in the order in which its rank packed
 * it, and adds to the list those tensors that this does not prove. Errors: as above. */
int dcp_wants_prove(struct dcp_wants *wants, const void *messages, const size_t *sizes,
                    int n, struct dcp_buf *list, struct dcp_error *err);
void dcp_wants_fini(struct dcp_wants *wants);

#endif
