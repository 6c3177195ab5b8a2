#include "delta.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/index.h"
#include "core/delta/making.h"
#include <string.h>

/* The base has the digests of its own manifest: a delta on what is damaged could never be
 * read once that is mended. */
static int check_base(void *self, bool of_base, const char *name, uint64_t crc,
                      struct dcp_error *err)
{
    const struct dcp_catalog *base = self;

    for (size_t f = 0; of_base && f < base->n_files; f++)
        if (base->files[f].has_crc && base->files[f].crc != crc &&
            !strcmp(base->files[f].name, name))
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "'%s' of its base is corrupt: its digest differs",
                                 DCP_SHOWN(name));
    return DCP_OK;
}

/* In a store of deltas a folder that is one does not list what makes it one. */
static int check_shown(const struct dcp_source *made, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;
    bool raw = false;
    int rc = made->store->ops->list(made->store->self, made->name, &entries, &n, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        raw |= !strcmp(entries[i].name, DCP_DELTA_JSON);
    dcp_store_list_free(entries, n);
    return raw ? dcp_error_set(err, DCP_E_UNSUPPORTED,
                               "deltas are not read in '%s': it is no dcp_store_delta",
                               made->store->root)
               : DCP_OK;
}

static int remove_file(const struct dcp_delta_output *output, const char *name,
                       const char *suffix, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(output->prefix, name, suffix);
    struct dcp_error why = { 0 };

    if (!path)
        return dcp_error_memory(err, "a file name");
    int rc = output->store->ops->remove(output->store->self, path, &why);
    if (!rc || rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (err)
        *err = why;
    return rc;
}

/* The files that are coded now, or what was made of them. */
static int remove_coded(const struct dcp_delta_making *making, const char *suffix,
                        struct dcp_error *err)
{
    for (size_t i = 0; i < making->is.n_files; i++)
        if (making->is.files[i].coded)
            DCP_TRY(remove_file(&making->output, making->is.files[i].name, suffix, err));
    return DCP_OK;
}

/* As if nothing had been made. */
static int undo(const struct dcp_delta_making *making, struct dcp_error *err)
{
    DCP_TRY(remove_file(&making->output, DCP_DELTA_JSON, "", err));
    return remove_coded(making, DCP_DELTA_SUFFIX, err);
}

static int make(struct dcp_delta_making *making, const char *base, struct dcp_error *err)
{
    making->is.chain = 1;
    making->is.base_path = dcp_str_join("../", base, "");
    if (!making->is.base_path)
        return dcp_error_memory(err, "a delta");
    DCP_TRY(dcp_delta_making_init(making, err));
    DCP_TRY(dcp_delta_making_run(making, err));
    DCP_TRY(check_shown(&making->source, err));
    return dcp_delta_making_prove(making, &making->source, err);
}

int dcp_write_delta(const struct dcp_store *store, const char *tmp, const char *base,
                    const char *plain, struct dcp_delta_result *out_result,
                    bool *out_torn, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *prefix = dcp_str_join(tmp, "/", "");
    struct dcp_catalog *catalog = NULL;
    struct dcp_delta_making making = { .base = { store, base, true },
                                       .source = { store, tmp, true },
                                       .output = { store, prefix },
                                       .in_place = true,
                                       .plain = plain,
                                       .threads = 1,
                                       .result = out_result,
                                       .prove = check_base };

    *out_result = (struct dcp_delta_result){ 0 };
    *out_torn = false;
    if (!prefix)
        return dcp_error_memory(err, "a delta");
    int rc = dcp_index(&making.base, dcp_format_of_steps(), false, &catalog, err);
    if (rc)
        return rc;
    making.self = catalog;
    rc = make(&making, base, err);
    if (rc)
        *out_torn = undo(&making, NULL) != DCP_OK;
    else /* one that stays is no part of the delta, and not seen */
        remove_coded(&making, "", NULL);
    dcp_delta_making_fini(&making);
    dcp_catalog_free(catalog);
    return rc;
}
