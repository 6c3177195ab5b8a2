/* packed: found by dtypes and modules, so that nobody lists quantizers. */
#include "packed.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

/* What else models keep in small integers: how such names end, or what is in them. */
static const char *const ends[] = { "_ids", "_index", "_tracked", "bias" };
static const char *const parts[] = { "mask", "position" };

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
    for (size_t i = 0; i < DCP_ARRAY_LEN(ends); i++)
        if (dcp_str_ends(last, ends[i]))
            return false;
    for (size_t i = 0; i < DCP_ARRAY_LEN(parts); i++)
        if (strstr(last, parts[i]))
            return false;
    return module || strstr(last, "weight"); /* a plain list of arrays is no module */
}

int dcp_packed_find(const struct dcp_catalog *catalog, struct dcp_packed *out,
                    struct dcp_error *err)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (is_packed(tensor) &&
            (!dcp_map_set(&out->modules, tensor->name, module_bytes(tensor->name), 0) ||
             !dcp_map_set(&out->modules, tensor->name, strlen(tensor->name), 0)))
            return dcp_error_memory(err, "packed weights");
    }
    return DCP_OK;
}

bool dcp_packed_needs(const struct dcp_packed *packed, const struct dcp_tensor *tensor)
{
    return packed->modules.n && !dcp_role_is_optim(tensor->role) &&
           dcp_map_find(&packed->modules, tensor->name, module_bytes(tensor->name)) >= 0;
}

void dcp_packed_fini(struct dcp_packed *packed)
{
    dcp_map_fini(&packed->modules);
}
