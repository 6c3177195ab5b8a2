#include "view.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/delta.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SUPERSEDED ".aside" /* in the name of a step: see docs/FORMAT.md, chapter 1 */
enum { MOST_SUPERSEDED = 10 };
#define USUAL_IDENTITY_BYTES ((size_t)256 << 20)

/* -- which base ---------------------------------------------------------------------- */

/* "run" of "run/step-00000010" and "..": where a path from a folder of a store leads in
 * it. Caller frees; NULL with *out_outside: it leads out. */
static char *resolve(const char *dir, const char *path, bool *out_outside)
{
    char *at = malloc(strlen(dir) + strlen(path) + 2);

    *out_outside = false;
    if (!at)
        return NULL;
    memcpy(at, dir, strlen(dir) + 1);
    for (; !strncmp(path, "..", 2) && (!path[2] || path[2] == '/');
         path += 2 + (path[2] == '/')) {
        char *slash = strrchr(at, '/');
        if (!*at) {
            *out_outside = true;
            free(at);
            return NULL;
        }
        *(slash ? slash : at) = '\0';
    }
    size_t n = strlen(at);
    if (n && *path)
        at[n++] = '/';
    memcpy(at + n, path, strlen(path) + 1);
    return at;
}

/* A path without the turns that `resolve` can take out, where it is the same folder: it
 * is the one that people know. Caller frees; NULL: out of memory. */
static char *shorten(const char *own, const char *path)
{
    char *full = dcp_fs_join(own, path);
    bool outside;
    char *plain = resolve(own, path, &outside);
    DCP_CLEANUP_FREE char *a = full ? realpath(full, NULL) : NULL;
    DCP_CLEANUP_FREE char *b = plain && *plain ? realpath(plain, NULL) : NULL;

    if (full && a && b && !strcmp(a, b)) {
        free(full);
        return plain;
    }
    free(plain);
    return full;
}

/* A folder of the file system, with whatever deltas are in it. Links are followed: caches
 * of Hugging Face are made of them, and every byte is proved. */
static int open_outside(struct dcp_delta_view *view, const char *path,
                        struct dcp_error *err)
{
    struct dcp_store store;

    DCP_TRY(dcp_store_dir(&store, path, false, err));
    dcp_store_dir_follow(&store, true);
    DCP_TRY(dcp_store_delta(&view->own_base, &store, path, NULL, err));
    view->base = &view->own_base;
    view->base_prefix = strdup("");
    view->base_shown = strdup(path);
    return view->base_prefix && view->base_shown ? DCP_OK
                                                 : dcp_error_memory(err, "a delta");
}

static int open_inside(const struct dcp_delta_place *place, struct dcp_delta_view *view,
                       const char *dir, struct dcp_error *err)
{
    const struct dcp_store *inner = place->inner;
    bool is_dir;
    uint64_t size;

    if (*dir)
        DCP_TRY(inner->ops->stat(inner->self, dir, &is_dir, &size, err));
    view->base = place->outer;
    view->base_prefix = dcp_str_join(dir, *dir ? "/" : "", "");
    view->base_shown = dcp_str_join(inner->root, *dir ? "/" : "", dir);
    return view->base_prefix && view->base_shown ? DCP_OK
                                                 : dcp_error_memory(err, "a delta");
}

static int find_base(const struct dcp_delta_place *place, const char *dir,
                     const char *path, struct dcp_delta_view *view, struct dcp_error *err)
{
    bool outside, given = place->base && !*dir;
    DCP_CLEANUP_FREE char *inside = resolve(dir, path, &outside);
    DCP_CLEANUP_FREE char *own = NULL, *full = NULL;

    if (given)
        return open_outside(view, place->base, err);
    if (inside)
        return open_inside(place, view, inside, err);
    if (!outside)
        return dcp_error_memory(err, "a delta");
    if (!place->path)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "it is not in the archive or folder that was opened");
    own = *dir ? dcp_fs_join(place->path, dir) : strdup(place->path);
    full = own ? shorten(own, path) : NULL;
    return full ? open_outside(view, full, err) : dcp_error_memory(err, "a delta");
}

/* -- whether it is the one ----------------------------------------------------------- */

static int other(const struct dcp_delta_base_file *file, const char *why,
                 struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' there %s", DCP_SHOWN(file->name), why);
}

static int check_identity(const struct dcp_delta_view *view, const char *path,
                          const struct dcp_delta_base_file *file, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    size_t n;

    DCP_TRY(
        dcp_store_read_header(view->base, path, USUAL_IDENTITY_BYTES, &text, &n, err));
    return n == file->size_bytes && dcp_hash_crc64(0, text, n) == file->crc
               ? DCP_OK
               : other(file, "is another file", err);
}

/* A file of the base is there; that of a delta is when all is that it needs. */
static int check_file(const struct dcp_delta_view *view,
                      const struct dcp_delta_base_file *file, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(view->base_prefix, file->name, "");
    struct dcp_error why = { 0 };
    bool is_dir = false;
    uint64_t size = 0;

    if (!path)
        return dcp_error_memory(err, "a delta");
    int rc = view->base->ops->stat(view->base->self, path, &is_dir, &size, &why);
    if (rc == DCP_E_NOT_FOUND)
        return other(file, "is missing", err);
    if (!rc && (is_dir || size != file->size_bytes))
        return other(file, "has another size", err);
    if (!rc && !strcmp(file->name, DCP_DELTA_IDENTITY))
        rc = check_identity(view, path, file, &why);
    if (rc && err)
        *err = why;
    return rc;
}

/* A base that is a delta says what its files are. */
static int check_delta(const struct dcp_delta_view *view,
                       const struct dcp_delta_folder *base, struct dcp_error *err)
{
    if (view->is.chain != base->chain + 1)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "it is delta number %d of its chain, not %d", base->chain,
                             view->is.chain - 1);
    for (size_t i = 0; i < view->is.n_base; i++) {
        const struct dcp_delta_base_file *file = &view->is.base[i];
        const struct dcp_delta_file *there = dcp_delta_find(base, file->name);
        if (!there)
            return other(file, "is missing", err);
        if (there->size_bytes != file->size_bytes || there->crc != file->crc)
            return other(file, "is another file", err);
    }
    return view->is.n_base ? check_file(view, &view->is.base[0], err) : DCP_OK;
}

static int check_full(const struct dcp_delta_view *view, struct dcp_error *err)
{
    if (view->is.chain != 1)
        return dcp_error_set(err, DCP_E_CORRUPT, "it should be a delta itself");
    for (size_t i = 0; i < view->is.n_base; i++)
        DCP_TRY(check_file(view, &view->is.base[i], err));
    return DCP_OK;
}

static int check_base(const struct dcp_delta_view *view, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = strdup(view->base_prefix);
    struct dcp_delta_folder base = { 0 };
    struct dcp_error why = { 0 };

    if (!dir)
        return dcp_error_memory(err, "a delta");
    if (*dir)
        dir[strlen(dir) - 1] = '\0';
    int rc = dcp_delta_folder_read(view->base, dir, &base, &why);
    if (rc == DCP_E_NOT_FOUND) {
        dcp_delta_folder_fini(&base);
        return check_full(view, err);
    }
    if (!rc)
        rc = check_delta(view, &base, &why);
    dcp_delta_folder_fini(&base);
    if (rc && err)
        *err = why;
    return rc;
}

/* "…/step-00000010 cannot be read: its base, …/step-00000005, …". What is wrong with a
 * base is damage of the delta, also where the base is not there. */
static int blame(const struct dcp_delta_view *view, int rc, struct dcp_error *why,
                 struct dcp_error *err)
{
    const char *base = view->base_shown ? view->base_shown : view->is.base_path;

    if (rc == DCP_E_MEMORY) {
        if (err)
            *err = *why;
        return rc;
    }
    bool gone = rc == DCP_E_NOT_FOUND;
    rc = gone ? DCP_E_CORRUPT : rc;
    if (gone)
        dcp_error_set(err, rc, "'%s' is a delta whose base '%s' is not there",
                      DCP_SHOWN(view->shown), DCP_SHOWN(base));
    else
        dcp_error_set(err, rc, "'%s' is a delta whose base '%s' is %s: %s",
                      DCP_SHOWN(view->shown), DCP_SHOWN(base),
                      rc == DCP_E_CORRUPT ? "damaged, or another one" : "not readable",
                      why->message);
    dcp_error_hint(err, "put the base back, or name it: 'dcp-reshard delta apply DELTA "
                        "OUT --base BASE'");
    return rc;
}

static void forget_base(struct dcp_delta_view *view)
{
    dcp_store_free(&view->own_base);
    free(view->base_prefix);
    free(view->base_shown);
    view->base_prefix = view->base_shown = NULL;
}

/* The i-th place to look for a base: where the delta says; and when the delta is a step
 * that was superseded, under the names that its base may have got by that. */
static char *candidate(const struct dcp_delta_view *view, int i)
{
    char suffix[16] = "";

    if (i == 1)
        snprintf(suffix, sizeof suffix, SUPERSEDED);
    else if (i > 1)
        snprintf(suffix, sizeof suffix, SUPERSEDED "-%d", i);
    return dcp_str_join(view->is.base_path, suffix, "");
}

static int enter_base(const struct dcp_delta_place *place, const char *dir,
                      struct dcp_delta_view *view, struct dcp_error *err)
{
    const char *slash = strrchr(view->shown, '/');
    bool superseded = strstr(slash ? slash : view->shown, SUPERSEDED);
    int rc = DCP_E_NOT_FOUND;

    for (int i = 0; rc && i < (superseded ? MOST_SUPERSEDED : 1); i++) {
        DCP_CLEANUP_FREE char *path = candidate(view, i);
        struct dcp_error why = { 0 };
        forget_base(view);
        rc = path ? find_base(place, dir, path, view, &why)
                  : dcp_error_memory(&why, "a delta");
        if (!rc)
            rc = check_base(view, &why);
        if (rc && !i) /* what is wrong where it should be is told */
            *err = why;
    }
    return rc ? err->code : DCP_OK;
}

/* -- the view ------------------------------------------------------------------------ */

void dcp_delta_view_free(struct dcp_delta_view *view)
{
    if (!view)
        return;
    forget_base(view);
    dcp_delta_folder_fini(&view->is);
    free(view->prefix);
    free(view->shown);
    free(view);
}

int dcp_delta_look(const struct dcp_store *store, const char *dir, uint64_t *out_bytes,
                   char out_digest[DCP_DELTA_DIGEST_BYTES], struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *name = dcp_str_join(dir, *dir ? "/" : "", DCP_DELTA_JSON);
    struct dcp_store_file *file;
    bool is_dir;

    *out_bytes = 0;
    if (!name)
        return dcp_error_memory(err, "a delta");
    struct dcp_error why = { 0 };
    int rc = store->ops->stat(store->self, name, &is_dir, out_bytes, NULL);
    if (rc && rc != DCP_E_NOT_FOUND) /* else words would cost more than the look */
        rc = store->ops->stat(store->self, name, &is_dir, out_bytes, &why);
    bool none = rc == DCP_E_NOT_FOUND || rc == DCP_E_UNSUPPORTED ||
                why.sys_errno == ENOTDIR || (!rc && is_dir);
    if (none)
        return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no '%s'", DCP_SHOWN(name));
    if (rc && err)
        *err = why;
    if (rc)
        return rc;
    if (*out_bytes < DCP_DELTA_DIGEST_BYTES)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is cut short", DCP_SHOWN(name));
    DCP_TRY(store->ops->open(store->self, name, &file, err));
    rc = store->ops->read_at(store->self, file, *out_bytes - DCP_DELTA_DIGEST_BYTES,
                             out_digest, DCP_DELTA_DIGEST_BYTES, err);
    store->ops->close(store->self, file, NULL);
    return rc;
}

int dcp_delta_view_new(const struct dcp_delta_place *place, const char *dir,
                       struct dcp_delta_view **out, struct dcp_error *err)
{
    const char *root = place->inner->root;
    struct dcp_delta_view *view = calloc(1, sizeof *view);
    struct dcp_error why = { 0 };

    *out = NULL;
    if (!view)
        return dcp_error_memory(err, "a delta");
    view->prefix = dcp_str_join(dir, *dir ? "/" : "", "");
    view->shown = dcp_str_join(root, *dir ? "/" : "", dir);
    int rc = view->prefix && view->shown ? DCP_OK : dcp_error_memory(&why, "a delta");
    if (!rc)
        rc = dcp_delta_look(place->inner, dir, &view->json_bytes, view->digest, &why);
    if (!rc)
        rc = dcp_delta_folder_read(place->inner, dir, &view->is, &why);
    if (rc && err)
        *err = why;
    if (!rc) {
        rc = enter_base(place, dir, view, &why);
        if (rc)
            rc = blame(view, rc, &why, err);
    }
    if (rc)
        dcp_delta_view_free(view);
    else
        *out = view;
    return rc;
}
