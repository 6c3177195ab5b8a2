/* list: the tensors, pieces and objects of a checkpoint. */
#include "checkpoint.h"

int32_t dcp_flat_tensors_list(struct dcp_flat_checkpoint *checkpoint,
                              struct dcp_flat_tensors *out, struct dcp_flat_error *err)
{
    struct dcp_error why = { 0 };
    int rc = DCP_OK;

    pthread_mutex_lock(&checkpoint->lock);
    if (!checkpoint->tables)
        rc = dcp_flat_tables_new(checkpoint->catalog, &checkpoint->tables, &why);
    pthread_mutex_unlock(&checkpoint->lock);
    if (!rc)
        dcp_flat_give(out, &checkpoint->tables->told, sizeof checkpoint->tables->told);
    return dcp_flat_fail(err, rc, &why);
}

int32_t dcp_flat_piece_get(struct dcp_flat_checkpoint *checkpoint, uint64_t tensor,
                           uint64_t i, struct dcp_flat_piece *out)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;

    if (tensor >= catalog->n_tensors || i >= catalog->tensors[tensor].n_pieces)
        return DCP_E_NOT_FOUND;
    const struct dcp_tensor *of = &catalog->tensors[tensor];
    const struct dcp_piece *piece = &catalog->pieces[of->first_piece + i];
    struct dcp_flat_piece told = {
        .rank = piece->rank,
        .kind = (int32_t)piece->region.kind,
        .begin = piece->region.begin,
        .end = piece->region.end,
        .file = piece->file >= 0 ? catalog->files[piece->file].name : "",
        .file_offset = piece->offset,
        .stored_bytes = piece->stored_size,
        .codec = dcp_codec_name(piece->codec),
    };
    for (int d = 0; piece->region.kind == DCP_BOX && d < of->ndim; d++) {
        told.offset[d] = piece->region.offset[d];
        told.size[d] = piece->region.size[d];
    }
    dcp_flat_give(out, &told, sizeof told);
    return DCP_OK;
}

int32_t dcp_flat_object_get(struct dcp_flat_checkpoint *checkpoint, uint64_t i,
                            struct dcp_flat_object *out)
{
    return dcp_flat_tell_object(checkpoint->catalog, i, out);
}
