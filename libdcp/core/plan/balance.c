#include "balance.h"
#include "base/mem.h"
#include "base/part.h"
#include "core/catalog/region.h"
#include <string.h>

#define MIN_CUT_BYTES (4u << 20) /* smaller replicas stay whole: few, readable pieces */

/* Pieces first .. first + n of the catalog are the same region on n ranks. */
struct replica {
    size_t first, n;
    uint64_t bytes;
};

static int larger_first(const void *a, const void *b)
{
    const struct replica *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int lightest(const struct dcp_piece *candidates, size_t n, const uint64_t *load)
{
    int best = candidates[0].rank;

    for (size_t i = 1; i < n; i++)
        if (load[candidates[i].rank] < load[best])
            best = candidates[i].rank;
    return best;
}

static int place(struct dcp_catalog *catalog, const struct dcp_piece *candidates,
                 size_t n, struct dcp_region region, uint64_t *load,
                 struct dcp_error *err)
{
    struct dcp_piece piece = candidates[0];

    piece.region = region;
    piece.rank = lightest(candidates, n, load);
    load[piece.rank] += dcp_piece_bytes(catalog, &piece);
    return dcp_catalog_add_piece(catalog, &piece, err);
}

/* A large replica in row boxes (a flat range in flat ranges) of about `target` bytes. */
static int place_cut(struct dcp_catalog *catalog, const struct dcp_piece *candidates,
                     size_t n, uint64_t bytes, uint64_t target, uint64_t *load,
                     struct dcp_error *err)
{
    const struct dcp_tensor tensor = catalog->tensors[candidates[0].tensor];
    const struct dcp_region *region = &candidates[0].region;
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM];
    int64_t parts = (int64_t)((bytes + target - 1) / target), units, from;
    bool flat = region->kind == DCP_FLAT;

    if (!flat)
        dcp_region_box(&tensor, region, offset, size);
    units = flat ? region->end - region->begin : tensor.ndim ? size[0] : 1;
    from = flat ? region->begin : tensor.ndim ? offset[0] : 0;
    parts = parts < units ? parts : units;
    if (parts <= 1)
        return place(catalog, candidates, n, *region, load, err);
    for (int64_t p = 0; p < parts; p++) {
        struct dcp_part part = dcp_part_even(units, parts, p);
        struct dcp_region cut = { .kind = flat ? DCP_FLAT : DCP_BOX,
                                  .begin = from + part.begin,
                                  .end = from + part.end,
                                  .offset = offset,
                                  .size = size };
        if (!flat) {
            offset[0] = cut.begin;
            size[0] = cut.end - cut.begin;
        }
        DCP_TRY(place(catalog, candidates, n, cut, load, err));
    }
    return DCP_OK;
}

int dcp_balance(struct dcp_catalog *catalog, struct dcp_error *err)
{
    size_t n_old = catalog->n_pieces, n_replicas = 0;
    DCP_CLEANUP_FREE struct dcp_piece *old = dcp_mem_calloc(n_old, sizeof *old);
    DCP_CLEANUP_FREE struct replica *replicas = dcp_mem_calloc(n_old, sizeof *replicas);
    DCP_CLEANUP_FREE uint64_t *load =
        dcp_mem_calloc((size_t)catalog->world_size, sizeof *load);
    uint64_t total = 0;
    int rc = DCP_OK;

    if (!old || !replicas || !load)
        return dcp_error_memory(err, "the balance of a save");
    if (n_old)
        memcpy(old, catalog->pieces, n_old * sizeof *old);
    catalog->n_pieces = 0;
    for (size_t i = 0; i < n_old && !rc;) {
        const struct dcp_tensor *tensor = &catalog->tensors[old[i].tensor];
        uint64_t bytes = dcp_piece_bytes(catalog, &old[i]);
        size_t n = 1;
        while (i + n < n_old && old[i + n].tensor == old[i].tensor &&
               !dcp_region_order(tensor, &old[i].region, &old[i + n].region))
            n++;
        total += bytes;
        if (n == 1) {
            load[old[i].rank] += bytes;
            if (bytes || tensor->n_elems == 0)
                rc = dcp_catalog_add_piece(catalog, &old[i], err);
        } else if (bytes || tensor->n_elems == 0) {
            replicas[n_replicas++] = (struct replica){ i, n, bytes };
        }
        i += n;
    }
    if (n_replicas)
        qsort(replicas, n_replicas, sizeof *replicas, larger_first);
    uint64_t share = total / (uint64_t)catalog->world_size;
    for (size_t k = 0; k < n_replicas && !rc; k++) {
        const struct replica *r = &replicas[k];
        uint64_t target = share / 8 > MIN_CUT_BYTES ? share / 8 : MIN_CUT_BYTES;
        if (r->bytes > share / 2 && r->bytes > MIN_CUT_BYTES)
            rc = place_cut(catalog, old + r->first, r->n, r->bytes, target, load, err);
        else
            rc = place(catalog, old + r->first, r->n, old[r->first].region, load, err);
    }
    return rc ? rc : dcp_catalog_sort(catalog, err);
}
