#include "ties.h"
#include <string.h>

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
        json_object_del(map, name);
    }
    return rc;
}
