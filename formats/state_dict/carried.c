#include "carried.h"
#include "base/str.h"
#include <string.h>

bool dcp_is_carried(const struct dcp_catalog *catalog, const char *name)
{
    if (!strcmp(name, DCP_CARRIED_COMMON) || !strcmp(name, DCP_CARRIED_METADATA))
        return true;
    return dcp_str_starts(name, DCP_CARRIED_PREFIX) &&
           dcp_catalog_find_object(catalog, DCP_CARRIED_COMMON) >= 0;
}
