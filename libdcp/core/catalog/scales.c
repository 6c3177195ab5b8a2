/* scales: finding factors by their names. */
#include "scales.h"
#include "base/mem.h"
#include "base/str.h"
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

    *out_scale = -1;
    if (!dcp_scale_is_f8(weight->dtype))
        return DCP_OK;
    for (size_t i = 0; i < DCP_ARRAY_LEN(added) && *out_scale < 0; i++)
        DCP_TRY(find_named(catalog, name, strlen(name), added[i], out_scale, err));
    if (!strcmp(name + stem, WEIGHT))
        for (size_t i = 0; i < DCP_ARRAY_LEN(instead) && *out_scale < 0; i++)
            DCP_TRY(find_named(catalog, name, stem, instead[i], out_scale, err));
    return DCP_OK;
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
    int beside = -1;

    *out_is_scale = false;
    if (!strstr(name + stem, "scale") || dcp_scale_is_f8(tensor->dtype))
        return DCP_OK;
    for (size_t i = 0; i < DCP_ARRAY_LEN(added) && !*out_is_scale; i++) {
        if (!dcp_str_ends(name, added[i]))
            continue;
        DCP_TRY(find_named(catalog, name, n - strlen(added[i]), "", &beside, err));
        DCP_TRY(is_scaled(catalog, beside, tensor, out_is_scale, err));
    }
    if (*out_is_scale)
        return DCP_OK;
    DCP_TRY(find_named(catalog, name, stem, WEIGHT, &beside, err));
    if (beside < 0 || !dcp_scale_is_f8(catalog->tensors[beside].dtype))
        return DCP_OK;
    DCP_TRY(is_scaled(catalog, beside, tensor, out_is_scale, err));
    for (size_t i = 0; i < DCP_ARRAY_LEN(of_inputs); i++)
        *out_is_scale = *out_is_scale || !strcmp(name + stem, of_inputs[i]);
    if (*out_is_scale)
        return DCP_OK;
    dcp_error_of_tensor(err, DCP_E_UNSUPPORTED, name,
                        "'%s' scales an 8-bit weight in a way that is not known",
                        DCP_SHOWN(name));
    dcp_error_hint(err, "without --dtype the 8 bits and their scales are kept");
    return DCP_E_UNSUPPORTED;
}
