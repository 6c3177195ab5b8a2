#include "damage.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

/* The whole step before the one called `name`: false when there is none. */
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
        if (steps[i].whole) {
            *out = steps[i];
            return true;
        }
    return false;
}

/* A step is named in its run folder's store, or its folder is the store itself. */
static bool find_older(const struct dcp_place *place, struct dcp_step *out)
{
    if (!place->source.is_dir)
        return false;
    if (place->source.name[0])
        return find_before(place->store, place->source.name, out);
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    struct dcp_store run;
    if (!dcp_fs_split(place->path, &dir, &name) || dcp_store_dir(&run, dir, false, NULL))
        return false;
    run.max_header_bytes = place->store->max_header_bytes;
    bool found = find_before(&run, name, out);
    dcp_store_free(&run);
    return found;
}

static bool has_parity(const struct dcp_place *place)
{
    struct dcp_store_entry *entries;
    bool found = false;
    size_t n;
    if (!place->source.is_dir ||
        place->store->ops->list(place->store->self, place->source.name, &entries, &n,
                                NULL))
        return false;
    for (size_t i = 0; i < n; i++)
        found |= dcp_str_starts(entries[i].name, "parity-");
    dcp_store_list_free(entries, n);
    return found;
}

void dcp_damage_tell_mended(struct dcp_main *m, const struct dcp_place *place)
{
    dcp_log_write(&m->log, DCP_LOG_WARN,
                  "'%s' is damaged and is read through its parity (%s); "
                  "'dcp-reshard repair %s' repairs it",
                  place->path, place->damage.message, place->path);
}

void dcp_damage_hint(const struct dcp_place *place, bool all_listed,
                     struct dcp_error *err)
{
    struct dcp_step older;
    bool found = find_older(place, &older);
    if (has_parity(place))
        dcp_error_hint(err, "'dcp-reshard repair %s' rebuilds it from its parity",
                       place->path);
    else if (found && all_listed)
        dcp_error_hint(err, "%s is whole, by its headers", older.name);
    else if (found)
        dcp_error_hint(err, "'dcp-inspect verify %s' lists all damage; %s is whole",
                       place->path, older.name);
    else if (!all_listed)
        dcp_error_hint(err, "'dcp-inspect verify %s' lists all damage", place->path);
}

/* The search is made once more, with a log. What was passed over may be whole by now, or
 * could not be read only that once. */
void dcp_damage_passed_over(const struct dcp_place *place, const struct dcp_log *log)
{
    struct dcp_context ctx = { .store = place->store, .log = log };
    struct dcp_step step;
    const char *name = place->source.name;
    if (!place->source.is_dir || !name || !name[0])
        return;
    if (dcp_find(&ctx, -1, &step, NULL))
        dcp_log_write(log, DCP_LOG_WARN, "the steps of '%s' are changing",
                      place->store->root);
    else if (strcmp(step.name, name) != 0)
        dcp_log_write(log, place->passed_over ? DCP_LOG_WARN : DCP_LOG_INFO,
                      place->passed_over
                          ? "%s is whole, but it could not be read a moment ago: %s is "
                            "taken"
                          : "%s was saved since %s was taken",
                      step.name, name);
}
