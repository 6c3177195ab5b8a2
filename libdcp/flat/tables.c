#include "tables.h"

#include "base/mem.h"
#include <string.h>

static const char *name_of(const struct dcp_tensor *t)
{
    return t->name;
}
static const char *param_of(const struct dcp_tensor *t)
{
    return t->param ? t->param : "";
}
static const char *tied_of(const struct dcp_tensor *t)
{
    return t->tied_to ? t->tied_to : "";
}
static const char *quantized_of(const struct dcp_tensor *t)
{
    return t->quantized ? t->quantized : "";
}

static int add_texts(const struct dcp_catalog *catalog,
                     const char *(*text)(const struct dcp_tensor *t), char **out_blob,
                     uint64_t **out_offsets, struct dcp_flat_texts *out,
                     struct dcp_error *err)
{
    size_t size = 0, at = 0;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        size += strlen(text(&catalog->tensors[t])) + 1;
    *out_blob = dcp_mem_calloc(size, 1);
    *out_offsets = dcp_mem_calloc(catalog->n_tensors + 1, sizeof **out_offsets);
    if (!*out_blob || !*out_offsets)
        return dcp_error_memory(err, "the names of tensors");
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const char *from = text(&catalog->tensors[t]);
        size_t n = strlen(from) + 1;
        memcpy(*out_blob + at, from, n);
        at += n;
        (*out_offsets)[t + 1] = at;
    }
    *out = (struct dcp_flat_texts){ sizeof *out, *out_blob, *out_offsets,
                                    catalog->n_tensors };
    return DCP_OK;
}

static int add_names(const struct dcp_catalog *catalog, struct dcp_flat_tables *tables,
                     struct dcp_error *err)
{
    struct dcp_flat_tensors *told = &tables->told;
    const struct {
        const char *(*text)(const struct dcp_tensor *t);
        struct dcp_flat_texts *out;
    } lists[] = { { name_of, &told->names },
                  { param_of, &told->params },
                  { tied_of, &told->tied },
                  { quantized_of, &told->quantized } };

    for (size_t i = 0; i < DCP_ARRAY_LEN(lists); i++)
        DCP_TRY(add_texts(catalog, lists[i].text, &tables->blobs[i], &tables->offsets[i],
                          lists[i].out, err));
    return DCP_OK;
}

static int add_facts(const struct dcp_catalog *catalog, struct dcp_flat_tables *tables,
                     struct dcp_error *err)
{
    size_t n = catalog->n_tensors, n_dims = 0, at = 0;

    for (size_t t = 0; t < n; t++)
        n_dims += (size_t)catalog->tensors[t].ndim;
    tables->roles = dcp_mem_calloc(n, sizeof *tables->roles);
    tables->dtypes = dcp_mem_calloc(n, sizeof *tables->dtypes);
    tables->ndims = dcp_mem_calloc(n, sizeof *tables->ndims);
    tables->flags = dcp_mem_calloc(n, sizeof *tables->flags);
    tables->shapes = dcp_mem_calloc(n_dims, sizeof *tables->shapes);
    tables->fingerprints = dcp_mem_calloc(n, sizeof *tables->fingerprints);
    tables->n_pieces = dcp_mem_calloc(n, sizeof *tables->n_pieces);
    if (!tables->roles || !tables->dtypes || !tables->ndims || !tables->flags ||
        !tables->shapes || !tables->fingerprints || !tables->n_pieces)
        return dcp_error_memory(err, "the facts of tensors");
    for (size_t t = 0; t < n; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        tables->roles[t] = (int32_t)tensor->role;
        tables->dtypes[t] = (int32_t)tensor->dtype;
        tables->ndims[t] = tensor->ndim;
        tables->flags[t] = (tensor->is_meta ? DCP_FLAT_IS_META : 0) |
                           (tensor->has_fingerprint ? DCP_FLAT_HAS_FINGERPRINT : 0);
        for (int d = 0; d < tensor->ndim; d++)
            tables->shapes[at++] = tensor->shape[d];
        tables->fingerprints[t] = tensor->fingerprint;
        tables->n_pieces[t] = tensor->n_pieces;
    }
    return DCP_OK;
}

int dcp_flat_tables_new(const struct dcp_catalog *catalog, struct dcp_flat_tables **out,
                        struct dcp_error *err)
{
    struct dcp_flat_tables *tables = calloc(1, sizeof *tables);

    *out = NULL;
    if (!tables)
        return dcp_error_memory(err, "the tables of tensors");
    int rc = add_names(catalog, tables, err);
    if (!rc)
        rc = add_facts(catalog, tables, err);
    if (rc) {
        dcp_flat_tables_free(tables);
        return rc;
    }
    struct dcp_flat_tensors *told = &tables->told;
    told->n = catalog->n_tensors;
    told->roles = tables->roles;
    told->dtypes = tables->dtypes;
    told->ndims = tables->ndims;
    told->flags = tables->flags;
    told->shapes = tables->shapes;
    told->fingerprints = tables->fingerprints;
    told->n_pieces = tables->n_pieces;
    *out = tables;
    return DCP_OK;
}

void dcp_flat_tables_free(struct dcp_flat_tables *tables)
{
    if (!tables)
        return;
    for (size_t i = 0; i < DCP_ARRAY_LEN(tables->blobs); i++) {
        free(tables->blobs[i]);
        free(tables->offsets[i]);
    }
    free(tables->roles);
    free(tables->dtypes);
    free(tables->ndims);
    free(tables->flags);
    free(tables->shapes);
    free(tables->fingerprints);
    free(tables->n_pieces);
    free(tables);
}
