/* frozen: weights that are not trained, at stage 3: every rank's model file has
 * a part of each, padded to equal lengths. */
#include "base/mem.h"
#include "read.h"
#include <string.h>

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

    int rc = node ? dcp_torch_view(&file->torch, node, param->name, &found, &view, err)
                  : DCP_OK;
    if (rc)
        return rc;
    if (!found || !view.dense || !view.has_data)
        return dcp_ds_damaged(file, err, "has no part of the frozen weight '%s'", shown);
    if (f->tensors[i] < 0) {
        const struct dcp_tensor tensor = { .name = param->name,
                                           .role = DCP_ROLE_MODEL,
                                           .dtype = view.dtype,
                                           .ndim = param->ndim,
                                           .shape = param->shape };
        rc = dcp_catalog_add_tensor(catalog, &tensor, &f->tensors[i], err);
        if (rc)
            return rc;
    }
    size_t elem = dcp_dtype_size(view.dtype);
    const struct dcp_tensor *tensor = &catalog->tensors[f->tensors[i]];
    if (!dcp_ds_part_of(&f->group, param, 3, f->reader->world, rank, &part))
        part.begin = part.end = 0;
    uint64_t size = (uint64_t)(part.end - part.begin) * elem;
    if (view.dtype != tensor->dtype || size > view.stored_size)
        return dcp_ds_damaged(file, err,
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
    int rc = DCP_OK;

    if (!dcp_pickle_pairs(parts))
        return dcp_ds_damaged(file, err, "has no 'frozen_param_fragments'");
    for (size_t i = 0; i < f->group.n_params && !rc; i++)
        rc = take_part(f, file, rank, i, dcp_pickle_get(parts, f->group.params[i].name),
                       err);
    return rc;
}

int dcp_ds_read_frozen(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                       struct dcp_error *err)
{
    const struct dcp_pickle_node *shapes =
        dcp_pickle_get(file->torch.tree, "frozen_param_shapes");
    struct frozen f = { .reader = reader, .group.first = reader->n_params };

    if (!dcp_pickle_pairs(shapes) || !dcp_pickle_pairs(shapes)->n)
        return DCP_OK;
    int rc = dcp_ds_read_group(reader, file, shapes, &f.group, err);
    if (!rc)
        rc = dcp_ds_cut(&f.group, 3, reader->world, err);
    if (rc)
        return rc;
    f.tensors = dcp_arena_alloc(reader->arena, f.group.n_params, sizeof *f.tensors);
    if (!f.tensors)
        return dcp_error_memory(err, "frozen weights");
    memset(f.tensors, -1, f.group.n_params * sizeof *f.tensors);
    rc = take_rank(&f, file, 0, err);
    for (int rank = 1; rank < reader->world && !rc; rank++) {
        DCP_CLEANUP_DS struct dcp_ds_file other = { 0 };
        if (rank >= reader->folder.n_models || !reader->folder.models[rank])
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "the model file of rank %d, which has a part of each "
                                 "frozen weight, is missing",
                                 rank);
        rc = dcp_ds_open(reader, reader->folder.models[rank], rank, &other, err);
        if (!rc)
            rc = take_rank(&f, &other, rank, err);
    }
    return rc;
}
