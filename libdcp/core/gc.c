/* gc: what dead processes left in a folder, and steps that were set aside. */
#include "base/mem.h"
#include "base/str.h"
#include "pin.h"
#include "steps.h"
#include <stdio.h>
#include <string.h>

#define LEASE ".dcp-lock"

static uint64_t bytes_of(const struct dcp_store *store, const char *name, int depth)
{
    struct dcp_store_entry *entries;
    uint64_t bytes = 0, size;
    bool is_dir;
    size_t n;

    if (store->ops->stat(store->self, name, &is_dir, &size, NULL) || depth > 8)
        return 0;
    if (!is_dir)
        return size;
    if (store->ops->list(store->self, name, &entries, &n, NULL))
        return 0;
    for (size_t i = 0; i < n; i++) {
        DCP_CLEANUP_FREE char *path = dcp_str_join(name, "/", entries[i].name);
        if (path)
            bytes += bytes_of(store, path, depth + 1);
    }
    dcp_store_list_free(entries, n);
    return bytes;
}

static bool is_aside(const struct dcp_store_entry *entry)
{
    char step[64];
    const char *suffix = strstr(entry->name, DCP_ASIDE_SUFFIX);

    if (!entry->is_dir || !suffix || (size_t)(suffix - entry->name) >= sizeof step)
        return false;
    snprintf(step, sizeof step, "%.*s", (int)(suffix - entry->name), entry->name);
    return dcp_step_parse(step) >= 0;
}

/* Notes beside a step that is not there any more. */
static bool is_orphan(const struct dcp_store *store, const char *name)
{
    static const char *const prefixes[] = { DCP_DUE_PREFIX, DCP_MARKS_PREFIX };

    for (size_t i = 0; i < DCP_ARRAY_LEN(prefixes); i++)
        if (dcp_str_starts(name, prefixes[i]))
            return dcp_str_starts(name + strlen(prefixes[i]), "step-") &&
                   dcp_is_gone(store, name + strlen(prefixes[i]));
    return false;
}

/* Whether its maker lives: it holds the folder that it makes, or, of a step of a run, the
 * lease of the run. */
static bool is_alive(const struct dcp_store *store, const char *name, bool leased,
                     struct dcp_store_file **out)
{
    const char *dash = strchr(name + 1, '-');
    bool of_step = dash && (dcp_str_starts(dash + 1, "step-") ||
                            dcp_str_starts(dash + 1, "repair-step-"));

    *out = NULL;
    return (of_step && leased) || dcp_is_in_use(store, name, out);
}

static enum dcp_leftover kind_of(const struct dcp_store *store,
                                 const struct dcp_store_entry *entry)
{
    if (dcp_str_starts(entry->name, DCP_TMP_PREFIX))
        return DCP_LEFT_UNFINISHED;
    if (dcp_str_starts(entry->name, DCP_TRASH_PREFIX))
        return DCP_LEFT_TRASH;
    if (is_aside(entry))
        return DCP_LEFT_ASIDE;
    return is_orphan(store, entry->name) ? DCP_LEFT_NOTE : DCP_LEFT_NOTHING;
}

static int collect(const struct dcp_store *store, const struct dcp_gc *gc, bool leased,
                   size_t *removed, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;
    int rc = store->ops->list(store->self, "", &entries, &n, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++) {
        enum dcp_leftover kind = kind_of(store, &entries[i]);
        struct dcp_store_file *held;
        if (!kind)
            continue;
        bool lives = is_alive(store, entries[i].name, leased, &held);
        bool goes = !lives && (kind != DCP_LEFT_ASIDE || gc->aside);
        uint64_t bytes = bytes_of(store, entries[i].name, 0);
        if (goes && !gc->dry_run)
            rc = store->ops->remove(store->self, entries[i].name, err);
        dcp_unpin(store, &held);
        if (gc->found && !rc)
            gc->found(gc->self, entries[i].name, kind, bytes, lives, goes);
        *removed += goes && !rc;
    }
    dcp_store_list_free(entries, n);
    return rc;
}

int dcp_gc(const struct dcp_store *store, const struct dcp_gc *gc, size_t *out_removed,
           struct dcp_error *err)
{
    struct dcp_store_file *lease = NULL;
    size_t removed = 0;
    /* Held, not taken: a folder that is no run gets no lease, and a dry run changes
     * nothing. */
    bool leased = dcp_is_in_use(store, LEASE, &lease);
    if (gc->dry_run)
        dcp_unpin(store, &lease);
    int rc = collect(store, gc, leased, &removed, err);

    dcp_unpin(store, &lease);
    if (out_removed)
        *out_removed = removed;
    return rc;
}
