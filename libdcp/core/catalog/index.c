#include "index.h"
#include "base/mem.h"
#include "grid.h"

/* Whether a file is lost, and the pieces in it. */
static bool is_lost(const struct dcp_catalog *catalog)
{
    bool lost = false;

    for (size_t f = 0; f < catalog->n_files; f++)
        lost |= catalog->files[f].lost != 0;
    return lost;
}

/* The catalog of what read gave: sorted when it is good. */
static int finish(int rc, const struct dcp_format *format, struct dcp_catalog **out,
                  struct dcp_error *err)
{
    if (!rc)
        rc = dcp_catalog_sort(*out, err);
    if (!rc && !(*out)->head && !is_lost(*out))
        rc = dcp_grids_check(*out, err);
    if (!rc && !(*out)->format[0])
        (*out)->format = format->name;
    if (rc) {
        dcp_catalog_free(*out);
        *out = NULL;
    }
    return rc;
}

int dcp_index(const struct dcp_source *source, const struct dcp_format *format,
              bool partial, struct dcp_catalog **out, struct dcp_error *err)
{
    DCP_TRY(dcp_catalog_new(out, err));
    (*out)->partial = partial;
    return finish(format->index(source, *out, err), format, out, err);
}

int dcp_index_head(const struct dcp_source *source, const struct dcp_format *format,
                   struct dcp_catalog **out, struct dcp_error *err)
{
    if (!format->index_head)
        return dcp_index(source, format, false, out, err);
    DCP_TRY(dcp_catalog_new(out, err));
    int rc = format->index_head(source, *out, err);
    if (!rc)
        rc = format->index_counts(source, *out, err);
    return finish(rc, format, out, err);
}

bool dcp_is_broken(int rc)
{
    return rc == DCP_E_CORRUPT || rc == DCP_E_IO || rc == DCP_E_NOT_FOUND;
}
