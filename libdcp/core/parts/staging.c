#include "staging.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/run/leftover.h"
#include "core/run/pin.h"
#include <stdio.h>
#include <string.h>

#define LOOK_US 2000 /* between two tries to take a lease */
enum { LOOKS = 100 };

int dcp_staging_init(struct dcp_staging *staging, const struct dcp_store *store,
                     const char *name, struct dcp_error *err)
{
    *staging = (struct dcp_staging){ .store = store };
    staging->folder = dcp_str_join(DCP_PARTS_PREFIX, name, "");
    if (staging->folder)
        staging->files = dcp_str_join(staging->folder, "/files", "");
    if (staging->files)
        staging->prefix = dcp_str_join(staging->files, "/", "");
    return staging->prefix ? DCP_OK : dcp_error_memory(err, "the parts of a reshard");
}

void dcp_staging_fini(struct dcp_staging *staging)
{
    dcp_unpin(staging->store, &staging->part);
    dcp_unpin(staging->store, &staging->held);
    free(staging->folder);
    free(staging->files);
    free(staging->prefix);
    *staging = (struct dcp_staging){ 0 };
}

static int exists(const struct dcp_store *store, const char *name, bool *out,
                  struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    bool is_dir;
    uint64_t size;
    int rc = store->ops->stat(store->self, name, &is_dir, &size, &why);

    *out = !rc;
    if (!rc || rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (err)
        *err = why;
    return rc;
}

int dcp_staging_look(const struct dcp_staging *staging, enum dcp_staging_state *out,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *job = dcp_staging_path(staging, "job", -1);
    bool has_folder, has_files, has_job;

    *out = DCP_STAGING_NONE;
    if (!job)
        return dcp_error_memory(err, "the parts of a reshard");
    DCP_TRY(exists(staging->store, staging->folder, &has_folder, err));
    DCP_TRY(exists(staging->store, staging->files, &has_files, err));
    DCP_TRY(exists(staging->store, job, &has_job, err));
    if (has_files)
        *out = DCP_STAGING_OPEN;
    else if (has_folder && has_job)
        *out = DCP_STAGING_DONE;
    return DCP_OK;
}

char *dcp_staging_path(const struct dcp_staging *staging, const char *word, int part)
{
    char name[64];

    if (part < 0)
        snprintf(name, sizeof name, "%s", word);
    else
        snprintf(name, sizeof name, "%s-%05d", word, part + 1);
    return dcp_str_join(staging->folder, "/", name);
}

/* A folder, or an empty file, that others may make at the same time. */
static int make(const struct dcp_store *store, const char *name, bool is_dir,
                struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    struct dcp_store_file *file = NULL;
    int rc = is_dir ? store->ops->make_dir(store->self, name, &why)
                    : store->ops->create(store->self, name, 0, &file, &why);

    if (file)
        store->ops->close(store->self, file, NULL);
    if (rc && rc != DCP_E_EXISTS && err)
        *err = why;
    return rc == DCP_E_EXISTS ? DCP_OK : rc;
}

/* BUSY: somebody has it. NOT_FOUND: it went before it was held. */
static int hold(const struct dcp_store *store, const char *name, bool exclusive,
                struct dcp_store_file **out)
{
    int rc = store->ops->hold ? store->ops->hold(store->self, name, exclusive, out, NULL)
                              : DCP_OK;

    return rc == DCP_E_BUSY || rc == DCP_E_NOT_FOUND || rc == DCP_E_MEMORY ? rc : DCP_OK;
}

/* The folder with its lock, which is held: who removes them holds it, too. */
static int enter_folder(struct dcp_staging *staging, const char *lock,
                        struct dcp_error *err)
{
    const struct dcp_store *store = staging->store;
    int rc = DCP_E_BUSY;

    for (int i = 0; i < LOOKS; i++) {
        struct dcp_error why = { 0 };
        rc = make(store, staging->folder, true, &why);
        if (!rc)
            rc = make(store, lock, false, &why);
        if (!rc)
            rc = hold(store, lock, false, &staging->held);
        if (why.code && rc != DCP_E_NOT_FOUND) {
            if (err)
                *err = why;
            return rc;
        }
        if (!rc)
            return DCP_OK;
        dcp_clock_sleep_us(LOOK_US);
    }
    return dcp_error_set(err, DCP_E_BUSY, "'%s/%s' is being finished by another process",
                         store->root, staging->folder);
}

int dcp_staging_enter(struct dcp_staging *staging, int part, struct dcp_error *err)
{
    const struct dcp_store *store = staging->store;
    DCP_CLEANUP_FREE char *lock = dcp_str_join(staging->folder, DCP_PARTS_LOCK, "");
    DCP_CLEANUP_FREE char *mine = dcp_staging_path(staging, "lock", part);

    if (!lock || !mine)
        return dcp_error_memory(err, "the parts of a reshard");
    DCP_TRY(enter_folder(staging, lock, err));
    DCP_TRY(make(store, mine, false, err));
    if (hold(store, mine, true, &staging->part) == DCP_E_BUSY)
        return dcp_error_set(err, DCP_E_BUSY,
                             "another process is making part %d in '%s/%s'", part + 1,
                             store->root, staging->folder);
    DCP_TRY(make(store, staging->files, true, err));
    return store->ops->sync_dir(store->self, staging->folder, err);
}

int dcp_staging_close(struct dcp_staging *staging, struct dcp_error *err)
{
    const struct dcp_store *store = staging->store;
    DCP_CLEANUP_FREE char *lock = dcp_str_join(staging->folder, DCP_PARTS_LOCK, "");
    int rc = DCP_E_BUSY;

    if (!lock)
        return dcp_error_memory(err, "the parts of a reshard");
    for (int i = 0; i < LOOKS && rc == DCP_E_BUSY; i++) {
        if (i)
            dcp_clock_sleep_us(LOOK_US);
        rc = hold(store, lock, true, &staging->held);
    }
    if (rc != DCP_E_BUSY)
        return DCP_OK;
    dcp_error_set(err, DCP_E_BUSY,
                  "'%s/%s' is in use: a part is still being made, or another process "
                  "finishes it",
                  store->root, staging->folder);
    dcp_error_hint(err, "finish once, when all parts have ended");
    return DCP_E_BUSY;
}

int dcp_staging_remove(struct dcp_staging *staging, struct dcp_error *err)
{
    int rc = dcp_leftover_bury(staging->store, staging->folder, err);

    dcp_unpin(staging->store, &staging->held);
    return rc == DCP_E_NOT_FOUND ? DCP_OK : rc;
}
