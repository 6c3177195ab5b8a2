#include "ties.h"
#include "base/str.h"
#include <string.h>

/* What the second name of a tensor is without what its own name has before its param:
 * "head.weight" of "model.head.weight", when the tensor is "embed.weight" of
 * "model.embed.weight". */
static const char *param_of(const char *name, const struct dcp_tensor *tensor)
{
    size_t n = strlen(tensor->name), n_param = strlen(tensor->param),
           before = n - n_param;

    return dcp_str_ends(tensor->name, tensor->param) &&
                   !strncmp(name, tensor->name, before) && name[before]
               ? name + before
               : name;
}

int dcp_ties_index(struct dcp_catalog *catalog, json_t *map, struct dcp_error *err)
{
    const char *name;
    json_t *value;
    void *next;
    int rc = DCP_OK;

    json_object_foreach_safe(map, next, name, value)
    {
        const char *of = json_string_value(value);
        int tensor = of ? dcp_catalog_find(catalog, of) : -1;
        if (tensor < 0 || !name[0] || dcp_catalog_find(catalog, name) >= 0)
            continue;
        rc = dcp_catalog_add_alias(catalog, name, tensor, err);
        if (rc)
            return rc;
        struct dcp_tensor *alias = &catalog->tensors[catalog->n_tensors - 1];
        alias->param = param_of(alias->name, &catalog->tensors[tensor]);
        json_object_del(map, name);
    }
    return rc;
}
