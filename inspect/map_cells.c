#include "map.h"

#include "base/mem.h"
#include <string.h>

/* The dimension that boxes of a tensor are cut along, if it is not the first: columns, as
 * tensor parallelism cuts them. -1: pieces are runs of the flattened tensor. */
static int cut_dimension(const struct dcp_catalog *catalog, const struct dcp_tensor *t)
{
    for (size_t i = 0; i < t->n_pieces; i++) {
        const struct dcp_region *r = &catalog->pieces[t->first_piece + i].region;
        for (int d = 1; r->kind == DCP_BOX && d < t->ndim; d++)
            if (r->size[d] != t->shape[d])
                return d;
    }
    return -1;
}

/* Where a piece lies on the line that the cells divide: begin .. end of `length`. */
static void place(const struct dcp_tensor *t, const struct dcp_region *region, int d,
                  int64_t *begin, int64_t *end)
{
    int64_t row = t->ndim && t->shape[0] > 0 ? t->n_elems / t->shape[0] : t->n_elems;
    *begin = 0;
    *end = d < 0 ? t->n_elems : t->shape[d];
    if (region->kind == DCP_FLAT && d < 0) {
        *begin = region->begin;
        *end = region->end;
    } else if (region->kind == DCP_BOX && d >= 0) {
        *begin = region->offset[d];
        *end = region->offset[d] + region->size[d];
    } else if (region->kind == DCP_BOX && t->ndim > 0) {
        *begin = region->offset[0] * row;
        *end = (region->offset[0] + region->size[0]) * row;
    }
}

static bool same_region(const struct dcp_tensor *t, const struct dcp_region *a,
                        const struct dcp_region *b)
{
    size_t size = (size_t)t->ndim * sizeof(int64_t);
    if (a->kind != b->kind)
        return false;
    if (a->kind == DCP_FLAT)
        return a->begin == b->begin && a->end == b->end;
    return a->kind == DCP_WHOLE || !size ||
           (memcmp(a->offset, b->offset, size) == 0 &&
            memcmp(a->size, b->size, size) == 0);
}

static double overlap(double a, double b, double c, double d)
{
    double begin = a > c ? a : c, end = b < d ? b : d;
    return end > begin ? end - begin : 0;
}

int inspect_map_paint(const struct dcp_catalog *catalog, const struct dcp_tensor *t,
                      int n, int cells[INSPECT_CELLS_MOST])
{
    double covered[INSPECT_CELLS_MOST] = { 0 };
    int dim = cut_dimension(catalog, t);
    double length = (double)(dim < 0 ? t->n_elems : t->shape[dim]);
    for (int c = 0; c < n; c++)
        cells[c] = INSPECT_CELL_NOBODY;
    const struct dcp_piece *before = NULL;
    for (size_t i = 0; i < t->n_pieces && length > 0; i++) {
        const struct dcp_piece *p = &catalog->pieces[t->first_piece + i];
        bool replica = before && same_region(t, &before->region, &p->region);
        before = p;
        int64_t begin, end;
        place(t, &p->region, dim, &begin, &end);
        int first = (int)((double)begin / length * n),
            last = (int)((double)end / length * n);
        for (int c = first; c <= last && c < n; c++) {
            double part =
                overlap((double)begin, (double)end, length * c / n, length * (c + 1) / n);
            if (part > 0 && replica && part >= covered[c]) {
                cells[c] = cells[c] == p->rank ? p->rank : INSPECT_CELL_SEVERAL;
            } else if (part > covered[c]) {
                covered[c] = part;
                cells[c] = p->rank;
            }
        }
    }
    return dim;
}

/* Whether two tensors are cut the same way among the same ranks. */
static bool lie_alike(const struct dcp_catalog *catalog, const struct dcp_tensor *a,
                      const struct dcp_tensor *b)
{
    if (a->ndim != b->ndim || a->n_pieces != b->n_pieces ||
        (a->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0))
        return false;
    for (size_t i = 0; i < a->n_pieces; i++) {
        const struct dcp_piece *p = &catalog->pieces[a->first_piece + i];
        const struct dcp_piece *q = &catalog->pieces[b->first_piece + i];
        if (p->rank != q->rank || !same_region(a, &p->region, &q->region))
            return false;
    }
    return true;
}

static void add_to_row(struct inspect_map_row *row, const struct dcp_tensor *t)
{
    if (!row->tensor)
        row->tensor = t;
    row->size_bytes += dcp_tensor_bytes(t);
    row->roles[t->role] = true;
}

int inspect_map_rows(const struct dcp_catalog *catalog, const size_t *tensors, size_t n,
                     bool each, struct inspect_map_row **out, size_t *out_n,
                     struct dcp_error *err)
{
    struct inspect_map_row *rows = dcp_mem_calloc(n, sizeof *rows);
    /* one more than the row of a tensor that leads one; 0: none */
    DCP_CLEANUP_FREE size_t *led = dcp_mem_calloc(catalog->n_tensors, sizeof *led);
    *out = NULL;
    *out_n = 0;
    if (!rows || !led) {
        free(rows);
        return dcp_error_memory(err, "the map");
    }
    for (size_t i = 0; i < n; i++) {
        const struct dcp_tensor *t = &catalog->tensors[tensors[i]];
        int leader = each || !t->param ? -1 : dcp_catalog_find(catalog, t->param);
        if (leader >= 0 && led[leader] &&
            lie_alike(catalog, rows[led[leader] - 1].tensor, t)) {
            add_to_row(&rows[led[leader] - 1], t);
            continue;
        }
        add_to_row(&rows[(*out_n)++], t);
        /* The first tensor of a parameter that is seen leads the others. */
        if (leader >= 0 && !led[leader])
            led[leader] = *out_n;
    }
    *out = rows;
    return DCP_OK;
}

int inspect_map_ranks(const struct dcp_catalog *catalog, const size_t *tensors, size_t n,
                      struct inspect_map_rank **out, int *out_world_size,
                      struct dcp_error *err)
{
    int world_size = catalog->world_size > 0 ? catalog->world_size : 1;
    for (size_t i = 0; i < catalog->n_pieces; i++)
        if (catalog->pieces[i].rank >= world_size)
            world_size = catalog->pieces[i].rank + 1;
    struct inspect_map_rank *ranks = dcp_mem_calloc((size_t)world_size, sizeof *ranks);
    if (!ranks)
        return dcp_error_memory(err, "the ranks");
    for (size_t i = 0; i < n; i++) {
        const struct dcp_tensor *t = &catalog->tensors[tensors[i]];
        for (size_t k = 0; k < t->n_pieces; k++) {
            const struct dcp_piece *p = &catalog->pieces[t->first_piece + k];
            if (p->rank < 0)
                continue;
            ranks[p->rank].size_bytes += dcp_piece_bytes(catalog, p);
            ranks[p->rank].n_pieces++;
        }
    }
    *out = ranks;
    *out_world_size = world_size;
    return DCP_OK;
}
