#include "publish.h"
#include "base/mem.h"
#include "base/str.h"
#include "leftover.h"
#include "pin.h"
#include "steps.h"
#include <string.h>

/* Whether a name is taken, also by what is no file or folder. */
static int look(const struct dcp_store *store, const char *name, bool *out_taken,
                struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    bool is_dir;
    uint64_t size;

    int rc = store->ops->stat(store->self, name, &is_dir, &size, &why);
    *out_taken = rc == DCP_OK || rc == DCP_E_UNSUPPORTED;
    if (*out_taken || rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (err)
        *err = why;
    return rc;
}

/* What was said of a step of that number is not said of a new one. It is there when the
 * step was removed by hand, or when superseding it was cut short. */
static void invalidate_old(const struct dcp_store *store, const char *step)
{
    char marks[96];

    if (dcp_step_parse(step) < 0)
        return;
    dcp_marks_name(step, marks);
    store->ops->remove(store->self, marks, NULL);
    dcp_pin_invalidate(store, step);
}

static int begin(struct dcp_publication *publish, const struct dcp_store *store,
                 const char *name, bool replace, struct dcp_error *err)
{
    bool taken;

    *publish = (struct dcp_publication){ .store = store };
    DCP_TRY(look(store, name, &taken, err));
    if (taken && !replace)
        return dcp_error_set(err, DCP_E_EXISTS, "'%s' already exists in '%s'", name,
                             store->root);
    if (!taken)
        invalidate_old(store, name);
    return DCP_OK;
}

static int take_names(struct dcp_publication *publish, const char *name,
                      struct dcp_error *err)
{
    publish->made = true;
    publish->name = dcp_str_join(name, "", "");
    publish->prefix = dcp_str_join(publish->tmp, "/", "");
    if (!publish->name || !publish->prefix)
        return dcp_error_memory(err, "a target's name");
    return DCP_OK;
}

int dcp_publish_begin(struct dcp_publication *publish, const struct dcp_store *store,
                      const char *name, bool replace, struct dcp_error *err)
{
    DCP_TRY(begin(publish, store, name, replace, err));
    DCP_TRY(dcp_leftover_make(store, DCP_TMP_PREFIX, name, &publish->tmp, &publish->held,
                              err));
    return take_names(publish, name, err);
}

int dcp_publish_adopt(struct dcp_publication *publish, const struct dcp_store *store,
                      const char *name, const char *tmp, bool replace,
                      struct dcp_error *err)
{
    DCP_TRY(begin(publish, store, name, replace, err));
    publish->tmp = dcp_str_join(tmp, "", "");
    if (!publish->tmp)
        return dcp_error_memory(err, "a target's name");
    int rc = take_names(publish, name, err);
    publish->made = false; /* what others filled is not thrown away */
    return rc;
}

/* For stores that cannot exchange names: what has the final name is moved out of the way
 * first, and back when the new one does not come. A crash in between leaves the name
 * empty and both under other names. */
static int displace(struct dcp_publication *publish, const char *from,
                    struct dcp_error *err)
{
    const struct dcp_store *store = publish->store;
    char *trash;
    int rc = dcp_leftover_clear(store, DCP_TRASH_PREFIX, publish->name, &trash, err);

    if (!rc)
        rc = store->ops->publish(store->self, publish->name, trash, err);
    if (rc) {
        free(trash);
        return rc;
    }
    rc = store->ops->publish(store->self, from, publish->name, err);
    if (rc) {
        store->ops->publish(store->self, trash, publish->name, NULL);
        free(trash);
    } else {
        publish->trash = trash;
    }
    return rc;
}

/* Afterwards what was replaced lies in the temporary folder, or is gone. */
static int replace(struct dcp_publication *publish, const char *from,
                   struct dcp_error *err)
{
    const struct dcp_store *store = publish->store;
    struct dcp_error why = { 0 };
    int rc = store->ops->exchange
                 ? store->ops->exchange(store->self, from, publish->name, &why)
                 : DCP_E_UNSUPPORTED;

    if (rc == DCP_E_UNSUPPORTED)
        return displace(publish, from, err);
    if (rc && err)
        *err = why;
    return rc;
}

/* Gives the final name to what is called `from`. Another process may take the name at any
 * time before. */
static int give_name(struct dcp_publication *publish, const char *from, bool replaces,
                     bool *out_replaced, struct dcp_error *err)
{
    const struct dcp_store *store = publish->store;
    struct dcp_error why = { 0 };
    int rc = store->ops->publish(store->self, from, publish->name, &why);

    *out_replaced = rc == DCP_E_EXISTS && replaces;
    if (*out_replaced)
        return replace(publish, from, err);
    if (rc == DCP_E_EXISTS)
        return dcp_error_set(err, DCP_E_EXISTS,
                             "'%s' already exists in '%s': another process made it "
                             "meanwhile",
                             publish->name, store->root);
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_publish_commit(struct dcp_publication *publish, const char *file, bool replaces,
                       struct dcp_error *err)
{
    const struct dcp_store *store = publish->store;
    DCP_CLEANUP_FREE char *path = file ? dcp_str_join(publish->prefix, file, "") : NULL;
    const char *from = file ? path : publish->tmp;

    if (!from)
        return dcp_error_memory(err, "a target's name");
    DCP_TRY(store->ops->sync_dir(store->self, publish->tmp, err));
    bool replaced;
    DCP_TRY(give_name(publish, from, replaces, &replaced, err));
    if (!replaced)
        publish->made = file != NULL; /* the emptied folder is still to be removed */
    if (!file)                        /* it is a step now, which others may mark */
        dcp_unpin(store, &publish->held);
    return DCP_OK;
}

int dcp_publish_exchange(struct dcp_publication *publish, struct dcp_error *err)
{
    const struct dcp_store *store = publish->store;

    DCP_TRY(store->ops->sync_dir(store->self, publish->tmp, err));
    DCP_TRY(store->ops->exchange(store->self, publish->tmp, publish->name, err));
    dcp_unpin(store, &publish->held); /* it is a step now, which others may mark */
    return DCP_OK;
}

static void clear(const struct dcp_store *store, const char *name, struct dcp_error *out)
{
    struct dcp_error why = { 0 };
    int rc = dcp_leftover_remove(store, name, &why);

    /* BUSY: it was removed, and is being made anew. */
    if (rc && rc != DCP_E_NOT_FOUND && rc != DCP_E_BUSY && !out->code)
        *out = why;
}

int dcp_publish_clear(struct dcp_publication *publish, struct dcp_error *err)
{
    struct dcp_error stays = { 0 };

    dcp_unpin(publish->store, &publish->held);
    if (publish->made)
        clear(publish->store, publish->tmp, &stays);
    if (publish->trash)
        clear(publish->store, publish->trash, &stays);
    free(publish->trash);
    publish->trash = NULL;
    publish->made = false;
    if (stays.code && err)
        *err = stays;
    return stays.code;
}

void dcp_publish_fini(struct dcp_publication *publish)
{
    dcp_publish_clear(publish, NULL);
    free(publish->name);
    free(publish->tmp);
    free(publish->prefix);
    *publish = (struct dcp_publication){ 0 };
}
