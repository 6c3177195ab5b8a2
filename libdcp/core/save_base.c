#include "save_base.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/index.h"
#include "core/catalog/pack.h"
#include "core/collective/bcast.h"
#include "core/delta/folder.h"
#include "core/run/steps.h"
#include <stdio.h>
#include <string.h>

void dcp_save_base_fini(struct dcp_save_base *base)
{
    dcp_catalog_free(base->catalog);
    *base = (struct dcp_save_base){ 0 };
}

void dcp_save_base_take(struct dcp_save_base *base, const char *name,
                        struct dcp_catalog **catalog)
{
    dcp_save_base_fini(base);
    snprintf(base->name, sizeof base->name, "%s", name);
    base->catalog = *catalog;
    *catalog = NULL;
    base->read = base->looked = true;
}

/* -- the newest step of the run, or its base ----------------------------------------- */

static int name_base(struct dcp_save_base *base, const struct dcp_store *store,
                     const struct dcp_step *newest, struct dcp_error *err)
{
    struct dcp_delta_folder is;

    snprintf(base->name, sizeof base->name, "%s", newest->name);
    base->number = 0;
    if (!newest->chain)
        return DCP_OK;
    int rc = dcp_delta_folder_read(store, newest->name, &is, err);
    bool beside = !rc && is.chain == 1 && dcp_str_starts(is.base_path, "../") &&
                  dcp_step_parse(is.base_path + 3) >= 0;
    if (beside)
        snprintf(base->name, sizeof base->name, "%s", is.base_path + 3);
    base->number = is.number;
    dcp_delta_folder_fini(&is);
    if (rc || beside)
        return rc;
    return dcp_error_set(err, DCP_E_MISMATCH, "%s is a delta on no full step of the run",
                         newest->name);
}

/* A step of other ranks is no base: their shards have nothing in common. */
static int look(struct dcp_save_base *base, const struct dcp_store *store, int64_t below,
                int world_size, struct dcp_error *err)
{
    const struct dcp_context alone = { .store = store };
    struct dcp_step newest = { .step = -1 };
    struct dcp_error none = { 0 };

    int rc = dcp_find_below(&alone, -1, below, &newest, &none);
    if (rc == DCP_E_NOT_FOUND) /* the run begins */
        return DCP_OK;
    if (!rc && !newest.complete)
        rc = dcp_error_set(&none, DCP_E_CORRUPT, "%s is incomplete", newest.name);
    if (!rc)
        rc = name_base(base, store, &newest, &none);
    if (!rc)
        rc = dcp_index(&(struct dcp_source){ store, base->name, true },
                       dcp_format_of_steps(), false, &base->catalog, &none);
    base->found = !rc && base->catalog->world_size == world_size;
    if (!base->found)
        base->name[0] = '\0';
    if (rc && err)
        *err = none;
    return rc;
}

int dcp_save_base_choose(struct dcp_save_base *base, const struct dcp_store *store,
                         const struct dcp_save_options *options, int world_size,
                         struct dcp_error *err)
{
    bool wants = options->delta > 1;
    int rc = DCP_OK;

    base->unfit = (struct dcp_error){ 0 };
    if (wants && !store->reads_deltas)
        dcp_error_set(&base->unfit, DCP_E_UNSUPPORTED,
                      "deltas are not read in '%s': it is no dcp_store_delta",
                      store->root);
    else if (wants && !base->looked)
        rc = look(base, store, options->step, world_size, &base->unfit);
    base->looked |= wants;
    if (!wants || base->unfit.code || base->number + 1 >= options->delta)
        base->name[0] = '\0';
    if (rc == DCP_E_MEMORY && err)
        *err = base->unfit;
    return rc == DCP_E_MEMORY ? rc : DCP_OK;
}

/* -- all ranks ----------------------------------------------------------------------- */

static int share_catalog(struct dcp_save_base *base, struct dcp_comm *comm,
                         struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf all = { 0 };
    int rc = comm->rank == 0 ? dcp_pack_catalog(base->catalog, &all, err) : DCP_OK;

    rc = dcp_bcast_buf(comm, &all, rc, err);
    if (!rc && comm->rank != 0) {
        dcp_catalog_free(base->catalog);
        rc = dcp_unpack_catalog(all.data, all.size_bytes, &base->catalog, err);
    }
    return dcp_agree(comm, rc, err);
}

struct dcp_save_base_told dcp_save_base_tell(const struct dcp_save_base *base)
{
    struct dcp_save_base_told told = { .number = base->number, .found = base->found };

    memcpy(told.name, base->name, sizeof told.name);
    return told;
}

int dcp_save_base_hear(struct dcp_save_base *base, const struct dcp_save_base_told *told,
                       struct dcp_comm *comm, struct dcp_error *err)
{
    memcpy(base->name, told->name, sizeof base->name);
    base->number = told->number;
    base->found = false;
    return told->found && told->name[0] ? share_catalog(base, comm, err) : DCP_OK;
}
