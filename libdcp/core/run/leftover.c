#include "leftover.h"
#include "base/mem.h"
#include "pin.h"
#include "steps.h"
#include <stdio.h>
#include <string.h>

enum { MOST = 100 }; /* names that are tried before it is given up */

int dcp_leftover_remove(const struct dcp_store *store, const char *name,
                        struct dcp_error *err)
{
    struct dcp_store_file *held = NULL;
    int rc =
        store->ops->hold ? store->ops->hold(store->self, name, true, &held, NULL) : 0;

    if (rc == DCP_E_BUSY)
        return dcp_error_set(err, rc, "'%s/%s' is locked by another process", store->root,
                             name);
    if (rc == DCP_E_NOT_FOUND) /* others removed it, and may make it anew */
        return dcp_error_set(err, rc, "'%s/%s' is gone", store->root, name);
    rc = store->ops->remove(store->self, name, err);
    dcp_unpin(store, &held);
    return rc;
}

int dcp_leftover_clear(const struct dcp_store *store, const char *prefix,
                       const char *name, char **out_name, struct dcp_error *err)
{
    struct dcp_error why = { 0 }; /* of the first */
    size_t cap = strlen(prefix) + strlen(name) + sizeof "~100";
    char *full = malloc(cap);

    *out_name = NULL;
    if (!full)
        return dcp_error_memory(err, "the name of a folder");
    for (int i = 1; i <= MOST; i++) {
        if (i == 1)
            snprintf(full, cap, "%s%s", prefix, name);
        else
            snprintf(full, cap, "%s%s~%d", prefix, name, i);
        int rc = dcp_leftover_remove(store, full, &why);
        if (!rc || rc == DCP_E_NOT_FOUND) {
            *out_name = full;
            return DCP_OK;
        }
    }
    free(full);
    if (err && !err->code)
        *err = why;
    return why.code;
}

/* BUSY: it holds something. Between being made and being held it was taken for what a
 * dead process left, and the name stands for what another has made since, and let go. */
static int must_be_empty(const struct dcp_store *store, const char *name,
                         struct dcp_store_file **held, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n = 0;
    int rc = store->ops->list(store->self, name, &entries, &n, err);

    if (!rc)
        dcp_store_list_free(entries, n);
    if (!rc && n)
        rc = dcp_error_set(err, DCP_E_BUSY, "'%s/%s' is in use by another process",
                           store->root, name);
    if (rc)
        dcp_unpin(store, held);
    return rc;
}

/* BUSY, NOT_FOUND: between the two acts somebody took it for what a dead process left.
 * Where it cannot be held nobody is kept away. */
static int make_held(const struct dcp_store *store, const char *name,
                     struct dcp_store_file **out, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = store->ops->make_dir(store->self, name, err);

    if (rc || !store->ops->hold)
        return rc;
    rc = store->ops->hold(store->self, name, true, out, &why);
    if (!rc)
        return must_be_empty(store, name, out, err);
    if (rc != DCP_E_BUSY && rc != DCP_E_NOT_FOUND && rc != DCP_E_MEMORY)
        return DCP_OK;
    if (rc == DCP_E_MEMORY)
        store->ops->remove(store->self, name, NULL);
    if (err)
        *err = why;
    return rc;
}

int dcp_leftover_make(const struct dcp_store *store, const char *prefix, const char *name,
                      char **out_name, struct dcp_store_file **out_held,
                      struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = DCP_E_BUSY;

    *out_name = NULL;
    *out_held = NULL;
    for (int i = 0; i < MOST; i++) {
        free(*out_name);
        why = (struct dcp_error){ 0 };
        rc = dcp_leftover_clear(store, prefix, name, out_name, &why);
        if (rc)
            break;
        rc = make_held(store, *out_name, out_held, &why);
        if (rc != DCP_E_BUSY && rc != DCP_E_NOT_FOUND && rc != DCP_E_EXISTS)
            break; /* else others are at it, and may be done by now */
    }
    if (rc && err)
        *err = why;
    return rc;
}

int dcp_leftover_bury(const struct dcp_store *store, const char *name,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *trash = NULL;

    DCP_TRY(dcp_leftover_clear(store, DCP_TRASH_PREFIX, name, &trash, err));
    DCP_TRY(store->ops->publish(store->self, name, trash, err));
    return store->ops->remove(store->self, trash, err);
}
