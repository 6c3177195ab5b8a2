#include "names.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <string.h>

/* A name without the folder of its delta. */
const char *dcp_delta_inside(const struct dcp_delta_view *view, const char *name)
{
    size_t n = strlen(view->prefix);

    return strlen(name) < n ? "" : name + n;
}

/* The first file below a folder of the delta ("" is all of it); *out_n: how many are. */
static const struct dcp_delta_file *below(const struct dcp_delta_view *view,
                                          const char *dir, size_t *out_n)
{
    const struct dcp_delta_file *first = NULL;
    size_t length = strlen(dir);

    *out_n = 0;
    for (size_t i = 0; i < view->is.n_files; i++) {
        const struct dcp_delta_file *file = &view->is.files[i];
        if (length &&
            (strncmp(file->name, dir, length) != 0 || file->name[length] != '/'))
            continue;
        first = first ? first : file;
        ++*out_n;
    }
    return first;
}

int dcp_delta_is_missing(const char *name, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no '%s'", DCP_SHOWN(name));
}

/* What a delta, or its base, should have and does not have is damage. */
static int check_there(const struct dcp_store *store, const char *path, uint64_t size,
                       struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    uint64_t found = 0;
    bool is_dir = false;

    int rc = store->ops->stat(store->self, path, &is_dir, &found, &why);
    if (rc && rc != DCP_E_NOT_FOUND) {
        if (err)
            *err = why;
        return rc;
    }
    if (rc || is_dir)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s/%s' is missing", store->root,
                             DCP_SHOWN(path));
    return found == size ? DCP_OK
                         : dcp_error_set(err, DCP_E_CORRUPT,
                                         "'%s/%s' has %" PRIu64 " bytes, not %" PRIu64,
                                         store->root, DCP_SHOWN(path), found, size);
}

/* Every file that is needed for one is there, with its size. */
int dcp_delta_check_file(const struct dcp_store *inner, const struct dcp_delta_view *view,
                         const struct dcp_delta_file *file, struct dcp_error *err)
{
    const struct dcp_delta_base_file *base = dcp_delta_find_base(&view->is, file->name);
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(view->prefix, file->name, file->coded ? DCP_DELTA_SUFFIX : "");
    DCP_CLEANUP_FREE char *base_path = dcp_str_join(view->base_prefix, file->name, "");

    if (!path || !base_path)
        return dcp_error_memory(err, "a name");
    DCP_TRY(check_there(inner, path, file->coded ? file->delta_bytes : file->size_bytes,
                        err));
    return file->coded && base ? check_there(view->base, base_path, base->size_bytes, err)
                               : DCP_OK;
}

int dcp_delta_stat_in(const struct dcp_store *inner, const struct dcp_delta_view *view,
                      const char *name, bool *out_is_dir, uint64_t *out_size_bytes,
                      struct dcp_error *err)
{
    const struct dcp_delta_file *file =
        dcp_delta_find(&view->is, dcp_delta_inside(view, name));
    size_t n;

    *out_is_dir = !file;
    *out_size_bytes = file ? file->size_bytes : 0;
    if (file)
        return dcp_delta_check_file(inner, view, file, err);
    return below(view, dcp_delta_inside(view, name), &n)
               ? DCP_OK
               : dcp_delta_is_missing(name, err);
}

static int by_name(const void *a, const void *b)
{
    const struct dcp_store_entry *x = a, *y = b;

    return strcmp(x->name, y->name);
}

int dcp_delta_list_in(const struct dcp_delta_view *view, const char *name,
                      struct dcp_store_entry **out, size_t *out_n, struct dcp_error *err)
{
    const char *dir = dcp_delta_inside(view, name);
    size_t skip = strlen(dir) + (*dir != '\0'), n_files, n = 0;
    const struct dcp_delta_file *file = below(view, dir, &n_files);
    const struct dcp_delta_file *end = view->is.files + view->is.n_files;

    if (!file && *dir)
        return dcp_delta_is_missing(dir, err);
    struct dcp_store_entry *entries = dcp_mem_calloc(n_files, sizeof *entries);
    if (!entries)
        return dcp_error_memory(err, "the names of a delta");
    for (; file && file < end && n_files; file++) {
        if (skip &&
            (strncmp(file->name, dir, skip - 1) != 0 || file->name[skip - 1] != '/'))
            continue;
        n_files--;
        const char *part = file->name + skip;
        size_t length = strcspn(part, "/");
        if (n && !strncmp(entries[n - 1].name, part, length) &&
            !entries[n - 1].name[length])
            continue; /* those below one folder stand together */
        entries[n] =
            (struct dcp_store_entry){ strndup(part, length), part[length] != '\0',
                                      part[length] ? 0 : file->size_bytes };
        if (!entries[n].name) {
            dcp_store_list_free(entries, n);
            return dcp_error_memory(err, "the names of a delta");
        }
        n++;
    }
    if (n)
        qsort(entries, n, sizeof *entries, by_name);
    *out = entries;
    *out_n = n;
    return DCP_OK;
}
