/* holdings: what a rank holds of the tensors of a state, as it tells rank 0: a region of
 * each tensor, in the order of the list that all ranks have. Parts of small tensors come
 * with their bytes, since rank 0 writes them whole (see small.h). */
#ifndef DCP_CORE_PLAN_HOLDINGS_H
#define DCP_CORE_PLAN_HOLDINGS_H

#include "base/buf.h"
#include "base/bytes.h"
#include <dcp/device.h>
#include <dcp/tensor.h>

/* What one rank holds of a tensor; all of it borrowed. */
struct dcp_holding {
    struct dcp_region region;
    int rank;
    const unsigned char *bytes; /* of a small tensor's part; NULL: not told */
};

/* Appends what a local catalog holds: pieces in memory, one a tensor, in their order.
 * Errors: MEMORY, those of the device. */
int dcp_holdings_pack(const struct dcp_catalog *mine, const struct dcp_device *device,
                      struct dcp_buf *buf, struct dcp_error *err);
/* The next holding of a rank, which is of this tensor; a box uses dims. Errors: CORRUPT,
 * also of a region outside its tensor. */
int dcp_holding_next(struct dcp_cursor *in, const struct dcp_tensor *tensor, int rank,
                     int64_t dims[2][DCP_MAX_NDIM], struct dcp_holding *out,
                     struct dcp_error *err);
/* Puts the bytes of a part in their place among those of the whole tensor. */
void dcp_holding_join(const struct dcp_tensor *tensor, const struct dcp_holding *part,
                      unsigned char *whole);

#endif
