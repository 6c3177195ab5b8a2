/* packed: quantized weights in integers, and what their numbers mean only together with:
 * scales, zero points, code books. A cast of these changes the weights, so they keep
 * their dtype. They stand in the module of the integers, or in a module of their name:
 *
 *   l.weight U8, l.weight.absmax, l.weight.quant_map      bitsandbytes, 4 bits
 *   l.weight I8, l.SCB or l.weight_scale                  its 8 bits, compressed-tensors
 *   l.qweight I32, l.scales                               GPTQ, AWQ
 *   l.W_q U8, l.scale, l.zero                             HQQ
 *   l.weight U8, l.weight_scale F8, l.weight_scale_2      NVFP4
 *
 *   l.weight._data I8, l.weight._scale, l.input_scale     quanto
 *
 * Known by their names: models have buffers of integers, too, as sizes, places, masks. A
 * bias is no scale. */
#ifndef DCP_CORE_CATALOG_PACKED_H
#define DCP_CORE_CATALOG_PACKED_H

#include "base/map.h"
#include <dcp/tensor.h>

/* Modules with packed integers. Zero-initialise; dcp_packed_fini. */
struct dcp_packed {
    struct dcp_map modules; /* by name; those of the catalog's tensors, borrowed */
};
/* Errors: MEMORY. */
int dcp_packed_find(const struct dcp_catalog *catalog, struct dcp_packed *out,
                    struct dcp_error *err);
/* Whether integers are beside a tensor that lose their meaning when it is cast. */
bool dcp_packed_needs(const struct dcp_packed *packed, const struct dcp_tensor *tensor);
void dcp_packed_fini(struct dcp_packed *packed);

#endif
