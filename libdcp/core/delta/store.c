/* The store in which deltas read as what they stand for. Everything but reading is passed
 * on to the store below. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "coded.h"
#include "view.h"
#include <dcp/delta.h>
#include <inttypes.h>
#include <string.h>

struct deltas {
    struct dcp_store_forward forward;
    struct dcp_store inner, outer;
    char *path, *base;
    struct dcp_delta_coders coders;
    pthread_mutex_t lock; /* of the views, and their users */
    struct dcp_delta_view *views;
};

struct dcp_store_file {
    struct dcp_store_file *inner;       /* as it lies, or */
    struct dcp_delta_coded_file *coded; /* by a delta, */
    struct dcp_delta_view *view;        /* of this folder */
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

/* Enters a folder that is a delta; *out is given back with `leave`. NOT_FOUND: it is
 * none. */
static int enter(struct deltas *deltas, const char *dir, struct dcp_delta_view **out,
                 struct dcp_error *err)
{
    const struct dcp_delta_place place = { &deltas->inner, &deltas->outer, deltas->path,
                                           deltas->base };
    char digest[DCP_DELTA_DIGEST_BYTES];
    uint64_t bytes;
    struct dcp_delta_view *view;

    *out = NULL;
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

/* A name without the folder of its delta. */
static const char *inside(const struct dcp_delta_view *view, const char *name)
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

static int is_missing(const char *name, struct dcp_error *err)
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
static int check_file(const struct deltas *deltas, const struct dcp_delta_view *view,
                      const struct dcp_delta_file *file, struct dcp_error *err)
{
    const struct dcp_delta_base_file *base = dcp_delta_find_base(&view->is, file->name);
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(view->prefix, file->name, file->coded ? DCP_DELTA_SUFFIX : "");
    DCP_CLEANUP_FREE char *base_path = dcp_str_join(view->base_prefix, file->name, "");

    if (!path || !base_path)
        return dcp_error_memory(err, "a name");
    DCP_TRY(check_there(&deltas->inner, path,
                        file->coded ? file->delta_bytes : file->size_bytes, err));
    return file->coded && base ? check_there(view->base, base_path, base->size_bytes, err)
                               : DCP_OK;
}

static int stat_in(const struct deltas *deltas, const struct dcp_delta_view *view,
                   const char *name, bool *out_is_dir, uint64_t *out_size_bytes,
                   struct dcp_error *err)
{
    const struct dcp_delta_file *file = dcp_delta_find(&view->is, inside(view, name));
    size_t n;

    *out_is_dir = !file;
    *out_size_bytes = file ? file->size_bytes : 0;
    if (file)
        return check_file(deltas, view, file, err);
    return below(view, inside(view, name), &n) ? DCP_OK : is_missing(name, err);
}

static int deltas_stat(void *self, const char *name, bool *out_is_dir,
                       uint64_t *out_size_bytes, struct dcp_error *err)
{
    struct deltas *deltas = self;
    const struct dcp_store *inner = &deltas->inner;
    struct dcp_delta_view *view = NULL;
    int rc =
        dcp_delta_is_json(name) ? DCP_OK : enter_owner(deltas, name, false, &view, err);

    if (!rc)
        rc = view ? stat_in(deltas, view, name, out_is_dir, out_size_bytes, err)
                  : inner->ops->stat(inner->self, name, out_is_dir, out_size_bytes, err);
    leave(deltas, view);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    const struct dcp_store_entry *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static int list_in(const struct dcp_delta_view *view, const char *dir,
                   struct dcp_store_entry **out, size_t *out_n, struct dcp_error *err)
{
    size_t skip = strlen(dir) + (*dir != '\0'), n_files, n = 0;
    const struct dcp_delta_file *file = below(view, dir, &n_files);
    const struct dcp_delta_file *end = view->is.files + view->is.n_files;

    if (!file && *dir)
        return is_missing(dir, err);
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
        rc = view ? list_in(view, inside(view, dir), out, out_n, err)
                  : inner->ops->list(inner->self, dir, out, out_n, err);
    leave(deltas, view);
    return rc;
}

/* -- open files ---------------------------------------------------------------------- */

/* A file that stands in the delta as it is, from its first byte to its last. */
static int check_whole(const struct dcp_store *store, struct dcp_store_file *open,
                       const struct dcp_delta_file *file, const char *path,
                       struct dcp_error *err)
{
    size_t cap = file->size_bytes < DCP_DELTA_BLOCK_BYTES ? (size_t)file->size_bytes
                                                          : DCP_DELTA_BLOCK_BYTES;
    DCP_CLEANUP_FREE unsigned char *bytes = malloc(cap + 1);
    uint64_t crc = 0;

    if (!bytes)
        return dcp_error_memory(err, "a file of a delta");
    for (uint64_t at = 0; at < file->size_bytes;) {
        size_t n = file->size_bytes - at < cap ? (size_t)(file->size_bytes - at) : cap;
        DCP_TRY(store->ops->read_at(store->self, open, at, bytes, n, err));
        crc = dcp_hash_crc64(crc, bytes, n);
        at += n;
    }
    return crc == file->crc
               ? DCP_OK
               : dcp_error_set(err, DCP_E_CORRUPT, "'%s' is corrupt: its digest differs",
                               DCP_SHOWN(path));
}

static int open_whole(const struct deltas *deltas, const struct dcp_delta_view *view,
                      const struct dcp_delta_file *file, struct dcp_store_file *out,
                      struct dcp_error *err)
{
    const struct dcp_store *inner = &deltas->inner;
    DCP_CLEANUP_FREE char *path = dcp_str_join(view->prefix, file->name, "");

    if (!path)
        return dcp_error_memory(err, "a name");
    DCP_TRY(inner->ops->open(inner->self, path, &out->inner, err));
    int rc = check_whole(inner, out->inner, file, path, err);
    if (rc) {
        inner->ops->close(inner->self, out->inner, NULL);
        out->inner = NULL;
    }
    return rc;
}

static int open_coded(struct deltas *deltas, const struct dcp_delta_view *view,
                      const struct dcp_delta_file *file, struct dcp_store_file *out,
                      struct dcp_error *err)
{
    const struct dcp_delta_base_file *base = dcp_delta_find_base(&view->is, file->name);
    DCP_CLEANUP_FREE char *path =
        dcp_str_join(view->prefix, file->name, DCP_DELTA_SUFFIX);
    DCP_CLEANUP_FREE char *base_path = dcp_str_join(view->base_prefix, file->name, "");
    struct dcp_delta_origin origin = { .store = &deltas->inner,
                                       .path = path,
                                       .file = file,
                                       .base = view->base,
                                       .base_bytes = base ? base->size_bytes : 0,
                                       .coders = &deltas->coders };

    if (!path || !base_path)
        return dcp_error_memory(err, "a name");
    int rc =
        base ? view->base->ops->open(view->base->self, base_path, &origin.base_file, err)
             : DCP_OK;
    if (!rc)
        rc = dcp_delta_coded_open(&origin, &out->coded, err);
    if (rc && origin.base_file)
        view->base->ops->close(view->base->self, origin.base_file, NULL);
    return rc;
}

/* As it lies, unless a delta has it. *view is taken where the file needs it. */
static int open_any(struct deltas *deltas, const char *name, struct dcp_delta_view **view,
                    struct dcp_store_file *out, struct dcp_error *err)
{
    const struct dcp_store *inner = &deltas->inner;

    if (!dcp_delta_is_json(name)) /* which is read as it lies, whatever its base */
        DCP_TRY(enter_owner(deltas, name, false, view, err));
    if (!*view)
        return inner->ops->open(inner->self, name, &out->inner, err);
    const struct dcp_delta_file *file = dcp_delta_find(&(*view)->is, inside(*view, name));
    if (!file)
        return is_missing(name, err);
    DCP_TRY(check_file(deltas, *view, file, err));
    if (!file->coded)
        return open_whole(deltas, *view, file, out, err);
    DCP_TRY(open_coded(deltas, *view, file, out, err));
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

static int deltas_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                          void *out, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;

    return file->coded ? dcp_delta_coded_read(file->coded, offset, out, size_bytes, err)
                       : inner->ops->read_at(inner->self, file->inner, offset, out,
                                             size_bytes, err);
}

static int deltas_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    struct deltas *deltas = self;
    int rc = file->coded ? dcp_delta_coded_close(file->coded, err)
                         : deltas->inner.ops->close(deltas->inner.self, file->inner, err);

    leave(deltas, file->view);
    free(file);
    return rc;
}

static void deltas_drop_cache(void *self, struct dcp_store_file *file)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;

    if (file->coded)
        dcp_delta_coded_drop_cache(file->coded);
    else
        inner->ops->drop_cache(inner->self, file->inner);
}

/* -- what is only passed on: a file of inner in one of ours ------------------------- */

static int wrapped(int rc, struct dcp_store_file *file, struct dcp_store_file **out)
{
    *out = rc ? NULL : file;
    if (rc)
        free(file);
    return rc;
}

static int deltas_create(void *self, const char *name, uint64_t size_bytes,
                         struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;
    struct dcp_store_file *file = calloc(1, sizeof *file);

    *out = NULL;
    return file ? wrapped(inner->ops->create(inner->self, name, size_bytes, &file->inner,
                                             err),
                          file, out)
                : dcp_error_memory(err, name);
}

static int deltas_reopen(void *self, const char *name, struct dcp_store_file **out,
                         struct dcp_error *err)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;
    struct dcp_store_file *file = calloc(1, sizeof *file);

    *out = NULL;
    return file ? wrapped(inner->ops->reopen(inner->self, name, &file->inner, err), file,
                          out)
                : dcp_error_memory(err, name);
}

static int deltas_hold(void *self, const char *name, bool exclusive,
                       struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;
    struct dcp_store_file *file = calloc(1, sizeof *file);

    *out = NULL;
    return file ? wrapped(
                      inner->ops->hold(inner->self, name, exclusive, &file->inner, err),
                      file, out)
                : dcp_error_memory(err, name);
}

static int deltas_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                           const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;

    return inner->ops->write_at(inner->self, file->inner, offset, data, size_bytes, err);
}

static void deltas_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                              uint64_t size_bytes)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;

    inner->ops->flush_hint(inner->self, file->inner, offset, size_bytes);
}

static int deltas_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                       struct dcp_error *err)
{
    const struct dcp_store *inner = &((struct deltas *)self)->inner;

    return inner->ops->sync(inner->self, file->inner, size_bytes, err);
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
    struct dcp_store_ops *ops = &deltas->forward.ops;
    ops->list = deltas_list;
    ops->stat = deltas_stat;
    ops->open = deltas_open;
    ops->create = deltas_create;
    ops->reopen = deltas_reopen;
    ops->read_at = deltas_read_at;
    ops->write_at = deltas_write_at;
    ops->flush_hint = ops->flush_hint ? deltas_flush_hint : NULL;
    ops->sync = deltas_sync;
    ops->close = deltas_close;
    ops->hold = ops->hold ? deltas_hold : NULL;
    ops->drop_cache = ops->drop_cache ? deltas_drop_cache : NULL;
    ops->free = deltas_free;
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
