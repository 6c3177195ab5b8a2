#include "index.h"
#include "base/mem.h"

int dcp_index(const struct dcp_source *source, const struct dcp_format *format,
              bool partial, struct dcp_catalog **out, struct dcp_error *err)
{
    DCP_TRY(dcp_catalog_new(out, err));
    (*out)->partial = partial;
    int rc = format->index(source, *out, err);
    if (!rc)
        rc = dcp_catalog_sort(*out, err);
    if (!rc && !(*out)->format[0])
        (*out)->format = format->name;
    if (rc) {
        dcp_catalog_free(*out);
        *out = NULL;
    }
    return rc;
}

bool dcp_is_broken(int rc)
{
    return rc == DCP_E_CORRUPT || rc == DCP_E_IO || rc == DCP_E_NOT_FOUND;
}
