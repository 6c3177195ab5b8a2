#include "prune.h"
#include "base/mem.h"
#include "base/str.h"
#include "leftover.h"
#include "steps.h"
#include <string.h>

/* The victim gets a name that no discovery looks at, durably, before its files go one by
 * one. */
static int remove_step(const struct dcp_store *store, const char *name,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *trash = NULL;
    int rc = dcp_leftover_clear(store, DCP_TRASH_PREFIX, name, &trash, err);

    if (!rc)
        rc = store->ops->publish(store->self, name, trash, err);
    return rc ? rc : store->ops->remove(store->self, trash, err);
}

/* What dead processes left: with the lease in our hands nobody else is at work here. What
 * cannot be removed stays. */
static void reap(const struct dcp_store *store, size_t *removed, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;

    if (store->ops->list(store->self, "", &entries, &n, err))
        return;
    for (size_t i = 0; i < n; i++) {
        bool ours = dcp_str_starts(entries[i].name, DCP_TMP_PREFIX "step-") ||
                    dcp_str_starts(entries[i].name, DCP_TMP_PREFIX "repair-step-") ||
                    dcp_str_starts(entries[i].name, DCP_TRASH_PREFIX "step-");
        if (!entries[i].is_dir || !ours)
            continue;
        *removed += store->ops->remove(store->self, entries[i].name, err) == DCP_OK;
    }
    dcp_store_list_free(entries, n);
}

int dcp_prune_held(const struct dcp_store *store, int keep, int keep_every,
                   int64_t newest, size_t *out_removed, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0, removed = 0;
    struct dcp_error why_not = { 0 }; /* the first thing that could not be done */
    int whole = 0;

    reap(store, &removed, &why_not);
    if (keep > 0)
        dcp_steps(store, &steps, &n, NULL, &why_not);
    for (size_t i = 0; i < n; i++) { /* newest first */
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
        removed += remove_step(store, steps[i].name, &why_not) == DCP_OK;
    }
    if (out_removed)
        *out_removed = removed;
    if (why_not.code && err)
        *err = why_not;
    return why_not.code;
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
