#include "prune.h"
#include "base/mem.h"
#include "base/str.h"
#include "steps.h"
#include <stdio.h>
#include <string.h>

/* The victim gets a name that no discovery looks at, durably, before its files go one by
 * one. */
static int remove_step(const struct dcp_store *store, const char *name,
                       struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    char trash[80];

    snprintf(trash, sizeof trash, DCP_TRASH_PREFIX "%s", name);
    int rc = store->ops->remove(store->self, trash, &why);
    if (rc && rc != DCP_E_NOT_FOUND) {
        if (err)
            *err = why;
        return rc;
    }
    rc = store->ops->publish(store->self, name, trash, err);
    return rc ? rc : store->ops->remove(store->self, trash, err);
}

/* What dead processes left: with the lease in our hands nobody else is at work here. */
static int reap(const struct dcp_store *store, size_t *removed, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;
    int rc = store->ops->list(store->self, "", &entries, &n, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++) {
        bool ours = dcp_str_starts(entries[i].name, DCP_TMP_PREFIX "step-") ||
                    dcp_str_starts(entries[i].name, DCP_TMP_PREFIX "repair-step-") ||
                    dcp_str_starts(entries[i].name, DCP_TRASH_PREFIX "step-");
        if (!entries[i].is_dir || !ours)
            continue;
        rc = store->ops->remove(store->self, entries[i].name, err);
        *removed += rc == DCP_OK;
    }
    dcp_store_list_free(entries, n);
    return rc;
}

int dcp_prune_held(const struct dcp_store *store, int keep, int keep_every,
                   int64_t newest, size_t *out_removed, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0, removed = 0;
    int whole = 0, rc = reap(store, &removed, err);

    if (!rc && keep > 0)
        rc = dcp_steps(store, &steps, &n, NULL, err);
    for (size_t i = 0; i < n && !rc; i++) { /* newest first */
        bool kept_for_ever = keep_every > 0 && steps[i].step % keep_every == 0;
        int why = steps[i].why.code;
        int newer = whole;
        if (newest >= 0 && steps[i].step > newest)
            continue;
        whole += steps[i].whole;
        /* Only whole steps count, and only what lies behind enough of them goes: a
         * damaged step is never a reason to lose a good one. What could not be read, or
         * was written by a newer version, may be whole. */
        if (newer < keep || kept_for_ever || (why && why != DCP_E_CORRUPT))
            continue;
        rc = remove_step(store, steps[i].name, err);
        removed += rc == DCP_OK;
    }
    if (out_removed)
        *out_removed = removed;
    return rc;
}

int dcp_prune(const struct dcp_store *store, int keep, int keep_every,
              size_t *out_removed, struct dcp_error *err)
{
    if (out_removed)
        *out_removed = 0;
    if (keep < 0 || keep_every < 0)
        return dcp_error_set(err, DCP_E_USAGE, "steps to keep cannot be negative");
    int rc = store->ops->lock(store->self, err);
    if (rc)
        return rc;
    rc = dcp_prune_held(store, keep, keep_every, -1, out_removed, err);
    store->ops->unlock(store->self);
    return rc;
}
