#include "source.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/delta.h>
#include <string.h>
#include <sys/stat.h>

/* The name in a folder that one may have meant; caller frees. */
static char *near_name(const char *dir, const char *name)
{
    struct dcp_store store;
    struct dcp_store_entry *entries;
    size_t n;
    char *near = NULL;
    if (dcp_store_dir(&store, dir, false, NULL))
        return NULL;
    if (!store.ops->list(store.self, "", &entries, &n, NULL)) {
        DCP_CLEANUP_FREE const char **names = dcp_mem_calloc(n + 1, sizeof *names);
        for (size_t i = 0; names && i < n; i++)
            names[i] = entries[i].name;
        const char *found = names ? dcp_str_nearest(name, names) : NULL;
        near = found ? dcp_fs_join(strcmp(dir, ".") ? dir : "", found) : NULL;
        dcp_store_list_free(entries, n);
    }
    dcp_store_free(&store);
    return near;
}

static void hint_absent(const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    if (!dcp_fs_split(path, &dir, &name))
        return;
    if (!dcp_fs_is_dir(dir)) {
        dcp_error_hint(err, "there is no folder '%s' either", dir);
        return;
    }
    DCP_CLEANUP_FREE char *near = near_name(dir, name);
    if (near)
        dcp_error_hint(err, "did you mean '%s'?", near);
}

/* A file of a checkpoint that is a folder. */
static void hint_part(const char *path, struct dcp_error *err)
{
    const struct dcp_location_options options = { 0 };
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    struct dcp_location whole;
    if (!dcp_fs_split(path, &dir, &name) ||
        dcp_location_open_with(dir, &options, &whole, NULL))
        return;
    err->hint[0] = '\0';
    dcp_error_hint(err, "it is a part of the checkpoint '%s': name the folder", dir);
    dcp_location_close(&whole);
}

void dcp_source_hint(const char *path, struct dcp_error *err)
{
    if (err->code == DCP_E_NOT_FOUND && !err->hint[0] && !dcp_fs_exists(path))
        hint_absent(path, err);
    else if (err->code == DCP_E_UNSUPPORTED && !dcp_fs_is_dir(path))
        hint_part(path, err);
}

/* One shard is a whole safetensors file, and not the whole of a step. */
static void warn_of_shard(const struct dcp_main *m, const struct dcp_location *location)
{
    DCP_CLEANUP_FREE char *dir = NULL, *name = NULL;
    bool is_dir;
    uint64_t size;
    if (location->source.is_dir ||
        !dcp_str_glob("shard-*-of-*.safetensors", location->source.name) ||
        !dcp_fs_split(location->path, &dir, &name) ||
        location->store->ops->stat(location->store->self, "manifest.json", &is_dir, &size,
                                   NULL))
        return;
    dcp_log_write(&m->log, DCP_LOG_WARN,
                  "'%s' is one shard of the step '%s': name the folder for all of it",
                  location->path, dir);
}

int dcp_source_store(const struct dcp_main *m, const char *path, struct dcp_store *out,
                     struct dcp_error *err)
{
    DCP_TRY(dcp_store_delta_dir(out, path, false, err));
    out->max_header_bytes = m->max_header_bytes;
    return DCP_OK;
}

int64_t dcp_source_saved_at(const char *run, const char *step)
{
    DCP_CLEANUP_FREE char *path = dcp_fs_join(run, step);
    DCP_CLEANUP_FREE char *manifest = path ? dcp_fs_join(path, "manifest.json") : NULL;
    struct stat st;
    return manifest && stat(manifest, &st) == 0 ? (int64_t)st.st_mtime : -1;
}

int dcp_source_trust(struct dcp_main *m, const struct dcp_source *source,
                     const char *path, struct dcp_error *err)
{
    struct dcp_signature by;
    if (!m->trusted)
        return DCP_OK;
    const struct dcp_progress progress = dcp_main_progress(m, "checking the signature");
    int rc = dcp_check_signature(source, m->trusted, &progress, &by, err);
    dcp_main_progress_end(m);
    if (rc)
        dcp_error_prefix(err, "'%s' is not trusted", path);
    return rc;
}

int dcp_source_open(struct dcp_main *m, const char *path, struct dcp_location *out,
                    struct dcp_error *err)
{
    return dcp_source_open_delta(m, path, NULL, out, err);
}

int dcp_source_open_delta(struct dcp_main *m, const char *path, const char *base,
                          struct dcp_location *out, struct dcp_error *err)
{
    const struct dcp_location_options options = { .max_header_bytes = m->max_header_bytes,
                                                  .base = base };
    int rc = dcp_location_open_with(path, &options, out, err);
    if (rc) {
        dcp_source_hint(path, err);
        return rc;
    }
    warn_of_shard(m, out);
    rc = dcp_source_trust(m, &out->source, out->path, err);
    if (rc)
        dcp_location_close(out);
    return rc;
}
