#include "source.h"

int dcp_source_open(const struct dcp_main *m, const char *path, struct dcp_place *out,
                    struct dcp_error *err)
{
    const struct dcp_place_options options = { .max_header_bytes = m->max_header_bytes };
    return dcp_place_open_with(path, &options, out, err);
}
