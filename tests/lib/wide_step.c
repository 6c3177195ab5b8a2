#include "lib/wide_step.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/catalog/region.h"
#include "core/plan/target.h"
#include "lib/must.h"
#include <dcp/dcp.h>
#include <dcp/grid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dcp_region wide_step_region(const struct wide_step *step, int rank,
                                   int64_t dims[2][DCP_MAX_NDIM])
{
    int64_t elems = step->rows * step->columns, world_size = step->world_size;
    int d = !strcmp(step->layout, "columns");

    if (!strcmp(step->layout, "replicated"))
        return (struct dcp_region){ .kind = DCP_WHOLE };
    if (!strcmp(step->layout, "flat"))
        return (struct dcp_region){ .kind = DCP_FLAT,
                                    .begin = elems * rank / world_size,
                                    .end = elems * (rank + 1) / world_size };
    int64_t n = d ? step->columns : step->rows;
    dims[0][!d] = 0;
    dims[1][!d] = d ? step->rows : step->columns;
    dims[0][d] = n * rank / world_size;
    dims[1][d] = n * (rank + 1) / world_size - dims[0][d];
    return (struct dcp_region){ .kind = DCP_BOX, .offset = dims[0], .size = dims[1] };
}

struct dcp_catalog *wide_step_list(const struct wide_step *step)
{
    const int64_t shape[] = { step->rows, step->columns };
    struct dcp_catalog *catalog;
    char name[64];

    must(!dcp_catalog_new(&catalog, NULL));
    catalog->world_size = step->world_size;
    catalog->step = 1;
    for (int t = 0; t < step->n_tensors; t++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", t);
        struct dcp_tensor tensor = {
            .name = name, .dtype = DCP_BF16, .ndim = 2, .shape = shape
        };
        must(!dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL));
    }
    return catalog;
}

/* Its files in the order of the manifest. */
static void add_file(struct dcp_catalog *all, const struct dcp_file *file)
{
    must(!dcp_catalog_add_file(all, file, NULL, NULL));
}

static void write_bytes(const char *folder, const char *name, const void *data, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    must(f && fwrite(data, 1, n, f) == n && !fclose(f));
}

static void make_hole(const char *folder, const struct dcp_file *file)
{
    write_bytes(folder, file->name, "", 0);
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, file->name);
    must(!truncate(path, (off_t)file->size_bytes));
}

/* The pieces of a rank, in blocks whose digests nobody looks at. */
static void write_rank(const struct wide_step *step, int rank, const char *folder,
                       struct dcp_catalog *all)
{
    const struct dcp_target_options none = { 0 };
    struct dcp_catalog *own = wide_step_list(step);
    int64_t dims[2][DCP_MAX_NDIM];

    for (int t = 0; t < step->n_tensors; t++) {
        struct dcp_piece piece = { .tensor = t, .rank = rank, .file = -1 };
        piece.region = wide_step_region(step, rank, dims);
        uint64_t bytes = 2 * (uint64_t)dcp_region_elems(&own->tensors[t], &piece.region);
        piece.n_blocks = (bytes + DCP_BLOCK_BYTES - 1) / DCP_BLOCK_BYTES;
        piece.blocks = dcp_catalog_alloc(own, piece.n_blocks, sizeof *piece.blocks);
        must(piece.blocks && !dcp_catalog_add_piece(own, &piece, NULL));
    }
    must(!dcp_catalog_sort(own, NULL));
    struct dcp_target target = { .format = dcp_format_of_steps(),
                                 .catalog = own,
                                 .options = &none,
                                 .first_rank = rank,
                                 .n_ranks = 1 };
    must(!dcp_target_open_cut(&target, NULL));
    make_hole(folder, &own->files[0]);
    must(!dcp_target_finalize(&target, rank, NULL));
    const struct dcp_literal *table = &target.literals.items[target.literals.n - 1];
    struct dcp_file *file = &own->files[table->file];
    write_bytes(folder, file->name, table->data, table->size_bytes);
    file->size_bytes = table->size_bytes;
    file->crc = dcp_hash_crc64(0, table->data, table->size_bytes);
    file->has_crc = own->files[0].has_crc = true;
    add_file(all, &own->files[0]);
    add_file(all, file);
    dcp_target_close(&target);
    dcp_catalog_free(own);
}

/* Where the pieces of every tensor are, as rank 0 of a save makes it. */
static void add_grids(const struct wide_step *step, struct dcp_catalog *all)
{
    struct place {
        struct dcp_region region;
        int rank;
        int64_t dims[2][DCP_MAX_NDIM];
    } *places = dcp_mem_calloc((size_t)step->world_size, sizeof *places);

    must(places != NULL);
    for (int r = 0; r < step->world_size; r++) {
        places[r].rank = r;
        places[r].region = wide_step_region(step, r, places[r].dims);
    }
    for (int t = 0; t < step->n_tensors; t++)
        must(!dcp_grid_find(all, &all->tensors[t], &places[0].region, &places[0].rank,
                            sizeof *places, (size_t)step->world_size,
                            &all->tensors[t].grid, NULL));
    free(places);
}

void wide_step_write(const struct wide_step *step, const char *folder)
{
    const struct dcp_target_options none = { 0 };
    struct dcp_catalog *all = wide_step_list(step);

    for (int r = 0; r < step->world_size; r++)
        write_rank(step, r, folder, all);
    add_grids(step, all);
    must(!dcp_catalog_sort(all, NULL));
    struct dcp_target target = { .format = dcp_format_of_steps(),
                                 .catalog = all,
                                 .options = &none };
    must(!dcp_target_finish(&target, NULL));
    const struct dcp_literal *manifest = &target.literals.items[target.literals.n - 1];
    write_bytes(folder, all->files[manifest->file].name, manifest->data,
                manifest->size_bytes);
    dcp_target_close(&target);
    dcp_catalog_free(all);
}
