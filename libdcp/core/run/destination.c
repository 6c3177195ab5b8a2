#include "destination.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "steps.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Neither the source nor anything inside it may become the target. */
static int check_outside(const struct dcp_location *location, const char *dir,
                         const char *name, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *target_dir = dcp_fs_real(dir);
    bool no_memory = !target_dir && errno == ENOMEM;
    DCP_CLEANUP_FREE char *source = realpath(location->path, NULL);
    DCP_CLEANUP_FREE char *target = NULL;

    if (no_memory)
        return dcp_error_memory(err, "a path");
    if (!target_dir)
        return dcp_error_set(err, DCP_E_NOT_FOUND,
                             "there is no folder '%s' for the target", dir);
    if (!source || !(target = dcp_fs_join(target_dir, name)))
        return dcp_error_memory(err, "a path");
    size_t n = strlen(source);
    bool inside = !strncmp(target, source, n) && (target[n] == '/' || target[n] == '\0');
    bool around =
        !strncmp(source, target, strlen(target)) && source[strlen(target)] == '/';
    if (inside || around)
        return dcp_error_set(
            err, DCP_E_USAGE,
            "the target '%s' is %s the source '%s', which is never written to", target,
            inside ? "in" : "around", source);
    return DCP_OK;
}

/* Something of a name that only checkpoints have, or nothing at all: what a corrupt or
 * unfinished checkpoint may look like. */
static int may_be_checkpoint(const char *path, const char *name, bool *out,
                             struct dcp_error *err)
{
    struct dcp_store store = { 0 };
    struct dcp_store_entry *entries;
    size_t n;

    *out = dcp_format_for_suffix(name) != NULL;
    if (!dcp_fs_is_dir(path))
        return DCP_OK;
    DCP_TRY(dcp_store_dir(&store, path, false, err));
    int rc = store.ops->list(store.self, "", &entries, &n, err);
    if (!rc) {
        *out = n == 0;
        dcp_store_list_free(entries, n);
    }
    dcp_store_free(&store);
    return rc;
}

/* What --force may take away is one checkpoint, never a run or anything else. */
static int check_replaced(const char *path, const char *name, struct dcp_error *err)
{
    struct dcp_location old = { 0 };
    struct dcp_error why = { 0 };
    bool may_go = true;
    int rc = dcp_location_open(path, &old, &why);
    bool is_run = !rc && strcmp(old.path, path) != 0 && dcp_fs_is_dir(path);

    dcp_location_close(&old);
    if (is_run) {
        dcp_error_set(err, DCP_E_EXISTS, "'%s' is a run folder, which is never replaced",
                      path);
        dcp_error_hint(err, "name a step in it, or another target");
        return DCP_E_EXISTS;
    }
    if (rc == DCP_E_IO || rc == DCP_E_MEMORY) { /* it says nothing about what is there */
        if (err)
            *err = why;
        return rc;
    }
    if (rc)
        rc = may_be_checkpoint(path, name, &may_go, err);
    if (rc || may_go)
        return rc;
    dcp_error_set(err, DCP_E_EXISTS,
                  "'%s' exists and is not a checkpoint: --force does not replace it",
                  path);
    dcp_error_hint(err, "choose another name, or remove it yourself");
    return DCP_E_EXISTS;
}

int dcp_destination_check(const struct dcp_location *source, const char *path, bool force,
                          char **out_dir, char **out_name, struct dcp_error *err)
{
    *out_dir = *out_name = NULL;
    if (!dcp_fs_split(path, out_dir, out_name))
        return dcp_error_memory(err, "a path");
    if (!dcp_store_name_ok(*out_name))
        return dcp_error_set(err, DCP_E_USAGE, "'%s' is no name for a target", path);
    int rc = check_outside(source, *out_dir, *out_name, err);
    if (rc || !dcp_fs_exists(path))
        return rc;
    if (force)
        return check_replaced(path, *out_name, err);
    dcp_error_set(err, DCP_E_EXISTS, "the target '%s' already exists", path);
    dcp_error_hint(err, "choose another name, or replace it with --force");
    return DCP_E_EXISTS;
}

int dcp_destination_step(const char *name, struct dcp_catalog *target,
                         struct dcp_error *err)
{
    int64_t named = dcp_step_parse(name);
    char right[64];

    if (named < 0 || named == target->step)
        return DCP_OK;
    if (target->step < 0) {
        target->step = named;
        return DCP_OK;
    }
    dcp_step_name(right, target->step);
    dcp_error_set(err, DCP_E_USAGE,
                  "the target's name says step %" PRId64
                  ", but it will hold step %" PRId64,
                  named, target->step);
    dcp_error_hint(err, "name it '%s'", right);
    return DCP_E_USAGE;
}
