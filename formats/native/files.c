/* Files of a step, as the manifest names them. */
#include "base/mem.h"
#include "base/str.h"
#include "native.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The store's name of a file of the step. Caller frees. */
static char *path_of(const struct dcp_source *source, const char *file)
{
    size_t n = strlen(source->name) + strlen(file) + 2;
    char *path = malloc(n);

    if (path)
        snprintf(path, n, "%s%s%s", source->name, source->name[0] ? "/" : "", file);
    return path;
}

/* What the manifests name must be there. */
static int missing(const char *file, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' of the step is missing",
                         DCP_SHOWN(file));
}

int dcp_native_read(const struct dcp_source *source, const char *file, char **out,
                    size_t *out_n, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = path_of(source, file);
    struct dcp_error why = { 0 };
    void *data = NULL;

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = dcp_store_read_header(source->store, path, NATIVE_USUAL_MANIFEST_BYTES,
                                   &data, out_n, &why);
    *out = data;
    /* A folder without manifest and shards is no step, rather than a corrupt one. */
    if (rc == DCP_E_NOT_FOUND && dcp_native_probe(source))
        return missing(file, err);
    if (rc && err)
        *err = why;
    return rc;
}

/* A file the manifest names: there, a file, and of the size it says. */
int dcp_native_check_file(const struct dcp_source *source, const char *name,
                          uint64_t size, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = path_of(source, name);
    struct dcp_error why = { 0 };
    bool is_dir;
    uint64_t found;

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = source->store->ops->stat(source->store->self, path, &is_dir, &found, &why);
    if (rc == DCP_E_NOT_FOUND)
        return missing(name, err);
    if (rc && err)
        *err = why;
    if (!rc && (is_dir || found != size))
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "'%s' has %" PRIu64 " bytes, the manifest says %" PRIu64,
                           DCP_SHOWN(name), is_dir ? 0 : found, size);
    return rc;
}

int dcp_native_add_file(struct dcp_catalog *catalog, struct dcp_file file, int rc,
                        const struct dcp_error *why, int *out, struct dcp_error *err)
{
    bool broken = rc == DCP_E_CORRUPT || rc == DCP_E_NOT_FOUND || rc == DCP_E_IO ||
                  rc == DCP_E_UNSUPPORTED;

    if (rc && !(catalog->partial && broken)) {
        if (err)
            *err = *why;
        return rc;
    }
    file.lost = rc;
    if (rc && !(file.lost_why = dcp_catalog_text(catalog, why->message)))
        return dcp_error_memory(err, "a catalog");
    return dcp_catalog_add_file(catalog, &file, out, err);
}
