/* scale: the factors of an 8-bit weight (catalog/scales.h), and numbers that are
 * multiplied with them. */
#ifndef DCP_CORE_READ_SCALE_H
#define DCP_CORE_READ_SCALE_H

#include <dcp/tensor.h>

/* The factors of one weight. Zero: of none. Thread rule: one thread. */
struct dcp_scale {
    const struct dcp_tensor *weight;
    float *values;                                     /* NULL: it has none */
    int64_t block[DCP_MAX_NDIM], stride[DCP_MAX_NDIM]; /* of the weight's dimensions */
    float of_code[256];                                /* what 8 bits mean */
};
void dcp_scale_fini(struct dcp_scale *scale);
/* Those of a weight, an 8-bit tensor, but for their values. Errors: UNSUPPORTED (the
 * shape of the factors does not fit the weight's). */
int dcp_scale_init(struct dcp_scale *scale, const struct dcp_tensor *weight,
                   const struct dcp_tensor *factors, struct dcp_error *err);
/* Elements begin .. begin + n of a piece of the weight, as they are (in) and scaled
 * (out). */
void dcp_scale_apply(const struct dcp_scale *scale, const struct dcp_piece *piece,
                     int64_t begin, size_t n, const unsigned char *in, float *out);

#endif
