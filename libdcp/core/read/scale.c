/* scale: blocks of factors, and where the elements of a piece lie among them. */
#include "scale.h"
#include "base/float_env.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/region.h"
#include <string.h>

void dcp_scale_fini(struct dcp_scale *scale)
{
    free(scale->values);
    *scale = (struct dcp_scale){ 0 };
}

/* -- reading ------------------------------------------------------------------------- */

/* How many elements of a dimension share a factor: the power of two, or all, that gives
 * as many blocks; 0: there is none. */
static int64_t block_of(int64_t size, int64_t n_blocks)
{
    if (n_blocks == 1)
        return size > 0 ? size : 1;
    for (int64_t block = 1; block < size; block *= 2)
        if ((size - 1) / block + 1 == n_blocks)
            return block;
    return 0;
}

/* Factors of fewer dimensions belong to the first ones. */
static int fit(struct dcp_scale *scale, const struct dcp_tensor *factors,
               struct dcp_error *err)
{
    const struct dcp_tensor *weight = scale->weight;
    int64_t stride = 1;
    bool fits = factors->ndim <= weight->ndim || factors->n_elems == 1;

    for (int d = weight->ndim - 1; d >= 0; d--) {
        int64_t n = d < factors->ndim && factors->n_elems != 1 ? factors->shape[d] : 1;
        scale->block[d] = block_of(weight->shape[d], n);
        scale->stride[d] = stride;
        fits = fits && scale->block[d];
        stride *= n;
    }
    if (fits && dcp_dtype_is_float(factors->dtype))
        return DCP_OK;
    dcp_error_of_tensor(err, DCP_E_UNSUPPORTED, weight->name,
                        "the scales of the 8-bit weight '%s' do not fit its shape",
                        DCP_SHOWN(weight->name));
    dcp_error_hint(err, "without --dtype the 8 bits and their scales are kept");
    return DCP_E_UNSUPPORTED;
}

int dcp_scale_init(struct dcp_scale *scale, const struct dcp_tensor *weight,
                   const struct dcp_tensor *factors, struct dcp_error *err)
{
    unsigned char codes[DCP_ARRAY_LEN(scale->of_code)];

    scale->weight = weight;
    for (size_t i = 0; i < DCP_ARRAY_LEN(codes); i++)
        codes[i] = (unsigned char)i;
    DCP_TRY(dcp_cast(weight->dtype, DCP_F32, codes, scale->of_code, DCP_ARRAY_LEN(codes),
                     err));
    return fit(scale, factors, err);
}

/* -- applying ------------------------------------------------------------------------ */

/* Where the elements of a piece lie in its tensor: a box, and strides in its memory. */
struct view {
    int ndim;
    int order[DCP_MAX_NDIM]; /* dimensions, the one with the largest stride first */
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM], stride[DCP_MAX_NDIM];
    int64_t flat; /* element of the box that is the piece's first */
};

static struct view view_of(const struct dcp_tensor *tensor, const struct dcp_piece *piece)
{
    struct view p = { .ndim = tensor->ndim };
    struct dcp_region region = piece->region;

    if (region.kind == DCP_FLAT) {
        p.flat = region.begin;
        region = (struct dcp_region){ .kind = DCP_WHOLE };
    }
    dcp_region_box(tensor, &region, p.offset, p.size);
    dcp_region_strides(p.size, p.ndim, p.stride);
    for (int d = 0; d < p.ndim; d++) {
        int at = d;
        if (piece->stride)
            p.stride[d] = piece->stride[d];
        for (; at > 0 && p.stride[p.order[at - 1]] < p.stride[d]; at--)
            p.order[at] = p.order[at - 1];
        p.order[at] = d;
    }
    return p;
}

/* The factor of an element of the piece's memory; *out_n: how many from there on have the
 * same one, at most `most`. */
static float factor_at(const struct dcp_scale *scale, const struct view *p, int64_t at,
                       int64_t most, int64_t *out_n)
{
    int64_t rest = p->flat + at, index = 0, n = 1;

    for (int i = 0; i < p->ndim; i++) {
        int d = p->order[i];
        int64_t in_box = p->size[d] > 1 ? rest / p->stride[d] : 0;
        int64_t c = p->offset[d] + in_box, left = p->size[d] - in_box;
        rest -= in_box * p->stride[d];
        index += c / scale->block[d] * scale->stride[d];
        n = scale->block[d] - c % scale->block[d];
        n = n < left ? n : left;
    }
    *out_n = n < most ? n : most;
    return scale->values[index];
}

void dcp_scale_apply(const struct dcp_scale *scale, const struct dcp_piece *piece,
                     int64_t begin, size_t n, const unsigned char *in, float *out)
{
    struct view view = view_of(scale->weight, piece);
    int64_t count = (int64_t)n;
    fenv_t before;

    dcp_float_env_begin(&before);
    for (int64_t i = 0, run; i < count; i += run) {
        float factor = factor_at(scale, &view, begin + i, count - i, &run);
        for (int64_t k = i; k < i + run; k++)
            out[k] = scale->of_code[in[k]] * factor;
    }
    dcp_float_env_end(&before);
}
