/* scales: 8-bit floats that mean something only times a factor, which another tensor
 * holds: one for all, for each row, or for each block.
 *
 *   <weight>_scale_inv   transformers' fp8, DeepSeek-V3: [ceil(n / 128), ceil(k / 128)]
 *   <weight>_scale       compressed-tensors, fbgemm, ModelOpt: [], [1], [n], [n, 1]
 *   <stem>.scale         DeepSeek's own files, of <stem>.weight
 *   <stem>.scale_weight  ComfyUI's
 *
 * The number is the 8-bit float times the factor in all of them. The blocks of a
 * dimension have a power of two of elements, or all. Sources: transformers'
 * integrations/finegrained_fp8.py, DeepSeek-V3's inference/kernel.py,
 * compressed_tensors/quantization. */
#ifndef DCP_CORE_CATALOG_SCALES_H
#define DCP_CORE_CATALOG_SCALES_H

#include <dcp/tensor.h>

/* Whether a weight of that dtype may have factors. */
bool dcp_scale_is_f8(enum dcp_dtype dtype);
/* The tensor of the factors of a weight, or -1. Errors: MEMORY. */
int dcp_scale_find(const struct dcp_catalog *catalog, const struct dcp_tensor *weight,
                   int *out_scale, struct dcp_error *err);
/* Whether a tensor is factors of an 8-bit weight, or of what goes into its product, and
 * so of no use beside numbers that are not scaled. Errors: UNSUPPORTED (factors of an
 * 8-bit weight that nothing is known of), MEMORY. */
int dcp_scale_check(const struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                    bool *out_is_scale, struct dcp_error *err);

#endif
