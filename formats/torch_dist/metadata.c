/* metadata: the files that hold the index, and what several of them say together. */
#include "metadata.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/pickle/pickle.h"
#include <string.h>

void dcp_torch_dist_metadata_fini(struct dcp_torch_dist_metadata *meta)
{
    dcp_map_fini(&meta->keys);
    dcp_map_fini(&meta->file_names);
    free(meta->tensors);
    free(meta->objects);
    free(meta->parts);
    free(meta->files);
    json_decref(meta->ours);
    json_decref(meta->extra);
    dcp_arena_free(meta->arena);
    *meta = (struct dcp_torch_dist_metadata){ 0 };
}

int dcp_torch_dist_part_order(const struct dcp_torch_dist_part *p,
                              const struct dcp_torch_dist_part *q)
{
    if (p->file != q->file)
        return p->file < q->file ? -1 : 1;
    if (p->offset != q->offset)
        return p->offset < q->offset ? -1 : 1;
    return p < q ? -1 : p > q;
}

static int read_one(const struct dcp_source *source, const char *name, int rank,
                    struct dcp_torch_dist_metadata *meta, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *data = NULL;
    size_t n;
    int rc = dcp_source_read(source, name, DCP_PICKLE_MAX_BYTES, &data, &n, err);

    if (!rc)
        rc = dcp_torch_dist_metadata_parse(data, n, rank, meta, err);
    if (rc && rc != DCP_E_NOT_FOUND)
        dcp_error_prefix(err, "'%s'", DCP_SHOWN(name));
    return rc;
}

/* The rank of __<rank>.metadata, or -1. */
static int64_t rank_of(const char *name)
{
    char digits[16];
    int64_t rank;
    size_t n = dcp_str_starts(name, "__") ? strcspn(name + 2, ".") : 0;

    if (!n || n >= sizeof digits || strcmp(name + 2 + n, DCP_TORCH_DIST_RANK_SUFFIX) != 0)
        return -1;
    memcpy(digits, name + 2, n);
    digits[n] = '\0';
    return strspn(digits, "0123456789") == n && dcp_str_parse_i64(digits, &rank) &&
                   rank < DCP_TORCH_DIST_MAX_RANK
               ? rank
               : -1;
}

static int by_rank(const void *a, const void *b)
{
    return dcp_str_natural_cmp(((const struct dcp_store_entry *)a)->name,
                               ((const struct dcp_store_entry *)b)->name);
}

/* Saves without collectives: each rank has an index of its own. */
static int read_ranks(const struct dcp_source *source,
                      struct dcp_torch_dist_metadata *meta, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;
    int64_t next = 0;
    bool has_data = false;
    int rc =
        source->store->ops->list(source->store->self, source->name, &entries, &n, err);

    if (rc)
        return rc;
    qsort(entries, n, sizeof *entries, by_rank);
    for (size_t i = 0; i < n && !rc; i++) {
        int64_t rank = rank_of(entries[i].name);
        has_data |= dcp_str_ends(entries[i].name, DCP_TORCH_DIST_FILE_SUFFIX);
        if (rank < 0)
            continue;
        if (rank != next++)
            rc = dcp_error_set(err, DCP_E_CORRUPT,
                               "'__%lld" DCP_TORCH_DIST_RANK_SUFFIX
                               "' is missing: a rank's "
                               "part of the checkpoint is not there",
                               (long long)next - 1);
        else
            rc = read_one(source, entries[i].name, (int)rank, meta, err);
    }
    dcp_store_list_free(entries, n);
    if (!rc && !next) {
        dcp_error_set(err, has_data ? DCP_E_CORRUPT : DCP_E_NOT_FOUND,
                      "there is no '" DCP_TORCH_DIST_METADATA_NAME "'%s",
                      has_data ? ": the save did not finish" : "");
        rc = has_data ? DCP_E_CORRUPT : DCP_E_NOT_FOUND;
    }
    return rc;
}

/* Parts by tensor, those of objects last, without changing their order otherwise. */
static int group_parts(struct dcp_torch_dist_metadata *meta, struct dcp_error *err)
{
    DCP_CLEANUP_FREE size_t *moved = dcp_mem_calloc(meta->n_parts, sizeof *moved);
    struct dcp_torch_dist_part *grouped = dcp_mem_calloc(meta->n_parts, sizeof *grouped);
    size_t at = 0;

    if (!moved || !grouped) {
        free(grouped);
        return dcp_error_memory(err, "the index of a checkpoint");
    }
    for (size_t t = 0; t < meta->n_tensors; t++)
        meta->tensors[t].n_parts = 0;
    for (size_t p = 0; p < meta->n_parts; p++)
        if (meta->parts[p].tensor >= 0)
            meta->tensors[meta->parts[p].tensor].n_parts++;
    for (size_t t = 0; t < meta->n_tensors; t++) {
        meta->tensors[t].first_part = at;
        at += meta->tensors[t].n_parts;
        meta->tensors[t].n_parts = 0;
    }
    for (size_t p = 0; p < meta->n_parts; p++) {
        int t = meta->parts[p].tensor;
        moved[p] =
            t < 0 ? at++ : meta->tensors[t].first_part + meta->tensors[t].n_parts++;
        grouped[moved[p]] = meta->parts[p];
    }
    for (size_t o = 0; o < meta->n_objects; o++)
        meta->objects[o].part = moved[meta->objects[o].part];
    free(meta->parts);
    meta->parts = grouped;
    meta->cap_parts = meta->n_parts;
    return DCP_OK;
}

int dcp_torch_dist_metadata_read(const struct dcp_source *source,
                                 struct dcp_torch_dist_metadata *out,
                                 struct dcp_error *err)
{
    *out = (struct dcp_torch_dist_metadata){ .version = "" };
    DCP_TRY(dcp_source_has(source, DCP_TORCH_DIST_METADATA_NAME)
                ? read_one(source, DCP_TORCH_DIST_METADATA_NAME, 0, out, err)
                : read_ranks(source, out, err));

    return group_parts(out, err);
}

void dcp_torch_dist_file_name(char out[64], int rank)
{
    snprintf(out, 64, "__%d_0" DCP_TORCH_DIST_FILE_SUFFIX, rank);
}

int dcp_torch_dist_file_rank(const char *name)
{
    char digits[16] = "";
    int64_t rank;
    size_t n = dcp_str_starts(name, "__") ? strspn(name + 2, "0123456789") : 0;

    if (!n || n >= sizeof digits || name[2 + n] != '_')
        return -1;
    memcpy(digits, name + 2, n);
    return dcp_str_parse_i64(digits, &rank) && rank < DCP_TORCH_DIST_MAX_RANK ? (int)rank
                                                                              : -1;
}
