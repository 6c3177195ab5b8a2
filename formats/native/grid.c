/* Where the pieces of a tensor are, in its entry of the manifest: the rank of the one
 * piece, or a grid. FORMAT.md, 5. */
#include "base/mem.h"
#include "base/str.h"
#include "native.h"
#include <string.h>

void dcp_native_add_grid(struct dcp_buf *buf, const struct dcp_tensor *tensor,
                         const struct dcp_grid *grid)
{
    int64_t cells[DCP_MAX_NDIM], n = dcp_grid_cells(tensor, grid, cells);
    int64_t numbers[DCP_GRID_MOST_RANKS];
    int ndim = dcp_grid_ndim(tensor, grid);

    if (n == 1) {
        dcp_buf_add_text(buf, ",\"rank\":");
        dcp_buf_add_i64(buf, grid->ranks ? grid->ranks[0] : grid->first);
        return;
    }
    dcp_buf_add_text(buf, grid->flat ? ",\"grid\":{\"cut\":\"flat\""
                                     : ",\"grid\":{\"cut\":\"box\"");
    dcp_buf_add_text(buf, ",\"lead\":");
    dcp_native_add_numbers(buf, grid->lead, ndim);
    dcp_buf_add_text(buf, ",\"size\":");
    dcp_native_add_numbers(buf, grid->size, ndim);
    for (int64_t i = 0; grid->ranks && i < n; i++)
        numbers[i] = grid->ranks[i];
    for (int d = 0; !grid->ranks && d < ndim; d++)
        numbers[d] = grid->stride[d];
    if (!grid->ranks) {
        dcp_buf_add_text(buf, ",\"first\":");
        dcp_buf_add_i64(buf, grid->first);
    }
    dcp_buf_add_text(buf, grid->ranks ? ",\"ranks\":" : ",\"stride\":");
    dcp_native_add_numbers(buf, numbers, grid->ranks ? (int)n : ndim);
    dcp_buf_add_u8(buf, '}');
}

/* An array of just n numbers of 32 bits. */
static bool get_ints(const json_t *array, int *out, size_t n)
{
    if (!json_is_array(array) || json_array_size(array) != n)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) != (int)json_integer_value(v))
            return false;
        out[i] = (int)json_integer_value(v);
    }
    return true;
}

static bool get_sizes(const json_t *array, int64_t *out, size_t n)
{
    if (!json_is_array(array) || json_array_size(array) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        out[i] = json_integer_value(json_array_get(array, i));
    return true;
}

/* False: what the entry says is no grid. */
static bool get_grid(const json_t *entry, struct dcp_native_told *out)
{
    const char *cut = json_string_value(json_object_get(entry, "cut"));
    const json_t *listed = json_object_get(entry, "ranks");
    struct dcp_grid *grid = &out->grid;

    if (!cut || (strcmp(cut, "flat") && strcmp(cut, "box")))
        return false;
    grid->flat = !strcmp(cut, "flat");
    size_t ndim = grid->flat ? 1 : (size_t)out->ndim;
    if (!get_sizes(json_object_get(entry, "lead"), grid->lead, ndim) ||
        !get_sizes(json_object_get(entry, "size"), grid->size, ndim))
        return false;
    if (listed) {
        out->n_ranks = json_array_size(listed);
        grid->ranks = out->ranks;
        return out->n_ranks <= DCP_GRID_MOST_RANKS &&
               get_ints(listed, out->ranks, out->n_ranks);
    }
    const json_t *first = json_object_get(entry, "first");
    grid->first = (int)json_integer_value(first);
    return json_is_integer(first) && json_integer_value(first) == grid->first &&
           get_ints(json_object_get(entry, "stride"), grid->stride, ndim);
}

static int no_grid(const char *name, struct dcp_error *err)
{
    return dcp_error_of_tensor(
        err, DCP_E_CORRUPT, name,
        "tensor '%s' has no valid 'rank' or 'grid' in the manifest", DCP_SHOWN(name));
}

int dcp_native_parse_grid(const json_t *entry, struct dcp_native_told *out,
                          struct dcp_error *err)
{
    const json_t *rank = json_object_get(entry, "rank");
    const json_t *told = json_object_get(entry, "grid");
    bool good = !rank || !told;

    out->has_rank = rank;
    out->has_grid = told;
    out->grid = (struct dcp_grid){ .flat = true };
    if (rank) {
        out->grid.first = (int)json_integer_value(rank);
        good &= json_is_integer(rank) && json_integer_value(rank) == out->grid.first;
    } else if (told) {
        good = get_grid(told, out);
    }
    return good ? DCP_OK : no_grid(out->name, err);
}

int dcp_native_add_told_grid(const struct dcp_native_told *told,
                             struct dcp_catalog *catalog, struct dcp_tensor *tensor,
                             struct dcp_error *err)
{
    struct dcp_grid grid = told->grid;

    if (!told->has_rank && !told->has_grid)
        return DCP_OK;
    if (told->has_rank)
        grid.lead[0] = grid.size[0] = tensor->n_elems;
    if (!dcp_grid_ok(tensor, &grid, told->n_ranks, catalog->world_size))
        return no_grid(tensor->name, err);
    tensor->grid = dcp_grid_copy(catalog, tensor, &grid);
    return tensor->grid ? DCP_OK : dcp_error_memory(err, "a grid of pieces");
}
