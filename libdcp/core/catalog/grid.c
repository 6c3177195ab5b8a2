#include "grid.h"
#include "base/mem.h"
#include "base/str.h"
#include "region.h"
#include <string.h>

/* The regions that may be a grid, and who holds them. */
struct regions {
    const struct dcp_tensor *tensor;
    const unsigned char *region, *rank;
    size_t stride, n;
};

static const struct dcp_region *region_at(const struct regions *r, size_t i)
{
    return (const void *)(r->region + i * r->stride);
}

static int rank_at(const struct regions *r, size_t i)
{
    int rank;

    memcpy(&rank, r->rank + i * r->stride, sizeof rank);
    return rank;
}

int dcp_grid_ndim(const struct dcp_tensor *tensor, const struct dcp_grid *grid)
{
    return grid->flat ? 1 : tensor->ndim;
}

static int64_t extent(const struct dcp_tensor *tensor, const struct dcp_grid *grid, int d)
{
    return grid->flat ? tensor->n_elems : tensor->shape[d];
}

int64_t dcp_grid_cells(const struct dcp_tensor *tensor, const struct dcp_grid *grid,
                       int64_t out_cells[DCP_MAX_NDIM])
{
    int64_t all = 1;

    for (int d = 0; d < dcp_grid_ndim(tensor, grid); d++) {
        int64_t lead = grid->lead[d], size = grid->size[d], n = extent(tensor, grid, d);
        if (lead < 1 || size < 1)
            return 0;
        out_cells[d] = n <= lead ? 1 : 2 + (n - lead - 1) / size;
        if (out_cells[d] > DCP_GRID_MOST_CELLS / all)
            return 0;
        all *= out_cells[d];
    }
    return all;
}

/* Cell c of a dimension: where it begins and how long it is. */
static void cell_range(const struct dcp_tensor *tensor, const struct dcp_grid *grid,
                       int d, int64_t c, int64_t *out_begin, int64_t *out_size)
{
    int64_t begin = c ? grid->lead[d] + (c - 1) * grid->size[d] : 0;
    int64_t size = c ? grid->size[d] : grid->lead[d];
    int64_t left = extent(tensor, grid, d) - begin;

    *out_begin = begin;
    *out_size = size < left ? size : left;
}

/* The region in the dimensions of the grid; false: it has none there. */
static bool place(const struct dcp_tensor *tensor, const struct dcp_grid *grid,
                  const struct dcp_region *region, int64_t *offset, int64_t *size)
{
    if (!grid->flat && region->kind == DCP_FLAT)
        return false;
    if (!grid->flat) {
        dcp_region_box(tensor, region, offset, size);
        return true;
    }
    if (!dcp_region_interval(tensor, region, &offset[0], &size[0]))
        return false;
    size[0] -= offset[0];
    return true;
}

/* Sizes of cells, from the first region and the first ones behind it in each dimension.
 */
static bool measure(const struct regions *r, struct dcp_grid *grid)
{
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM];
    int ndim = dcp_grid_ndim(r->tensor, grid);

    if (!place(r->tensor, grid, region_at(r, 0), offset, grid->lead))
        return false;
    memcpy(grid->size, grid->lead, sizeof grid->size);
    for (int d = 0; d < ndim; d++) {
        bool found = grid->lead[d] >= extent(r->tensor, grid, d);
        for (size_t i = 1; i < r->n && !found; i++) {
            if (!place(r->tensor, grid, region_at(r, i), offset, size))
                return false;
            found = offset[d] == grid->lead[d];
            grid->size[d] = found ? size[d] : grid->size[d];
        }
        if (!found)
            return false;
    }
    return true;
}

/* The next cell in row-major order. */
static void step(int64_t *c, const int64_t *cells, int ndim)
{
    for (int d = ndim - 1; d >= 0; d--) {
        if (++c[d] < cells[d])
            return;
        c[d] = 0;
    }
}

static int64_t rank_of(const struct dcp_grid *grid, const int64_t *c, int ndim)
{
    int64_t rank = grid->first;

    for (int d = 0; d < ndim; d++)
        rank += c[d] * grid->stride[d];
    return rank;
}

/* The rule of the ranks from one cell and its neighbours; *out_rule false: that does not
 * hold for all cells. Returns whether the regions are the cells. */
static bool compare(const struct regions *r, struct dcp_grid *grid, bool *out_rule)
{
    int64_t cells[DCP_MAX_NDIM], c[DCP_MAX_NDIM] = { 0 };
    int ndim = dcp_grid_ndim(r->tensor, grid);
    size_t behind = 1;

    if (dcp_grid_cells(r->tensor, grid, cells) != (int64_t)r->n)
        return false;
    grid->first = rank_at(r, 0);
    for (int d = ndim - 1; d >= 0; d--) {
        grid->stride[d] = cells[d] > 1 ? rank_at(r, behind) - grid->first : 0;
        behind *= (size_t)cells[d];
    }
    *out_rule = true;
    for (size_t i = 0; i < r->n; i++, step(c, cells, ndim)) {
        int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM], begin, n;
        if (!place(r->tensor, grid, region_at(r, i), offset, size))
            return false;
        for (int d = 0; d < ndim; d++) {
            cell_range(r->tensor, grid, d, c[d], &begin, &n);
            if (offset[d] != begin || size[d] != n)
                return false;
        }
        *out_rule = *out_rule && rank_of(grid, c, ndim) == rank_at(r, i);
    }
    return true;
}

int dcp_grid_find(struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                  const struct dcp_region *region, const int *rank, size_t stride_bytes,
                  size_t n, const struct dcp_grid **out, struct dcp_error *err)
{
    const struct regions r = { tensor, (const void *)region, (const void *)rank,
                               stride_bytes, n };
    struct dcp_grid grid = { .flat = true };
    int ranks[DCP_GRID_MOST_RANKS];
    bool rule = true, is_grid = false;

    *out = NULL;
    if (!n || !tensor->n_elems)
        return DCP_OK;
    is_grid = measure(&r, &grid) && compare(&r, &grid, &rule);
    if (!is_grid) {
        grid = (struct dcp_grid){ .flat = false };
        is_grid = measure(&r, &grid) && compare(&r, &grid, &rule);
    }
    if (!is_grid || (!rule && n > DCP_GRID_MOST_RANKS))
        return DCP_OK;
    for (size_t i = 0; i < n && !rule; i++)
        ranks[i] = rank_at(&r, i);
    grid.ranks = rule ? NULL : ranks;
    *out = dcp_grid_copy(catalog, tensor, &grid);
    return *out ? DCP_OK : dcp_error_memory(err, "a grid of pieces");
}

bool dcp_grid_ok(const struct dcp_tensor *tensor, const struct dcp_grid *grid,
                 size_t n_ranks, int world_size)
{
    int64_t cells[DCP_MAX_NDIM], n = dcp_grid_cells(tensor, grid, cells);
    int64_t least = grid->first, most = grid->first;

    if (!n || !tensor->n_elems || (grid->ranks && (int64_t)n_ranks != n))
        return false;
    if (grid->ranks && n > DCP_GRID_MOST_RANKS)
        return false;
    for (int64_t i = 0; grid->ranks && i < n; i++)
        if (grid->ranks[i] < 0 || grid->ranks[i] >= world_size)
            return false;
    for (int d = 0; !grid->ranks && d < dcp_grid_ndim(tensor, grid); d++) {
        int64_t all = (cells[d] - 1) * grid->stride[d];
        least += all < 0 ? all : 0;
        most += all > 0 ? all : 0;
    }
    return grid->ranks || (least >= 0 && most < world_size);
}

/* That of the tensor before, when it says the same: most tensors are cut alike. */
static const struct dcp_grid *same_as_before(const struct dcp_catalog *catalog,
                                             const struct dcp_tensor *tensor,
                                             const struct dcp_grid *grid)
{
    size_t place = (uintptr_t)tensor - (uintptr_t)catalog->tensors; /* if it is there */
    bool follows = place >= sizeof *tensor && place < catalog->n_tensors * sizeof *tensor;
    const struct dcp_grid *before = follows ? tensor[-1].grid : NULL;

    if (!before || before->ranks || grid->ranks || before->flat != grid->flat ||
        dcp_grid_ndim(tensor - 1, before) != dcp_grid_ndim(tensor, grid))
        return NULL;
    size_t n = (size_t)dcp_grid_ndim(tensor, grid);
    bool same = before->first == grid->first &&
                !memcmp(before->lead, grid->lead, n * sizeof *grid->lead) &&
                !memcmp(before->size, grid->size, n * sizeof *grid->size) &&
                !memcmp(before->stride, grid->stride, n * sizeof *grid->stride);
    return same ? before : NULL;
}

const struct dcp_grid *dcp_grid_copy(struct dcp_catalog *catalog,
                                     const struct dcp_tensor *tensor,
                                     const struct dcp_grid *grid)
{
    const struct dcp_grid *same = same_as_before(catalog, tensor, grid);
    if (same)
        return same;
    struct dcp_grid *copy = dcp_catalog_alloc(catalog, 1, sizeof *copy);
    int64_t cells[DCP_MAX_NDIM];
    size_t n = (size_t)dcp_grid_cells(tensor, grid, cells);

    if (!copy)
        return NULL;
    *copy = *grid;
    if (grid->ranks) {
        int *ranks = dcp_catalog_alloc(catalog, n, sizeof *ranks);
        if (!ranks)
            return NULL;
        memcpy(ranks, grid->ranks, n * sizeof *ranks);
        copy->ranks = ranks;
    }
    return copy;
}

/* The part of a region in the dimensions of the grid, or what is around it there. */
static void surround(const struct dcp_tensor *tensor, const struct dcp_grid *grid,
                     const struct dcp_region *region, int64_t *offset, int64_t *size)
{
    int64_t stride[DCP_MAX_NDIM];

    if (place(tensor, grid, region, offset, size))
        return;
    dcp_region_strides(tensor->shape, tensor->ndim, stride);
    if (grid->flat) { /* from the first element of a box to its last */
        int64_t at[DCP_MAX_NDIM], n[DCP_MAX_NDIM], begin = 0, last = 0;
        dcp_region_box(tensor, region, at, n);
        for (int d = 0; d < tensor->ndim; d++) {
            begin += at[d] * stride[d];
            last += (at[d] + n[d] - 1) * stride[d];
        }
        offset[0] = begin;
        size[0] = last + 1 - begin;
        return;
    }
    memset(offset, 0, (size_t)tensor->ndim * sizeof *offset);
    memcpy(size, tensor->shape, (size_t)tensor->ndim * sizeof *size);
    if (tensor->ndim) { /* the rows of a flat range */
        offset[0] = region->begin / stride[0];
        size[0] = (region->end - 1) / stride[0] + 1 - offset[0];
    }
}

static int64_t cell_at(const struct dcp_grid *grid, int d, int64_t at)
{
    return at < grid->lead[d] ? 0 : 1 + (at - grid->lead[d]) / grid->size[d];
}

void dcp_grid_mark(const struct dcp_tensor *tensor, const struct dcp_grid *grid,
                   const struct dcp_region *region, bool *ranks)
{
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM], cells[DCP_MAX_NDIM];
    int64_t from[DCP_MAX_NDIM], c[DCP_MAX_NDIM], n[DCP_MAX_NDIM] = { 0 }, all = 1;
    int64_t i[DCP_MAX_NDIM] = { 0 };
    int ndim = dcp_grid_ndim(tensor, grid);

    if (!dcp_region_elems(tensor, region))
        return;
    dcp_grid_cells(tensor, grid, cells);
    surround(tensor, grid, region, offset, size);
    for (int d = 0; d < ndim; d++) {
        from[d] = cell_at(grid, d, offset[d]);
        n[d] = cell_at(grid, d, offset[d] + size[d] - 1) + 1 - from[d];
        all *= n[d];
    }
    for (int64_t k = 0; k < all; k++, step(i, n, ndim)) {
        int64_t at = 0;
        for (int d = 0; d < ndim; d++) {
            c[d] = from[d] + i[d];
            at = at * cells[d] + c[d];
        }
        ranks[grid->ranks ? grid->ranks[at] : rank_of(grid, c, ndim)] = true;
    }
}

/* The same cells on the same ranks, whether those are listed or follow a rule. */
static bool equal(const struct dcp_tensor *tensor, const struct dcp_grid *a,
                  const struct dcp_grid *b)
{
    int64_t cells[DCP_MAX_NDIM], c[DCP_MAX_NDIM] = { 0 };
    int64_t n = dcp_grid_cells(tensor, a, cells);
    int ndim = dcp_grid_ndim(tensor, a);

    if (a->flat != b->flat || memcmp(a->lead, b->lead, (size_t)ndim * sizeof *a->lead) ||
        memcmp(a->size, b->size, (size_t)ndim * sizeof *a->size))
        return false;
    for (int64_t i = 0; i < n; i++, step(c, cells, ndim))
        if ((a->ranks ? a->ranks[i] : rank_of(a, c, ndim)) !=
            (b->ranks ? b->ranks[i] : rank_of(b, c, ndim)))
            return false;
    return true;
}

int dcp_grids_check(struct dcp_catalog *catalog, struct dcp_error *err)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        const struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];
        size_t n = tensor->n_pieces;
        const struct dcp_grid *found;

        if (!tensor->grid)
            continue;
        for (; n && !dcp_piece_elems(catalog, piece); n--)
            piece++;
        DCP_TRY(dcp_grid_find(catalog, tensor, &piece->region, &piece->rank,
                              sizeof *piece, n, &found, err));
        if (!found && dcp_regions_check(tensor, &piece->region, sizeof *piece, n, NULL))
            continue;
        if (!found || !equal(tensor, found, tensor->grid))
            return dcp_error_of_tensor(err, DCP_E_CORRUPT, tensor->name,
                                       "tensor '%s' is not cut over its ranks as the "
                                       "manifest says",
                                       DCP_SHOWN(tensor->name));
    }
    return DCP_OK;
}
