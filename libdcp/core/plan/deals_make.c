#include "balance.h"
#include "base/mem.h"
#include "core/catalog/pack.h"
#include "core/catalog/region.h"
#include "deals.h"
#include "holdings.h"
#include <dcp/grid.h>
#include <string.h>

struct merge {
    struct dcp_catalog *catalog;
    struct dcp_holding *held;         /* of the tensor at hand, by place */
    int64_t (*dims)[2][DCP_MAX_NDIM]; /* of the boxes of each rank */
    size_t n;                         /* ranks that hold some of it */
    struct dcp_replica *replicas;
    size_t n_replicas, cap_replicas;
    uint64_t *load; /* bytes that each rank writes already */
    uint64_t total;
};

static int by_place(const void *a, const void *b, void *arg)
{
    const struct dcp_holding *x = a, *y = b;
    int order = dcp_region_order(arg, &x->region, &y->region);

    return order ? order : x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* What the ranks hold of a tensor, by place. */
static int collect(struct merge *m, struct dcp_tensor *tensor,
                   struct dcp_cursor *holdings, struct dcp_error *err)
{
    bool in_order = true;

    m->n = 0;
    for (int r = 0; r < m->catalog->world_size; r++) {
        struct dcp_holding *held = &m->held[m->n];
        DCP_TRY(dcp_holding_next(&holdings[r], tensor, r, m->dims[r], held, err));
        if (!dcp_region_elems(tensor, &held->region))
            continue;
        in_order = in_order && (m->n == 0 || by_place(held - 1, held, tensor) < 0);
        m->n++;
    }
    if (!in_order)
        qsort_r(m->held, m->n, sizeof *m->held, by_place, tensor);
    return DCP_OK;
}

static int add_deal(struct merge *m, int tensor, void *data, struct dcp_error *err)
{
    return dcp_catalog_add_piece(
        m->catalog, &(struct dcp_piece){ .tensor = tensor, .file = -1, .data = data },
        err);
}

/* A small tensor whose parts came with their bytes falls to rank 0. */
static int join(struct merge *m, int t, struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &m->catalog->tensors[t];
    size_t n = (size_t)dcp_tensor_bytes(tensor);
    unsigned char *whole = dcp_catalog_alloc(m->catalog, n, 1);

    if (!whole)
        return dcp_error_memory(err, "a small tensor");
    for (size_t i = 0; i < m->n; i++)
        if (m->held[i].bytes)
            dcp_holding_join(tensor, &m->held[i], whole);
    m->load[0] += n;
    return add_deal(m, t, whole, err);
}

/* Ranks held[i] .. held[i + n] hold one region. */
static int note_replica(struct merge *m, int t, size_t i, size_t n, uint64_t bytes,
                        struct dcp_error *err)
{
    int ndim = m->catalog->tensors[t].ndim;
    size_t dims_bytes = (size_t)ndim * sizeof(int64_t);
    struct dcp_region region = m->held[i].region;
    int *ranks = dcp_catalog_alloc(m->catalog, n, sizeof *ranks);
    int64_t *dims = dcp_catalog_alloc(m->catalog, 2 * dims_bytes, 1);
    struct dcp_replica *grown = dcp_mem_grow(m->replicas, &m->cap_replicas,
                                             m->n_replicas + 1, sizeof *m->replicas);

    m->replicas = grown ? grown : m->replicas;
    if (!ranks || !dims || !grown)
        return dcp_error_memory(err, "the replicas of a state");
    for (size_t k = 0; k < n; k++)
        ranks[k] = m->held[i + k].rank;
    if (region.kind == DCP_BOX && ndim) {
        memcpy(dims, region.offset, dims_bytes);
        memcpy(dims + ndim, region.size, dims_bytes);
        region.offset = dims;
        region.size = dims + ndim;
    }
    m->replicas[m->n_replicas] =
        (struct dcp_replica){ t, region, bytes, ranks, n, m->n_replicas };
    m->n_replicas++;
    return DCP_OK;
}

static int merge_tensor(struct merge *m, int t, struct dcp_error *err)
{
    struct dcp_tensor *tensor = &m->catalog->tensors[t];
    size_t elem = dcp_dtype_size(tensor->dtype), n_before = m->n_replicas;
    bool travelled = false;

    int rc = dcp_regions_check(tensor, &m->held->region, sizeof *m->held, m->n, err);
    if (rc == DCP_E_CORRUPT) /* the ranks do not agree, no file is wrong */
        rc = DCP_E_MISMATCH;
    if (rc && err)
        err->code = rc;
    if (rc)
        return rc;
    m->total += dcp_tensor_bytes(tensor);
    if (tensor->n_elems == 0)
        return add_deal(m, t, NULL, err);
    for (size_t i = 0; i < m->n; i++)
        travelled |= m->held[i].bytes != NULL;
    if (travelled)
        return join(m, t, err);
    for (size_t i = 0, n; i < m->n; i += n) {
        const struct dcp_region *region = &m->held[i].region;
        uint64_t bytes = (uint64_t)dcp_region_elems(tensor, region) * elem;
        for (n = 1;
             i + n < m->n && !dcp_region_order(tensor, region, &m->held[i + n].region);
             n++)
            ;
        if (n == 1)
            m->load[m->held[i].rank] += bytes;
        else
            DCP_TRY(note_replica(m, t, i, n, bytes, err));
    }
    if (m->n_replicas > n_before)
        return DCP_OK;
    return dcp_grid_find(m->catalog, tensor, &m->held->region, &m->held->rank,
                         sizeof *m->held, m->n, &tensor->grid, err);
}

/* What was dealt whole is a grid of its own. */
static int find_grids(struct dcp_catalog *catalog, struct dcp_error *err)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        struct dcp_tensor *tensor = &catalog->tensors[t];
        if (!tensor->n_pieces)
            continue;
        const struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];
        DCP_TRY(dcp_grid_find(catalog, tensor, &piece->region, &piece->rank,
                              sizeof *piece, tensor->n_pieces, &tensor->grid, err));
    }
    return DCP_OK;
}

int dcp_deals_make(struct dcp_catalog *catalog, struct dcp_cursor *holdings,
                   struct dcp_error *err)
{
    size_t world_size = (size_t)catalog->world_size;
    struct merge m = { .catalog = catalog,
                       .held = dcp_mem_calloc(world_size, sizeof *m.held),
                       .dims = dcp_mem_calloc(world_size, sizeof *m.dims),
                       .load = dcp_mem_calloc(world_size, sizeof *m.load) };
    int rc = m.held && m.dims && m.load ? DCP_OK : dcp_error_memory(err, "a merge");

    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        rc = collect(&m, &catalog->tensors[t], holdings, err);
        if (!rc)
            rc = merge_tensor(&m, (int)t, err);
    }
    for (size_t r = 0; r < world_size && !rc; r++)
        if (dcp_cursor_left(&holdings[r]))
            rc = dcp_error_set(err, DCP_E_CORRUPT,
                               "what rank %zu tells of its tensors is corrupt", r);
    if (!rc)
        rc = dcp_balance_deal(catalog, m.replicas, m.n_replicas, m.load, m.total, err);
    if (!rc)
        rc = dcp_catalog_sort(catalog, err);
    if (!rc)
        rc = find_grids(catalog, err);
    free(m.held);
    free(m.dims);
    free(m.load);
    free(m.replicas);
    return rc;
}
