/* repair: lost or corrupt files of a step, or of all steps of a run, by parity. */
#include "abi.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/checkpoint.h>
#include <dcp/delta.h>
#include <string.h>

struct act {
    struct dcp_flat_repair_options options;
    struct dcp_flat_repair_result result;
    struct dcp_progress progress;
    const char *step; /* that is being repaired */
};

static void on_repaired(void *self, const char *file, uint64_t size_bytes)
{
    const struct act *act = self;

    if (act->options.repaired)
        act->options.repaired(act->options.self, act->step, file, size_bytes);
}

static int repair_step(struct act *act, const struct dcp_store *store, const char *name,
                       struct dcp_error *err)
{
    struct dcp_repair_result result = { 0 };
    const struct dcp_repair_options options = { .threads = dcp_flat_threads(
                                                    act->options.threads),
                                                .progress = act->progress,
                                                .repaired = on_repaired,
                                                .self = act };

    act->step = name;
    int rc = dcp_repair(store, name, &options, &result, err);
    if (rc == DCP_E_NOT_FOUND)
        dcp_error_hint(err, "parity is made when a step is saved, or by a reshard");
    else if (rc)
        dcp_error_prefix(err, "cannot repair '%s/%s'", store->root, name);
    if (rc)
        return rc;
    act->result.n_steps++;
    act->result.n_files += result.n_files;
    act->result.n_units += result.n_units;
    act->result.size_bytes += result.size_bytes;
    return DCP_OK;
}

/* Every step that has parity is tried; the first that could not be repaired is told, or
 * that none has parity. */
static int repair_run(struct act *act, const struct dcp_store *store,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    struct dcp_error first = { 0 }, without = { 0 };
    size_t n = 0;

    DCP_TRY(dcp_steps(store, &steps, &n, NULL, err));
    if (n == 0)
        return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step in '%s'",
                             store->root);
    for (size_t i = 0; i < n; i++) {
        struct dcp_error why = { 0 };
        int rc = repair_step(act, store, steps[i].name, &why);
        bool lost = rc == DCP_E_NOT_FOUND && !steps[i].complete;
        if (lost) {
            why = (struct dcp_error){ 0 };
            rc = dcp_error_set(&why, DCP_E_CORRUPT, "'%s/%s' has no parity, and %s",
                               store->root, steps[i].name, steps[i].why.message);
        }
        if (rc == DCP_E_NOT_FOUND)
            without = why;
        else if (rc && !first.code)
            first = why;
        if (rc == DCP_E_INTERRUPTED || rc == DCP_E_MEMORY)
            break;
    }
    if (!first.code && !act->result.n_steps)
        first = without;
    if (first.code && err)
        *err = first;
    return first.code;
}

/* A step, by the folder that it stands in. */
static int repair_alone(struct act *act, const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    struct dcp_store store;

    if (!dcp_fs_split(path, &dir, &name))
        return dcp_error_memory(err, "a path");
    int rc = dcp_store_delta_dir(&store, dir, false, err);
    if (rc)
        return rc;
    rc = repair_step(act, &store, name, err);
    dcp_store_free(&store);
    return rc;
}

static int repair(struct act *act, struct dcp_error *err)
{
    const char *path = act->options.path;
    struct dcp_store store;

    if (!path || !dcp_fs_is_dir(path))
        return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step '%s'",
                             path ? path : "");
    int rc = dcp_store_delta_dir(&store, path, false, err);
    if (rc)
        return rc;
    bool alone = dcp_is_step(&store);
    if (!alone)
        rc = repair_run(act, &store, err);
    dcp_store_free(&store);
    return alone ? repair_alone(act, path, err) : rc;
}

int32_t dcp_flat_repair(const struct dcp_flat_repair_options *options,
                        const struct dcp_flat_hooks *hooks,
                        struct dcp_flat_repair_result *out_result,
                        struct dcp_flat_error *err)
{
    struct dcp_flat_watch watch;
    struct dcp_error why = { 0 };
    struct act act = { .progress = dcp_flat_watch(&watch, hooks) };

    dcp_flat_take(&act.options, sizeof act.options, options);
    int rc = repair(&act, &why);
    dcp_flat_give(out_result, &act.result, sizeof act.result);
    return dcp_flat_fail(err, rc, &why);
}
