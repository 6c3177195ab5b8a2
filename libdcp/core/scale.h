/* scale: 8-bit floats that mean something only times a factor, which another tensor
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
#ifndef DCP_CORE_SCALE_H
#define DCP_CORE_SCALE_H

#include "blocks.h"

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

/* The factors of one weight. Zero: of none. Thread rule: one thread. */
struct dcp_scale {
    const struct dcp_tensor *weight;
    float *values;                                     /* NULL: it has none */
    int64_t block[DCP_MAX_NDIM], stride[DCP_MAX_NDIM]; /* of the weight's dimensions */
    float of_code[256];                                /* what 8 bits mean */
};
void dcp_scale_fini(struct dcp_scale *scale);
/* Reads those of a weight, an 8-bit tensor of src, unless it has them. Errors:
 * UNSUPPORTED (their shape does not fit the weight's), those of dcp_blocks_read. */
int dcp_scale_of(struct dcp_scale *scale, const struct dcp_catalog *src,
                 const struct dcp_tensor *weight, struct dcp_blocks *blocks,
                 struct dcp_error *err);
/* Elements begin .. begin + n of a piece of the weight, as they are (in) and scaled
 * (out). */
void dcp_scale_apply(const struct dcp_scale *scale, const struct dcp_piece *piece,
                     int64_t begin, size_t n, const unsigned char *in, float *out);

#endif
