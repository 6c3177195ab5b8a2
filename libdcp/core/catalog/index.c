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

int dcp_index(const struct dcp_source *source, const struct dcp_format *format,
              bool partial, struct dcp_catalog **out, struct dcp_error *err)
{
    DCP_TRY(dcp_catalog_new(out, err));
    (*out)->partial = partial;
    int rc = format->index(source, *out, err);
    if (!rc)
        rc = dcp_catalog_sort(*out, err);
    if (!rc && !is_lost(*out))
        rc = dcp_grids_check(*out, err);
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
