#include "source.h"

int dcp_source_trust(struct dcp_main *m, const struct dcp_source *source,
                     const char *path, struct dcp_error *err)
{
    struct dcp_signature by;
    if (!m->trusted)
        return DCP_OK;
    const struct dcp_progress progress = dcp_main_progress(m, "checking the signature");
    int rc = dcp_check_signature(source, m->trusted, &progress, &by, err);
    dcp_main_progress_end(m);
    if (rc)
        dcp_error_prefix(err, "'%s' is not trusted", path);
    return rc;
}

int dcp_source_open(struct dcp_main *m, const char *path, struct dcp_place *out,
                    struct dcp_error *err)
{
    const struct dcp_place_options options = { .max_header_bytes = m->max_header_bytes };
    int rc = dcp_place_open_with(path, &options, out, err);
    if (rc)
        return rc;
    rc = dcp_source_trust(m, &out->source, out->path, err);
    if (rc)
        dcp_place_close(out);
    return rc;
}
