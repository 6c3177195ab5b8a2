/* packed: found by dtypes, and by what quantizers call their integers. */
#include "packed.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

/* What quantizers call the integers that weights were made to, for all that one of them
 * may be inside of: other integers of models are sizes, places, masks. */
static const char *const packed_names[] = { "weight", "qweight", "weight_packed",
                                            "qzeros", "W_q",     "codes",
                                            "_data",  "indices", "weight_int8" };
static const char *const ends[] = { "_blocks", "_packed", "_codes" };

static size_t module_bytes(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? (size_t)(dot - name) : 0;
}

static bool is_small_integer(enum dcp_dtype dtype)
{
    return dtype == DCP_U8 || dtype == DCP_I8 || dtype == DCP_U16 || dtype == DCP_I16 ||
           dtype == DCP_U32 || dtype == DCP_I32;
}

static bool is_packed(const struct dcp_tensor *tensor)
{
    size_t module = module_bytes(tensor->name);
    const char *last = tensor->name + module + (module > 0);

    if (!is_small_integer(tensor->dtype) || tensor->n_elems < 2 ||
        dcp_role_is_optim(tensor->role))
        return false;
    for (size_t i = 0; i < DCP_ARRAY_LEN(packed_names); i++)
        if (!strcmp(last, packed_names[i]))
            return true;
    for (size_t i = 0; i < DCP_ARRAY_LEN(ends); i++)
        if (dcp_str_ends(last, ends[i]))
            return true;
    return false;
}

/* Of "layer.weight._data" the scales of what goes in and out stand in "layer". */
static bool add_modules(struct dcp_packed *out, const char *name)
{
    static const char inner[] = ".weight";
    size_t module = module_bytes(name);

    if (!dcp_map_set(&out->modules, name, module, 0) ||
        !dcp_map_set(&out->modules, name, strlen(name), 0))
        return false;
    if (module < strlen(inner) ||
        memcmp(name + module - strlen(inner), inner, strlen(inner)) != 0)
        return true;
    return dcp_map_set(&out->modules, name, module - strlen(inner), 0);
}

int dcp_packed_find(const struct dcp_catalog *catalog, struct dcp_packed *out,
                    struct dcp_error *err)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (is_packed(tensor) && !add_modules(out, tensor->name))
            return dcp_error_memory(err, "packed weights");
    }
    return DCP_OK;
}

bool dcp_packed_needs(const struct dcp_packed *packed, const struct dcp_tensor *tensor)
{
    return packed->modules.n && !dcp_role_is_optim(tensor->role) &&
           !dcp_str_ends(tensor->name, "bias") &&
           dcp_map_find(&packed->modules, tensor->name, module_bytes(tensor->name)) >= 0;
}

void dcp_packed_fini(struct dcp_packed *packed)
{
    dcp_map_fini(&packed->modules);
}
