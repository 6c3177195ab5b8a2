/* scale: finding factors by their names, reading them, and applying them run by run. */
#include "scale.h"
#include "base/mem.h"
#include "base/str.h"
#include "copy.h"
#include "region.h"
#include <string.h>

#define WEIGHT "weight"

/* What a name of factors adds to the weight's, or puts in place of "weight". */
static const char *const added[] = { "_scale_inv", "_scale" };
static const char *const instead[] = { "scale", "scale_weight" };
/* The factors of what the weight is multiplied with. */
static const char *const of_inputs[] = { "input_scale", "scale_input", "input_scale_ub" };

bool dcp_scale_is_f8(enum dcp_dtype dtype)
{
    return dtype == DCP_F8_E4M3 || dtype == DCP_F8_E5M2 || dtype == DCP_F8_E4M3FNUZ ||
           dtype == DCP_F8_E5M2FNUZ;
}

/* The tensor named by the first n bytes of a name and a tail, or -1. */
static int find_named(const struct dcp_catalog *catalog, const char *name, size_t n,
                      const char *tail, int *out, struct dcp_error *err)
{
    size_t size = n + strlen(tail) + 1;
    DCP_CLEANUP_FREE char *text = malloc(size);

    *out = -1;
    if (!text)
        return dcp_error_memory(err, "a name");
    memcpy(text, name, n);
    memcpy(text + n, tail, size - n);
    *out = dcp_catalog_find(catalog, text);
    return DCP_OK;
}

/* The bytes of a name before its last part. */
static size_t stem_bytes(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? (size_t)(dot - name) + 1 : 0;
}

int dcp_scale_find(const struct dcp_catalog *catalog, const struct dcp_tensor *weight,
                   int *out_scale, struct dcp_error *err)
{
    const char *name = weight->name;
    size_t stem = stem_bytes(name);
    int rc = DCP_OK;

    *out_scale = -1;
    if (!dcp_scale_is_f8(weight->dtype))
        return DCP_OK;
    for (size_t i = 0; i < DCP_ARRAY_LEN(added) && *out_scale < 0 && !rc; i++)
        rc = find_named(catalog, name, strlen(name), added[i], out_scale, err);
    if (!strcmp(name + stem, WEIGHT))
        for (size_t i = 0; i < DCP_ARRAY_LEN(instead) && *out_scale < 0 && !rc; i++)
            rc = find_named(catalog, name, stem, instead[i], out_scale, err);
    return rc;
}

static int is_scaled(const struct dcp_catalog *catalog, int weight,
                     const struct dcp_tensor *scale, bool *out, struct dcp_error *err)
{
    int at = -1;
    int rc = weight < 0 ? DCP_OK
                        : dcp_scale_find(catalog, &catalog->tensors[weight], &at, err);

    *out = at >= 0 && &catalog->tensors[at] == scale;
    return rc;
}

int dcp_scale_check(const struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                    bool *out_is_scale, struct dcp_error *err)
{
    const char *name = tensor->name;
    size_t n = strlen(name), stem = stem_bytes(name);
    int beside = -1, rc = DCP_OK;
    char shown[160];

    *out_is_scale = false;
    if (!strstr(name + stem, "scale") || dcp_scale_is_f8(tensor->dtype))
        return DCP_OK;
    for (size_t i = 0; i < DCP_ARRAY_LEN(added) && !*out_is_scale && !rc; i++) {
        if (!dcp_str_ends(name, added[i]))
            continue;
        rc = find_named(catalog, name, n - strlen(added[i]), "", &beside, err);
        if (!rc)
            rc = is_scaled(catalog, beside, tensor, out_is_scale, err);
    }
    if (rc || *out_is_scale)
        return rc;
    rc = find_named(catalog, name, stem, WEIGHT, &beside, err);
    if (rc || beside < 0 || !dcp_scale_is_f8(catalog->tensors[beside].dtype))
        return rc;
    rc = is_scaled(catalog, beside, tensor, out_is_scale, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < DCP_ARRAY_LEN(of_inputs); i++)
        *out_is_scale = *out_is_scale || !strcmp(name + stem, of_inputs[i]);
    if (*out_is_scale)
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "'%s' scales an 8-bit weight in a way that is not known",
                  dcp_str_escape(shown, sizeof shown, name));
    dcp_error_hint(err, "without --dtype the 8 bits and their scales are kept");
    dcp_error_tensor(err, name);
    return DCP_E_UNSUPPORTED;
}

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
    char shown[160];

    for (int d = weight->ndim - 1; d >= 0; d--) {
        int64_t n = d < factors->ndim && factors->n_elems != 1 ? factors->shape[d] : 1;
        scale->block[d] = block_of(weight->shape[d], n);
        scale->stride[d] = stride;
        fits = fits && scale->block[d];
        stride *= n;
    }
    if (fits && dcp_dtype_is_float(factors->dtype))
        return DCP_OK;
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "the scales of the 8-bit weight '%s' do not fit its shape",
                  dcp_str_escape(shown, sizeof shown, weight->name));
    dcp_error_hint(err, "without --dtype the 8 bits and their scales are kept");
    dcp_error_tensor(err, weight->name);
    return DCP_E_UNSUPPORTED;
}

/* The whole tensor, in 32 bits: a copy onto one piece. */
static int read_values(const struct dcp_catalog *src, int tensor,
                       struct dcp_blocks *blocks, float **out, struct dcp_error *err)
{
    struct dcp_tensor factors = src->tensors[tensor];
    size_t n = (size_t)factors.n_elems;
    DCP_CLEANUP_FREE unsigned char *raw =
        dcp_mem_calloc(n, dcp_dtype_size(factors.dtype));
    struct dcp_catalog *one = NULL;
    struct dcp_plan *plan = NULL;

    *out = dcp_mem_calloc(n, sizeof **out);
    if (!raw || !*out)
        return dcp_error_memory(err, "the scales of a weight");
    factors.tied_to = NULL;
    int rc = dcp_catalog_new(&one, err);
    if (!rc)
        rc = dcp_catalog_add_tensor(one, &factors, NULL, err);
    if (!rc)
        rc = dcp_catalog_add_piece(one, &(struct dcp_piece){ .file = -1 }, err);
    if (!rc)
        rc = dcp_catalog_sort(one, err);
    if (!rc)
        rc = dcp_plan_new(src, one, &tensor, &plan, err);
    struct dcp_copier copier = { .plan = plan, .src = src, .dst = one, .blocks = blocks };
    if (!rc)
        rc = dcp_copy_piece(&copier, 0, 0, factors.n_elems, raw, err);
    if (!rc)
        rc = dcp_cast(factors.dtype, DCP_F32, raw, *out, n, err);
    dcp_plan_free(plan);
    dcp_catalog_free(one);
    return rc;
}

int dcp_scale_of(struct dcp_scale *scale, const struct dcp_catalog *src,
                 const struct dcp_tensor *weight, struct dcp_blocks *blocks,
                 struct dcp_error *err)
{
    unsigned char codes[DCP_ARRAY_LEN(scale->of_code)];

    if (scale->weight == weight)
        return DCP_OK;
    dcp_scale_fini(scale);
    scale->weight = weight;
    int at, rc = dcp_scale_find(src, weight, &at, err);
    if (!rc && at < 0)
        return DCP_OK;
    for (size_t i = 0; i < DCP_ARRAY_LEN(codes); i++)
        codes[i] = (unsigned char)i;
    if (!rc)
        rc = dcp_cast(weight->dtype, DCP_F32, codes, scale->of_code, DCP_ARRAY_LEN(codes),
                      err);
    if (!rc)
        rc = fit(scale, &src->tensors[at], err);
    if (!rc)
        rc = read_values(src, at, blocks, &scale->values, err);
    if (rc)
        dcp_scale_fini(scale);
    return rc;
}

/* -- applying ------------------------------------------------------------------------ */

/* Where the elements of a piece lie in its tensor: a box, and strides in its memory. */
struct place {
    int ndim;
    int order[DCP_MAX_NDIM]; /* dimensions, the one with the largest stride first */
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM], stride[DCP_MAX_NDIM];
    int64_t flat; /* element of the box that is the piece's first */
};

static struct place place_of(const struct dcp_tensor *tensor,
                             const struct dcp_piece *piece)
{
    struct place p = { .ndim = tensor->ndim };
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
static float factor_at(const struct dcp_scale *scale, const struct place *p, int64_t at,
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
    struct place place = place_of(scale->weight, piece);
    int64_t count = (int64_t)n;

    for (int64_t i = 0, run; i < count; i += run) {
        float factor = factor_at(scale, &place, begin + i, count - i, &run);
        for (int64_t k = i; k < i + run; k++)
            out[k] = scale->of_code[in[k]] * factor;
    }
}
