#include "balance.h"
#include "base/mem.h"
#include "base/part.h"
#include "core/catalog/region.h"
#include <string.h>

#define MIN_CUT_BYTES (4u << 20) /* smaller replicas stay whole: few, readable pieces */

static int larger_first(const void *a, const void *b)
{
    const struct dcp_replica *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static int lightest(const struct dcp_replica *replica, const uint64_t *load)
{
    int best = replica->ranks[0];

    for (size_t i = 1; i < replica->n; i++)
        if (load[replica->ranks[i]] < load[best])
            best = replica->ranks[i];
    return best;
}

static int place(struct dcp_catalog *catalog, const struct dcp_replica *replica,
                 struct dcp_region region, uint64_t *load, struct dcp_error *err)
{
    struct dcp_piece piece = { .tensor = replica->tensor, .region = region, .file = -1 };

    piece.rank = lightest(replica, load);
    load[piece.rank] += dcp_piece_bytes(catalog, &piece);
    return dcp_catalog_add_piece(catalog, &piece, err);
}

/* A large replica in row boxes (a flat range in flat ranges) of about `target` bytes. */
static int place_cut(struct dcp_catalog *catalog, const struct dcp_replica *replica,
                     uint64_t target, uint64_t *load, struct dcp_error *err)
{
    const struct dcp_tensor tensor = catalog->tensors[replica->tensor];
    const struct dcp_region *region = &replica->region;
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM];
    int64_t parts = (int64_t)((replica->bytes + target - 1) / target), units, from;
    bool flat = region->kind == DCP_FLAT;

    if (!flat)
        dcp_region_box(&tensor, region, offset, size);
    units = flat ? region->end - region->begin : tensor.ndim ? size[0] : 1;
    from = flat ? region->begin : tensor.ndim ? offset[0] : 0;
    parts = parts < units ? parts : units;
    if (parts <= 1)
        return place(catalog, replica, *region, load, err);
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
        DCP_TRY(place(catalog, replica, cut, load, err));
    }
    return DCP_OK;
}

int dcp_balance_deal(struct dcp_catalog *catalog, struct dcp_replica *replicas, size_t n,
                     uint64_t *load, uint64_t total, struct dcp_error *err)
{
    uint64_t share = total / (uint64_t)catalog->world_size;
    uint64_t target = share / 8 > MIN_CUT_BYTES ? share / 8 : MIN_CUT_BYTES;

    if (n)
        qsort(replicas, n, sizeof *replicas, larger_first);
    for (size_t k = 0; k < n; k++) {
        const struct dcp_replica *r = &replicas[k];
        if (r->bytes > share / 2 && r->bytes > MIN_CUT_BYTES)
            DCP_TRY(place_cut(catalog, r, target, load, err));
        else
            DCP_TRY(place(catalog, r, r->region, load, err));
    }
    return DCP_OK;
}

int dcp_balance(struct dcp_catalog *catalog, struct dcp_error *err)
{
    size_t n_old = catalog->n_pieces, n_replicas = 0;
    DCP_CLEANUP_FREE struct dcp_piece *old = dcp_mem_calloc(n_old, sizeof *old);
    DCP_CLEANUP_FREE struct dcp_replica *replicas =
        dcp_mem_calloc(n_old, sizeof *replicas);
    DCP_CLEANUP_FREE int *ranks = dcp_mem_calloc(n_old, sizeof *ranks);
    DCP_CLEANUP_FREE uint64_t *load =
        dcp_mem_calloc((size_t)catalog->world_size, sizeof *load);
    uint64_t total = 0;

    if (!old || !replicas || !ranks || !load)
        return dcp_error_memory(err, "the balance of a save");
    if (n_old)
        memcpy(old, catalog->pieces, n_old * sizeof *old);
    catalog->n_pieces = 0;
    for (size_t i = 0, n; i < n_old; i += n) {
        const struct dcp_tensor *tensor = &catalog->tensors[old[i].tensor];
        uint64_t bytes = dcp_piece_bytes(catalog, &old[i]);
        for (n = 0; i + n < n_old && old[i + n].tensor == old[i].tensor &&
                    !dcp_region_order(tensor, &old[i].region, &old[i + n].region);
             n++)
            ranks[i + n] = old[i + n].rank;
        total += bytes;
        if (!bytes && tensor->n_elems)
            continue;
        if (n > 1) {
            replicas[n_replicas++] = (struct dcp_replica){
                old[i].tensor, old[i].region, bytes, ranks + i, n, i
            };
            continue;
        }
        load[old[i].rank] += bytes;
        DCP_TRY(dcp_catalog_add_piece(catalog, &old[i], err));
    }
    DCP_TRY(dcp_balance_deal(catalog, replicas, n_replicas, load, total, err));
    return dcp_catalog_sort(catalog, err);
}
