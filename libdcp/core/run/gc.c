/* gc: what dead processes left in a folder, and superseded steps. */
#include "base/mem.h"
#include "base/str.h"
#include "bases.h"
#include "leftover.h"
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

/* "..marks-step-00000060.tmp" and such: what took the place of a small file when its
 * writer was killed. The file that it was to be, in out. */
static bool is_replacement(const struct dcp_store_entry *entry, char out[96])
{
    static const char *const files[] = { DCP_DUE_PREFIX "step-", DCP_MARKS_PREFIX "step-",
                                         DCP_LATEST };
    const char *name = entry->name;
    size_t n = strlen(name), end = strlen(".tmp");

    if (entry->is_dir || name[0] != '.' || n < 1 + end || n > 95 ||
        strcmp(name + n - end, ".tmp") != 0)
        return false;
    snprintf(out, 96, "%.*s", (int)(n - 1 - end), name + 1);
    for (size_t i = 0; i < DCP_ARRAY_LEN(files); i++)
        if (dcp_str_starts(out, files[i]))
            return i < 2 || !strcmp(out, DCP_LATEST);
    return false;
}

static enum dcp_leftover kind_of(const struct dcp_store *store,
                                 const struct dcp_store_entry *entry)
{
    char file[96];

    if (dcp_str_starts(entry->name, DCP_TMP_PREFIX) || is_replacement(entry, file))
        return DCP_LEFT_UNFINISHED;
    if (dcp_str_starts(entry->name, DCP_TRASH_PREFIX))
        return DCP_LEFT_TRASH;
    if (dcp_str_starts(entry->name, DCP_PARTS_PREFIX))
        return DCP_LEFT_PARTS;
    if (entry->is_dir && dcp_is_superseded(entry->name))
        return DCP_LEFT_SUPERSEDED;
    return is_orphan(store, entry->name) ? DCP_LEFT_NOTE : DCP_LEFT_NOTHING;
}

/* What is found, and why it stays. */
struct look {
    const struct dcp_store_entry *entry;
    enum dcp_leftover kind;
    struct dcp_store_file *held, *pin; /* they keep others away; NULL: nobody */
    enum dcp_stay stay;
};

/* Whether a process is at work on it: it holds the folder that it makes, or, of what is a
 * run's, the lease of the run. A step is held by who marks it. */
static bool is_alive(const struct dcp_store *store, struct look *look, bool leased)
{
    const char *name = look->entry->name, *dash = strchr(name + 1, '-');
    bool of_step = dash && (dcp_str_starts(dash + 1, "step-") ||
                            dcp_str_starts(dash + 1, "repair-step-"));
    char file[96];

    if (is_replacement(look->entry, file))
        return dcp_str_starts(file, DCP_MARKS_PREFIX)
                   ? dcp_is_in_use(store, file + strlen(DCP_MARKS_PREFIX), &look->held)
                   : leased;
    if (look->kind == DCP_LEFT_PARTS) { /* held until they are removed */
        DCP_CLEANUP_FREE char *lock = dcp_str_join(name, DCP_PARTS_LOCK, "");
        return !lock || dcp_is_in_use(store, lock, &look->held);
    }
    if (of_step && leased)
        return true;
    bool lives = dcp_is_in_use(store, name, &look->held);
    if (look->kind != DCP_LEFT_SUPERSEDED)
        dcp_unpin(store, &look->held); /* it is held again when it is removed */
    return lives;
}

/* A superseded step is complete: it is read, pinned and tagged as any other, and may be
 * the base of another one, which goes first. */
static enum dcp_stay judge_superseded(const struct dcp_store *store, struct look *look,
                                      struct dcp_error *err)
{
    struct dcp_marks marks;

    if (dcp_is_read(store, look->entry->name, &look->pin))
        return DCP_STAYS_READ;
    int rc = dcp_marks_read(store, look->entry->name, &marks, err);
    if (rc || marks.pinned || marks.n_tags)
        return DCP_STAYS_MARKED;
    return dcp_is_base(store, look->entry->name, NULL, 0) ? DCP_STAYS_BASE : DCP_GOES;
}

static int collect_one(const struct dcp_store *store, const struct dcp_gc *gc,
                       bool leased, struct look *look, struct dcp_error *err)
{
    const char *name = look->entry->name;
    struct dcp_error why = { 0 };

    if (is_alive(store, look, leased))
        look->stay = DCP_STAYS_READ;
    else if (look->kind == DCP_LEFT_SUPERSEDED)
        look->stay =
            gc->superseded ? judge_superseded(store, look, &why) : DCP_STAYS_SUPERSEDED;
    else if (look->kind == DCP_LEFT_PARTS && !gc->parts)
        look->stay = DCP_STAYS_PARTS;
    int rc = why.code;
    if (look->stay == DCP_GOES && !gc->dry_run) {
        bool at_once = look->kind == DCP_LEFT_SUPERSEDED || look->kind == DCP_LEFT_PARTS;
        rc = at_once ? dcp_leftover_bury(store, name, &why)
                     : dcp_leftover_remove(store, name, &why);
        look->stay = rc == DCP_E_BUSY              ? DCP_STAYS_READ
                     : rc && rc != DCP_E_NOT_FOUND ? DCP_STAYS_STUCK
                                                   : DCP_GOES;
        rc = look->stay == DCP_STAYS_STUCK ? rc : DCP_OK;
    }
    dcp_unpin(store, &look->held);
    dcp_unpin(store, &look->pin);
    if (rc && err)
        *err = why;
    return rc;
}

/* What cannot be removed stops nothing; the first of it is told. */
static int collect(const struct dcp_store *store, const struct dcp_gc *gc, bool leased,
                   size_t *removed, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;
    int first = store->ops->list(store->self, "", &entries, &n, err);

    if (first)
        return first;
    for (size_t i = 0; i < n; i++) {
        struct look look = { .entry = &entries[i], .kind = kind_of(store, &entries[i]) };
        struct dcp_error why = { 0 };
        if (!look.kind)
            continue;
        uint64_t bytes = bytes_of(store, entries[i].name, 0);
        int rc = collect_one(store, gc, leased, &look, &why);
        if (rc && !first && err)
            *err = why;
        first = first ? first : rc;
        *removed += look.stay == DCP_GOES;
        if (gc->found)
            gc->found(gc->self, entries[i].name, look.kind, bytes, look.stay);
    }
    dcp_store_list_free(entries, n);
    return first;
}

int dcp_gc(const struct dcp_store *store, const struct dcp_gc *gc, size_t *out_removed,
           struct dcp_error *err)
{
    struct dcp_store_file *lease = NULL;
    size_t removed = 0;
    /* Held, not taken: a folder that is no run gets no lease, and a dry run changes
     * nothing. To look is enough for that: a shared lock, which two may have. */
    bool leased = store->ops->hold && store->ops->hold(store->self, LEASE, !gc->dry_run,
                                                       &lease, NULL) == DCP_E_BUSY;
    if (gc->dry_run)
        dcp_unpin(store, &lease);
    int rc = collect(store, gc, leased, &removed, err);

    dcp_unpin(store, &lease);
    if (out_removed)
        *out_removed = removed;
    return rc;
}
