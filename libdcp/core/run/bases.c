#include "bases.h"
#include "base/mem.h"
#include "base/str.h"
#include "steps.h"
#include <dcp/delta.h>
#include <string.h>

/* Two that are superseded may have got their names by that: whichever of that number. */
static bool same_step(const char *delta, const char *base, const char *name)
{
    size_t n = strlen(base);

    if (!strcmp(base, name))
        return true;
    return dcp_is_superseded(delta) && dcp_is_superseded(name) &&
           !strncmp(base, name, n) && dcp_str_starts(name + n, DCP_SUPERSEDED_SUFFIX);
}

/* Whether a folder of the run is a delta against `name`. */
static bool needs(const struct dcp_store *store, const char *delta, const char *name)
{
    DCP_CLEANUP_FREE char *base = NULL;
    int chain, rc = dcp_delta_base(store, delta, &base, &chain, NULL);

    if (rc) /* one that is corrupt is no step any more */
        return rc == DCP_E_IO || rc == DCP_E_MEMORY || rc == DCP_E_UNSUPPORTED;
    return dcp_str_starts(base, "../") && same_step(delta, base + 3, name);
}

bool dcp_is_base(const struct dcp_store *store, const char *name,
                 const char *const *without, size_t n)
{
    struct dcp_store_entry *entries;
    size_t n_entries;
    bool found = false;

    if (store->ops->list(store->self, "", &entries, &n_entries, NULL))
        return true;
    for (size_t i = 0; i < n_entries && !found; i++) {
        const char *entry = entries[i].name;
        bool goes = !strcmp(entry, name);
        if (!entries[i].is_dir ||
            (dcp_step_parse(entry) < 0 && !dcp_is_superseded(entry)))
            continue;
        for (size_t w = 0; w < n && !goes; w++)
            goes = !strcmp(without[w], entry);
        found = !goes && needs(store, entry, name);
    }
    dcp_store_list_free(entries, n_entries);
    return found;
}
