#include "listing.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

enum { MOST_DEEP = 32 };

static int add(struct dcp_delta_listing *listing, const char *name, uint64_t size,
               struct dcp_error *err)
{
    struct dcp_store_entry *grown = dcp_mem_grow(listing->files, &listing->cap,
                                                 listing->n + 1, sizeof *listing->files);

    if (!grown)
        return dcp_error_memory(err, "the names of a folder");
    listing->files = grown;
    grown[listing->n] = (struct dcp_store_entry){ strdup(name), false, size };
    if (!grown[listing->n].name)
        return dcp_error_memory(err, "the names of a folder");
    listing->n++;
    listing->size_bytes += size;
    return DCP_OK;
}

/* `below`: the folder, from the one that is listed on, "" or with a final '/'. */
static int walk(const struct dcp_store *store, const char *dir, const char *below,
                int depth, struct dcp_delta_listing *out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(dir, *dir && *below ? "/" : "", below);
    struct dcp_store_entry *entries;
    size_t n;

    if (!path)
        return dcp_error_memory(err, "the names of a folder");
    if (*below)
        path[strlen(path) - 1] = '\0';
    if (depth > MOST_DEEP)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' is nested too deep",
                             DCP_SHOWN(path));
    int rc = store->ops->list(store->self, path, &entries, &n, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++) {
        DCP_CLEANUP_FREE char *name =
            dcp_str_join(below, entries[i].name, entries[i].is_dir ? "/" : "");
        if (!name)
            rc = dcp_error_memory(err, "the names of a folder");
        else
            rc = entries[i].is_dir ? walk(store, dir, name, depth + 1, out, err)
                                   : add(out, name, entries[i].size_bytes, err);
    }
    dcp_store_list_free(entries, n);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    const struct dcp_store_entry *x = a, *y = b;

    return strcmp(x->name, y->name);
}

int dcp_delta_list(const struct dcp_store *store, const char *dir,
                   struct dcp_delta_listing *out, struct dcp_error *err)
{
    *out = (struct dcp_delta_listing){ 0 };
    DCP_TRY(walk(store, dir, "", 0, out, err));
    if (out->n)
        qsort(out->files, out->n, sizeof *out->files, by_name);
    return DCP_OK;
}

void dcp_delta_listing_fini(struct dcp_delta_listing *listing)
{
    dcp_store_list_free(listing->files, listing->n);
    *listing = (struct dcp_delta_listing){ 0 };
}

char *dcp_delta_path_between(const char *from, const char *to)
{
    struct dcp_buf out = { 0 };

    for (;;) { /* what both begin with */
        from += strspn(from, "/");
        to += strspn(to, "/");
        size_t n = strcspn(from, "/");
        if (!n || n != strcspn(to, "/") || strncmp(from, to, n) != 0)
            break;
        from += n;
        to += n;
    }
    for (; *from; from += strspn(from, "/")) {
        dcp_buf_add_text(&out, out.size_bytes ? "/.." : "..");
        from += strcspn(from, "/");
    }
    if (*to || !out.size_bytes) {
        dcp_buf_add_text(&out, out.size_bytes ? "/" : "");
        dcp_buf_add_text(&out, *to ? to : ".");
    }
    if (out.failed) {
        dcp_buf_fini(&out);
        return NULL;
    }
    return (char *)out.data;
}
