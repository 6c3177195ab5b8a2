#include "corruption.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/delta.h>
#include <stdio.h>
#include <string.h>

/* The complete step before the one called `name`: false when there is none. */
static bool find_before(const struct dcp_store *store, const char *name,
                        struct dcp_step *out)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0, i = 0;
    if (dcp_steps(store, &steps, &n, NULL, NULL))
        return false;
    while (i < n && strcmp(steps[i].name, name) != 0)
        i++;
    for (i++; i < n; i++)
        if (steps[i].complete) {
            *out = steps[i];
            return true;
        }
    return false;
}

/* A step is named in its run folder's store, or its folder is the store itself. */
static bool find_older(const struct dcp_location *location, struct dcp_step *out)
{
    if (!location->source.is_dir)
        return false;
    if (location->source.name[0])
        return find_before(location->store, location->source.name, out);
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    struct dcp_store run;
    if (!dcp_fs_split(location->path, &dir, &name) ||
        dcp_store_delta_dir(&run, dir, false, NULL))
        return false;
    run.max_header_bytes = location->store->max_header_bytes;
    bool found = find_before(&run, name, out);
    dcp_store_free(&run);
    return found;
}

static bool has_parity(const struct dcp_location *location)
{
    struct dcp_store_entry *entries;
    bool found = false;
    size_t n;
    if (!location->source.is_dir ||
        location->store->ops->list(location->store->self, location->source.name, &entries,
                                   &n, NULL))
        return false;
    for (size_t i = 0; i < n; i++)
        found |= dcp_str_starts(entries[i].name, "parity-");
    dcp_store_list_free(entries, n);
    return found;
}

void dcp_corruption_tell_reconstructed(struct dcp_main *m,
                                       const struct dcp_location *location)
{
    dcp_log_write(&m->log, DCP_LOG_WARN,
                  "'%s' is corrupt and is read through its parity (%s); 'dcp-reshard "
                  "repair %s' repairs it",
                  location->path, location->corruption.message, location->path);
}

void dcp_corruption_hint(const struct dcp_location *location, bool all_listed,
                         struct dcp_error *err)
{
    struct dcp_step older;
    bool found = find_older(location, &older);
    if (has_parity(location))
        dcp_error_hint(err, "'dcp-reshard repair %s' rebuilds it from its parity",
                       location->path);
    else if (found && all_listed)
        dcp_error_hint(err, "%s is complete, by its headers", older.name);
    else if (found)
        dcp_error_hint(
            err,
            "'dcp-inspect verify %s' lists everything that is corrupt; %s is complete",
            location->path, older.name);
    else if (!all_listed)
        dcp_error_hint(err, "'dcp-inspect verify %s' lists everything that is corrupt",
                       location->path);
}

/* The search is made once more, with a log. What was passed over may be complete by now,
 * or could not be read only that once. */
void dcp_corruption_passed_over(const struct dcp_location *location,
                                const struct dcp_log *log)
{
    struct dcp_context ctx = { .store = location->store, .log = log };
    struct dcp_step step;
    const char *name = location->source.name;
    if (!location->source.is_dir || !name || !name[0])
        return;
    if (dcp_find(&ctx, -1, &step, NULL))
        dcp_log_write(log, DCP_LOG_WARN, "the steps of '%s' are changing; try again",
                      location->store->root);
    else if (strcmp(step.name, name) != 0)
        dcp_log_write(
            log, location->passed_over ? DCP_LOG_WARN : DCP_LOG_INFO,
            location->passed_over
                ? "%s is complete, but it could not be read a moment ago: %s is taken"
                : "%s was saved since %s was taken",
            step.name, name);
}
