#include "json.h"

#include "base/json.h"
#include <string.h>

json_t *state_json_object(const struct dcp_catalog *catalog, const char *name)
{
    int found = dcp_catalog_find_object(catalog, name);
    json_t *value = NULL;
    if (found >= 0 && catalog->objects[found].kind == DCP_OBJECT_JSON &&
        dcp_json_parse(catalog->objects[found].data, catalog->objects[found].size_bytes,
                       name, &value, NULL))
        return NULL;
    return value;
}

json_t *state_json_config(const char *text)
{
    json_t *value = NULL;
    return dcp_json_parse(text, strlen(text), "the configuration", &value, NULL) ? NULL
                                                                                 : value;
}

const json_t *state_json_scheduler(const json_t *config)
{
    return json_object_get(json_object_get(config, "scheduler"), "params");
}
