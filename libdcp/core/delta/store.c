/* The store in which deltas read as what they stand for. Everything but reading is passed
 * on to the store below. */
#include "base/mem.h"
#include "base/str.h"
#include "file.h"
#include "names.h"
#include <dcp/delta.h>
#include <string.h>

struct deltas {
    struct dcp_store_forward forward;
    struct dcp_store inner, outer;
    char *path, *base;
    struct dcp_delta_coders coders;
    pthread_mutex_t lock; /* of the views, and their users */
    struct dcp_delta_view *views;
};

/* -- folders ------------------------------------------------------------------------- */

static void leave(struct deltas *deltas, struct dcp_delta_view *view)
{
    if (!view)
        return;
    pthread_mutex_lock(&deltas->lock);
    view->users--;
    pthread_mutex_unlock(&deltas->lock);
}

/* The view of a folder as it is now, of those that are known; what became of others that
 * nobody uses is forgotten. */
static struct dcp_delta_view *find_view(struct deltas *deltas, const char *dir,
                                        uint64_t bytes, const char *digest)
{
    struct dcp_delta_view **at = &deltas->views, *found = NULL;
    size_t n = strlen(dir);

    pthread_mutex_lock(&deltas->lock);
    while (*at) {
        struct dcp_delta_view *view = *at;
        bool here =
            !strncmp(view->prefix, dir, n) && !strcmp(view->prefix + n, n ? "/" : "");
        bool same = here && view->json_bytes == bytes &&
                    !memcmp(view->digest, digest, sizeof view->digest);
        if (same && !found) {
            found = view;
            found->users++;
        } else if (here && !view->users) {
            *at = view->next;
            dcp_delta_view_free(view);
            continue;
        }
        at = &view->next;
    }
    pthread_mutex_unlock(&deltas->lock);
    return found;
}

/* Enters a folder that is a delta; *out is given back with `leave`. NOT_FOUND, and no
 * error is set: it is none. */
static int enter(struct deltas *deltas, const char *dir, struct dcp_delta_view **out,
                 struct dcp_error *err)
{
    const struct dcp_delta_place place = { &deltas->inner, &deltas->outer, deltas->path,
                                           deltas->base };
    char digest[DCP_DELTA_DIGEST_BYTES];
    uint64_t bytes;
    struct dcp_delta_view *view;

    *out = NULL;
    int rc = dcp_delta_look(&deltas->inner, dir, &bytes, digest, NULL);
    if (rc == DCP_E_NOT_FOUND) /* most are none: no words */
        return rc;
    if (rc)
        DCP_TRY(dcp_delta_look(&deltas->inner, dir, &bytes, digest, err));
    if ((*out = find_view(deltas, dir, bytes, digest)))
        return DCP_OK;
    DCP_TRY(dcp_delta_view_new(&place, dir, &view, err));
    pthread_mutex_lock(&deltas->lock);
    view->users = 1;
    view->next = deltas->views;
    deltas->views = view;
    pthread_mutex_unlock(&deltas->lock);
    *out = view;
    return DCP_OK;
}

/* The delta that a name is in, the outermost one; NULL: in none. With `itself` the name
 * may be that folder. */
static int enter_owner(struct deltas *deltas, const char *name, bool itself,
                       struct dcp_delta_view **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = strdup(name);
    size_t n = 0; /* bytes of the name that are a folder */

    *out = NULL;
    if (!dir)
        return dcp_error_memory(err, "a name");
    while (name[n] || itself) {
        struct dcp_error why = { 0 };
        dir[n] = '\0';
        int rc = enter(deltas, dir, out, &why);
        dir[n] = name[n];
        if (rc && rc != DCP_E_NOT_FOUND && err)
            *err = why;
        if (rc != DCP_E_NOT_FOUND)
            return rc;
        if (!name[n])
            break;
        n += name[n] == '/';
        n += strcspn(name + n, "/");
    }
    return DCP_OK;
}

/* -- what is in them ----------------------------------------------------------------- */

static int deltas_stat(void *self, const char *name, bool *out_is_dir,
                       uint64_t *out_size_bytes, struct dcp_error *err)
{
    struct deltas *deltas = self;
    const struct dcp_store *inner = &deltas->inner;
    struct dcp_delta_view *view = NULL;
    int rc =
        dcp_delta_is_own(name) ? DCP_OK : enter_owner(deltas, name, false, &view, err);

    if (!rc)
        rc = view ? dcp_delta_stat_in(inner, view, name, out_is_dir, out_size_bytes, err)
                  : inner->ops->stat(inner->self, name, out_is_dir, out_size_bytes, err);
    leave(deltas, view);
    return rc;
}

static int deltas_list(void *self, const char *dir, struct dcp_store_entry **out,
                       size_t *out_n, struct dcp_error *err)
{
    struct deltas *deltas = self;
    const struct dcp_store *inner = &deltas->inner;
    struct dcp_delta_view *view = NULL;

    *out = NULL;
    *out_n = 0;
    int rc = enter_owner(deltas, dir, true, &view, err);
    if (!rc)
        rc = view ? dcp_delta_list_in(view, dir, out, out_n, err)
                  : inner->ops->list(inner->self, dir, out, out_n, err);
    leave(deltas, view);
    return rc;
}

/* -- open files ---------------------------------------------------------------------- */

/* As it lies, unless a delta has it. *view is taken where the file needs it. */
static int open_any(struct deltas *deltas, const char *name, struct dcp_delta_view **view,
                    struct dcp_store_file *out, struct dcp_error *err)
{
    const struct dcp_store *inner = &deltas->inner;

    if (!dcp_delta_is_own(name)) /* which is read whatever its base */
        DCP_TRY(enter_owner(deltas, name, false, view, err));
    if (!*view)
        return inner->ops->open(inner->self, name, &out->inner, err);
    DCP_TRY(dcp_delta_file_open(inner, &deltas->coders, *view, name, out, err));
    if (!out->coded)
        return DCP_OK;
    out->view = *view;
    *view = NULL;
    return DCP_OK;
}

static int deltas_open(void *self, const char *name, struct dcp_store_file **out,
                       struct dcp_error *err)
{
    struct deltas *deltas = self;
    struct dcp_store_file *file = calloc(1, sizeof *file);
    struct dcp_delta_view *view = NULL;

    *out = NULL;
    if (!file)
        return dcp_error_memory(err, name);
    int rc = open_any(deltas, name, &view, file, err);
    leave(deltas, view);
    if (rc)
        free(file);
    else
        *out = file;
    return rc;
}

static int deltas_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    struct deltas *deltas = self;
    struct dcp_delta_view *view = file->view;
    int rc = dcp_delta_file_close(&deltas->inner, file, err);

    leave(deltas, view);
    return rc;
}

/* -- the store ----------------------------------------------------------------------- */

static void deltas_free(void *self)
{
    struct deltas *deltas = self;

    while (deltas->views) {
        struct dcp_delta_view *view = deltas->views;
        deltas->views = view->next;
        dcp_delta_view_free(view);
    }
    dcp_delta_coders_fini(&deltas->coders);
    pthread_mutex_destroy(&deltas->lock);
    dcp_store_free(&deltas->inner);
    free(deltas->path);
    free(deltas->base);
    free(deltas);
}

static const struct dcp_store_ops own_ways = {
    .list = deltas_list,
    .stat = deltas_stat,
    .open = deltas_open,
    .create = dcp_delta_file_create,
    .reopen = dcp_delta_file_reopen,
    .read_at = dcp_delta_file_read_at,
    .write_at = dcp_delta_file_write_at,
    .flush_hint = dcp_delta_file_flush_hint,
    .sync = dcp_delta_file_sync,
    .close = deltas_close,
    .hold = dcp_delta_file_hold,
    .direct = dcp_delta_file_direct,
    .descriptor = dcp_delta_file_descriptor,
    .drop_cache = dcp_delta_file_drop_cache,
    .free = deltas_free,
};

int dcp_store_delta(struct dcp_store *out_store, struct dcp_store *inner,
                    const char *path, const char *base, struct dcp_error *err)
{
    struct deltas *deltas = calloc(1, sizeof *deltas);

    if (!deltas) {
        dcp_store_free(inner);
        return dcp_error_memory(err, "a store of deltas");
    }
    deltas->inner = *inner;
    *inner = (struct dcp_store){ 0 };
    pthread_mutex_init(&deltas->lock, NULL);
    dcp_delta_coders_init(&deltas->coders);
    deltas->path = path ? strdup(path) : NULL;
    deltas->base = base ? strdup(base) : NULL;
    if ((path && !deltas->path) || (base && !deltas->base)) {
        deltas_free(deltas);
        return dcp_error_memory(err, "a store of deltas");
    }
    dcp_store_forward(&deltas->outer, &deltas->forward, &deltas->inner);
    dcp_store_override(&deltas->forward, &own_ways);
    deltas->outer.reads_deltas = true;
    *out_store = deltas->outer;
    return DCP_OK;
}

int dcp_store_delta_dir(struct dcp_store *out_store, const char *path, bool create,
                        struct dcp_error *err)
{
    struct dcp_store folder;

    DCP_TRY(dcp_store_dir(&folder, path, create, err));
    return dcp_store_delta(out_store, &folder, path, NULL, err);
}

int dcp_delta_base(const struct dcp_store *store, const char *folder, char **out_base,
                   int *out_chain, struct dcp_error *err)
{
    struct dcp_delta_folder is;
    char digest[DCP_DELTA_DIGEST_BYTES];
    uint64_t bytes;

    *out_base = NULL;
    *out_chain = 0;
    DCP_TRY(dcp_delta_look(store, folder, &bytes, digest, err));
    int rc = dcp_delta_folder_read(store, folder, &is, err);
    if (!rc) {
        *out_base = is.base_path;
        *out_chain = is.chain;
        is.base_path = NULL;
    }
    dcp_delta_folder_fini(&is);
    return rc;
}

int dcp_delta_sizes(const struct dcp_store *store, const char *folder,
                    uint64_t *out_full_bytes, uint64_t *out_stored_bytes,
                    struct dcp_error *err)
{
    struct dcp_delta_folder is;
    char digest[DCP_DELTA_DIGEST_BYTES];
    uint64_t bytes;

    *out_full_bytes = *out_stored_bytes = 0;
    DCP_TRY(dcp_delta_look(store, folder, &bytes, digest, err));
    int rc = dcp_delta_folder_read(store, folder, &is, err);
    for (size_t f = 0; !rc && f < is.n_files; f++) {
        *out_full_bytes += is.files[f].size_bytes;
        *out_stored_bytes +=
            is.files[f].coded ? is.files[f].delta_bytes : is.files[f].size_bytes;
    }
    dcp_delta_folder_fini(&is);
    return rc;
}
