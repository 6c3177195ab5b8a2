/* ranks: the model files of all ranks, at stage 3: that they are of one save, and the
 * weights that are not trained, of which each has a part, padded to equal lengths. */
#include "base/mem.h"
#include "ours.h"
#include <stdio.h>
#include <string.h>

/* -- frozen weights ---------------------------------------------------------------- */

struct frozen {
    struct dcp_ds_reader *reader;
    struct dcp_ds_group group; /* the frozen weights, as if they were one */
    int *tensors;              /* of each, -1: it is not in the catalog */
};

/* The part of a weight in a rank's file; its place there, its elements. */
static int take_part(struct frozen *f, struct dcp_ds_file *file, int rank, size_t i,
                     const struct dcp_pickle_node *node, struct dcp_error *err)
{
    const struct dcp_ds_param *param = &f->group.params[i];
    const char *shown = dcp_ds_shown(f->reader->arena, param->name);
    struct dcp_catalog *catalog = f->reader->catalog;
    struct dcp_torch_view view;
    struct dcp_ds_part part;
    bool found = false;

    if (node)
        DCP_TRY(dcp_torch_view(&file->torch, node, param->name, &found, &view, err));
    if (!found || !view.dense || !view.has_data)
        return dcp_ds_corrupt(file, err, "has no part of the frozen weight '%s'", shown);
    if (f->tensors[i] < 0) {
        const struct dcp_tensor tensor = { .name = param->name,
                                           .role = DCP_ROLE_MODEL,
                                           .dtype = view.dtype,
                                           .ndim = param->ndim,
                                           .shape = param->shape };
        DCP_TRY(dcp_catalog_add_tensor(catalog, &tensor, &f->tensors[i], err));
    }
    size_t elem = dcp_dtype_size(view.dtype);
    const struct dcp_tensor *tensor = &catalog->tensors[f->tensors[i]];
    if (!dcp_ds_part_of(&f->group, param, 3, f->reader->world_size, rank, &part))
        part.begin = part.end = 0;
    uint64_t size = (uint64_t)(part.end - part.begin) * elem;
    if (view.dtype != tensor->dtype || size > view.stored_size)
        return dcp_ds_corrupt(file, err,
                              "has %llu bytes of the frozen weight '%s', %llu are "
                              "expected",
                              (unsigned long long)view.stored_size, shown,
                              (unsigned long long)size);
    if (!size && (rank || param->n_elems))
        return DCP_OK;
    const struct dcp_piece piece = {
        .tensor = f->tensors[i],
        .rank = rank,
        .region = { .kind = DCP_FLAT, .begin = part.begin, .end = part.end },
        .file = file->index,
        .offset = view.offset,
        .stored_size = size,
    };
    return dcp_catalog_add_piece(catalog, &piece, err);
}

static int take_rank(struct frozen *f, struct dcp_ds_file *file, int rank,
                     struct dcp_error *err)
{
    const struct dcp_pickle_node *parts =
        dcp_pickle_get(file->torch.tree, "frozen_param_fragments");

    if (!dcp_pickle_pairs(parts))
        return dcp_ds_corrupt(file, err, "has no 'frozen_param_fragments'");
    for (size_t i = 0; i < f->group.n_params; i++)
        DCP_TRY(take_part(f, file, rank, i,
                          dcp_pickle_get(parts, f->group.params[i].name), err));
    return DCP_OK;
}

/* The frozen weights that the file of rank 0 names, and its part of them. */
static int begin_frozen(struct frozen *f, struct dcp_ds_file *file, struct dcp_error *err)
{
    const struct dcp_pickle_node *shapes =
        dcp_pickle_get(file->torch.tree, "frozen_param_shapes");

    if (!dcp_pickle_pairs(shapes) || !dcp_pickle_pairs(shapes)->n)
        return DCP_OK;
    DCP_TRY(dcp_ds_read_group(f->reader, file, shapes, &f->group, err));
    DCP_TRY(dcp_ds_cut(&f->group, 3, f->reader->world_size, err));
    f->tensors = dcp_arena_alloc(f->reader->arena, f->group.n_params, sizeof *f->tensors);
    if (!f->tensors)
        return dcp_error_memory(err, "frozen weights");
    memset(f->tensors, -1, f->group.n_params * sizeof *f->tensors);
    return take_rank(f, file, 0, err);
}

/* -- one save ---------------------------------------------------------------------- */

/* What every rank's file says alike. */
static const char *const alike[] = { "global_steps", "dp_world_size" };

/* Holds what the files say of a key against each other: the first that differs from most
 * is named, and one of the others. */
static int compare(const struct dcp_ds_reader *reader, const char *key,
                   const int64_t *values, struct dcp_error *err)
{
    const struct dcp_ds_folder *folder = &reader->folder;
    int most = 0, votes = 0;

    for (int r = 0; r < folder->n_models; r++) {
        if (!folder->models[r])
            continue;
        most = votes ? most : r;
        votes += values[r] == values[most] ? 1 : -1;
    }
    for (int r = 0; r < folder->n_models; r++)
        if (folder->models[r] && values[r] != values[most]) {
            dcp_error_set(err, DCP_E_CORRUPT,
                          "'%s' has %lld as '%s', and '%s' has %lld: they are of two "
                          "saves",
                          dcp_ds_shown(reader->arena, folder->models[r]),
                          (long long)values[r], key,
                          dcp_ds_shown(reader->arena, folder->models[most]),
                          (long long)values[most]);
            dcp_error_hint(err, "every file must be of the same save");
            return DCP_E_CORRUPT;
        }
    return DCP_OK;
}

static int take_values(struct dcp_ds_file *file, int64_t *const *values, int rank,
                       struct dcp_error *err)
{
    for (size_t k = 0; k < DCP_ARRAY_LEN(alike); k++)
        if (!dcp_ds_get_int(file->torch.tree, alike[k], &values[k][rank]))
            return dcp_ds_corrupt(file, err, "has no valid '%s'", alike[k]);
    return DCP_OK;
}

static int read_rank(struct frozen *f, int rank, int64_t *const *values,
                     struct dcp_error *err)
{
    const struct dcp_ds_folder *folder = &f->reader->folder;
    DCP_CLEANUP_DS struct dcp_ds_file file = { 0 };

    if (rank >= folder->n_models || !folder->models[rank])
        return !f->tensors
                   ? DCP_OK
                   : dcp_error_set(err, DCP_E_CORRUPT,
                                   "the model file of rank %d, which has a part of each "
                                   "frozen weight, is missing",
                                   rank);
    DCP_TRY(dcp_ds_open(f->reader, folder->models[rank], rank, &file, err));
    DCP_TRY(take_values(&file, values, rank, err));
    DCP_TRY(dcp_ds_check_model_file(f->reader, &file, rank, err));
    if (f->tensors && rank < f->reader->world_size)
        return take_rank(f, &file, rank, err);
    return DCP_OK;
}

int dcp_ds_read_ranks(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                      struct dcp_error *err)
{
    struct frozen f = { .reader = reader, .group.first = reader->n_params };
    int64_t *values[DCP_ARRAY_LEN(alike)];
    int n = reader->folder.n_models;

    for (size_t k = 0; k < DCP_ARRAY_LEN(alike); k++) {
        values[k] = dcp_arena_alloc(reader->arena, (size_t)n, sizeof *values[k]);
        if (!values[k])
            return dcp_error_memory(err, "the files of a checkpoint");
    }
    DCP_TRY(take_values(file, values, 0, err));
    DCP_TRY(begin_frozen(&f, file, err));
    n = f.tensors && n < reader->world_size ? reader->world_size : n;
    for (int rank = 1; rank < n; rank++)
        DCP_TRY(read_rank(&f, rank, values, err));
    for (size_t k = 0; k < DCP_ARRAY_LEN(alike); k++)
        DCP_TRY(compare(reader, alike[k], values[k], err));
    return DCP_OK;
}

/* -- the number of the tag --------------------------------------------------------- */

static bool tag_says(const struct dcp_ds_reader *reader, int64_t step)
{
    char usual[48];

    snprintf(usual, sizeof usual, "global_step%lld", (long long)step);
    return !strcmp(reader->folder.tag, usual);
}

int dcp_ds_check_tag(const struct dcp_ds_reader *reader, struct dcp_error *err)
{
    int64_t skipped = reader->skipped_steps > 0 ? reader->skipped_steps : 0;
    int64_t updates = reader->updates;

    if (updates < 0 || updates > INT64_MAX - skipped ||
        updates + skipped == reader->global_steps ||
        tag_says(reader, reader->global_steps) ||
        (!tag_says(reader, updates) && !tag_says(reader, updates + skipped)))
        return DCP_OK;
    dcp_error_set(
        err, DCP_E_CORRUPT,
        "'%s' is of step %lld, and the optimizer beside it of step %lld, as the "
        "folder says: they are of two saves",
        dcp_ds_shown(reader->arena, reader->folder.model),
        (long long)reader->global_steps, (long long)updates);
    dcp_error_hint(err, "every file must be of the same save");
    return DCP_E_CORRUPT;
}
