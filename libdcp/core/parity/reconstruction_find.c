#include "reconstruction_find.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "code.h"
#include <string.h>

/* Descriptions that were found. */
struct candidates {
    struct dcp_parity **items;
    size_t n, cap;
    bool no_memory; /* there may be others */
};

/* What reading one gave: a description, or why there is none. */
static void add(struct candidates *found, int rc, struct dcp_parity *parity)
{
    struct dcp_parity **grown =
        rc ? NULL : dcp_mem_grow(found->items, &found->cap, found->n + 1, sizeof(parity));

    found->no_memory |= rc == DCP_E_MEMORY || (!rc && !grown);
    if (grown) {
        found->items = grown;
        grown[found->n++] = parity;
    } else if (!rc) {
        dcp_parity_free(parity);
    }
}

/* The one that most say; NULL: they do not agree. */
static struct dcp_parity *choose(struct candidates *found)
{
    size_t best = 0, best_votes = 0;
    bool tied = false;

    for (size_t i = 0; i < found->n; i++) {
        size_t votes = 0;
        for (size_t j = 0; j < found->n; j++)
            votes += found->items[j]->identity == found->items[i]->identity;
        if (votes == best_votes)
            tied |= found->items[i]->identity != found->items[best]->identity;
        if (votes <= best_votes)
            continue;
        best = i;
        best_votes = votes;
        tied = false;
    }
    if (tied)
        return NULL;
    struct dcp_parity *parity = found->items[best];
    found->items[best] = NULL;
    return parity;
}

/* What the text of a manifest says is protected. */
static int parity_of(const void *manifest, size_t n, struct dcp_parity **out)
{
    DCP_CLEANUP_JSON json_t *root = NULL;

    *out = NULL;
    DCP_TRY(dcp_json_parse(manifest, n, DCP_PARITY_MANIFEST, &root, NULL));
    const json_t *parity = json_object_get(root, "parity");
    if (!parity)
        return DCP_E_NOT_FOUND;
    DCP_CLEANUP_FREE char *text = dcp_json_text(parity, 0);
    return text ? dcp_parity_parse(text, strlen(text), out, NULL) : DCP_E_MEMORY;
}

static void add_of_file(struct candidates *found, const struct dcp_store *store,
                        const char *prefix, const char *name)
{
    DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, name, "");
    DCP_CLEANUP_FREE void *tail = NULL;
    struct dcp_parity *parity;
    uint64_t at;
    size_t n;

    if (!path) {
        found->no_memory = true;
        return;
    }
    int rc = dcp_parity_read_head(store, path, &parity, NULL);
    add(found, rc, parity);
    rc = dcp_parity_read_tail(store, path, &tail, &n, &at, NULL);
    if (!rc)
        rc = parity_of(tail, n, &parity);
    add(found, rc, parity);
}

/* The manifest may be good where shards that it names are not: its format checks it
 * first. */
static void add_of_manifest(struct candidates *found, const struct dcp_store *store,
                            const char *folder)
{
    const struct dcp_source source = { store, folder, true };
    const struct dcp_format *steps = dcp_format_of_steps();
    struct dcp_parity *parity = NULL;
    struct dcp_catalog *catalog;
    int rc = dcp_catalog_new(&catalog, NULL);

    if (!rc)
        rc = steps->index(&source, catalog, NULL);
    if (catalog && catalog->parity && rc != DCP_E_MEMORY)
        rc = dcp_parity_parse(catalog->parity, strlen(catalog->parity), &parity, NULL);
    else if (!rc)
        rc = DCP_E_NOT_FOUND;
    add(found, rc, parity);
    dcp_catalog_free(catalog);
}

int dcp_reconstruction_find_parity(const struct dcp_store *store, const char *folder,
                                   const char *prefix, struct dcp_parity **out,
                                   struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    struct candidates found = { 0 };
    size_t n;
    int rc = store->ops->list(store->self, folder, &entries, &n, err);

    *out = NULL;
    if (rc)
        return rc;
    for (size_t i = 0; i < n; i++)
        if (dcp_str_starts(entries[i].name, "parity-"))
            add_of_file(&found, store, prefix, entries[i].name);
    dcp_store_list_free(entries, n);
    add_of_manifest(&found, store, folder);
    if (found.no_memory)
        rc = dcp_error_memory(err, "a description of parity");
    else if (found.n)
        *out = choose(&found);
    if (!rc && !found.n)
        rc = dcp_error_set(err, DCP_E_NOT_FOUND, "'%s/%s' has no parity", store->root,
                           folder);
    else if (!rc && !*out)
        rc =
            dcp_error_set(err, DCP_E_CORRUPT,
                          "the parity files of '%s/%s' do not agree on what they protect",
                          store->root, folder);
    for (size_t i = 0; i < found.n; i++)
        dcp_parity_free(found.items[i]);
    free(found.items);
    return rc;
}

/* The copy at the end of a parity file; NOT_FOUND when it is not of this step. */
static int take_tail(const struct dcp_store *store, const char *prefix,
                     const struct dcp_parity *parity, int file,
                     struct dcp_reconstruction_manifest *out)
{
    struct dcp_parity *said = NULL;
    char name[64];
    uint64_t at;

    dcp_parity_name(parity, file / parity->rows, file % parity->rows, name);
    DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, name, "");
    if (!path)
        return DCP_E_MEMORY;
    int rc = dcp_parity_read_tail(store, path, &out->data, &out->size_bytes, &at, NULL);
    if (!rc)
        rc = parity_of(out->data, out->size_bytes, &said);
    if (!rc && said->identity != parity->identity)
        rc = DCP_E_NOT_FOUND;
    dcp_parity_free(said);
    if (rc) {
        free(out->data);
        out->data = NULL;
    }
    return rc;
}

int dcp_reconstruction_find_manifest(const struct dcp_store *store, const char *prefix,
                                     const struct dcp_parity *parity,
                                     struct dcp_reconstruction_manifest *out,
                                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *there = NULL;
    DCP_CLEANUP_FREE char *path = dcp_str_join(prefix, DCP_PARITY_MANIFEST, "");
    struct dcp_error why = { 0 };
    size_t n = 0;
    int rc = DCP_E_NOT_FOUND;

    *out = (struct dcp_reconstruction_manifest){ 0 };
    if (!path)
        return dcp_error_memory(err, "a manifest");
    int plain = dcp_store_read_header(store, path, DCP_PARITY_MAX_TAIL, &there, &n, &why);
    for (size_t i = 0; i < dcp_parity_n_rows(parity) && rc && rc != DCP_E_MEMORY &&
                       plain != DCP_E_MEMORY;
         i++)
        rc = take_tail(store, prefix, parity, (int)i, out);
    if (rc == DCP_E_MEMORY || plain == DCP_E_MEMORY)
        return dcp_error_memory(err, "a manifest");
    if (!rc) {
        out->intact = !plain && n == out->size_bytes && !memcmp(there, out->data, n);
        return DCP_OK;
    }
    if (plain) {
        if (err)
            *err = why;
        return plain;
    }
    *out = (struct dcp_reconstruction_manifest){ there, n, true };
    there = NULL;
    return DCP_OK;
}
