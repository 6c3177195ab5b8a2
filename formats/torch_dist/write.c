/* write: a catalog to the data files of a distributed checkpoint.
 *
 * A rank's file is items one behind the other, each byte for byte what torch.save writes
 * for that part of a tensor. Between items lie zeros, so that tensors of a page or more
 * begin on a multiple of 4096 and the others of 64; PyTorch finds items by offset and
 * length alone. Objects stand first in the file of rank 0. */
#include "write.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/literals.h"
#include "formats/torch/torch.h"
#include "item.h"
#include "metadata.h"
#include <string.h>

enum { PAGE_BYTES = 4096, SMALL_ALIGN = 64 };

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the files of a checkpoint");
}

void dcp_write_part(const struct dcp_catalog *catalog, const struct dcp_piece *piece,
                    struct dcp_tensor *out)
{
    *out = catalog->tensors[piece->tensor];
    if (piece->region.kind == DCP_BOX)
        out->shape = piece->region.size;
    out->n_elems = dcp_piece_elems(catalog, piece);
}

static int check_pieces(const struct dcp_catalog *catalog, struct dcp_error *err)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        if (piece->region.kind != DCP_FLAT && piece->codec == DCP_CODEC_NONE &&
            piece->rank < catalog->world_size)
            continue;
        dcp_error_set(err, DCP_E_MISMATCH,
                      "a distributed checkpoint cannot hold: tensor '%s' in flat ranges "
                      "or compressed",
                      DCP_SHOWN(catalog->tensors[piece->tensor].name));
        dcp_error_hint(err, "add --layout dim0");
        return DCP_E_MISMATCH;
    }
    return DCP_OK;
}

int dcp_torch_dist_open(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_torch_dist_state *state = target->state = calloc(1, sizeof *state);

    if (!state)
        return no_memory(err);
    state->heads.arena = target->catalog->arena;
    return dcp_out_make(target->catalog, target->options, "a distributed checkpoint",
                        &state->out, err);
}

void dcp_torch_dist_close(struct dcp_target *target)
{
    struct dcp_torch_dist_state *state = target->state;

    if (!state)
        return;
    dcp_out_fini(&state->out);
    dcp_heads_fini(&state->heads);
    free(state);
}

/* -- assign -------------------------------------------------------------------------- */

/* The files of the ranks while they grow. */
struct files {
    struct dcp_target *target;
    struct dcp_torch_dist_state *state;
    int *file;    /* of each rank, -1: none yet */
    uint64_t *at; /* the end of its file so far */
};

static int open_file(struct files *f, int rank, struct dcp_error *err)
{
    char name[64];

    if (f->file[rank] >= 0)
        return DCP_OK;
    dcp_torch_dist_file_name(name, rank);
    return dcp_catalog_add_file(f->target->catalog,
                                &(struct dcp_file){ .name = name, .rank = rank },
                                &f->file[rank], err);
}

static int add(struct files *f, int rank, const void *data, size_t n,
               struct dcp_error *err)
{
    uint64_t at = f->at[rank];

    f->at[rank] += n;
    return n ? dcp_target_literal(f->target, f->file[rank], at, data, n, err) : DCP_OK;
}

static int align(struct files *f, int rank, uint64_t n, struct dcp_error *err)
{
    uint64_t at = f->at[rank];

    f->at[rank] += n;
    return dcp_literals_zeros(f->target, f->file[rank], at, n, err);
}

static int place(struct files *f, struct dcp_piece *piece, struct dcp_error *err)
{
    const struct dcp_torch_dist_head *head;
    struct dcp_tensor part;
    int rank = piece->rank;

    dcp_write_part(f->target->catalog, piece, &part);
    DCP_TRY(dcp_heads_get(&f->state->heads, f->state->out.keys.style, &part, &head, err));
    DCP_TRY(open_file(f, rank, err));
    uint64_t bytes = dcp_tensor_bytes(&part);
    uint64_t unit = bytes >= PAGE_BYTES ? PAGE_BYTES : SMALL_ALIGN;
    uint64_t data_at = f->at[rank] + head->n;
    int rc = align(f, rank, (unit - data_at % unit) % unit, err);
    if (!rc)
        rc = add(f, rank, head->data, head->n, err);
    piece->file = f->file[rank];
    piece->offset = f->at[rank];
    piece->stored_size = bytes;
    f->at[rank] += head->item_bytes - head->n;
    return rc;
}

static int place_items(struct files *f, struct dcp_error *err)
{
    const struct dcp_out *out = &f->state->out;
    int rc = out->n_items ? open_file(f, 0, err) : DCP_OK;

    for (size_t i = 0; i < out->n_items && !rc; i++)
        rc = add(f, 0, out->items[i].data, out->items[i].size_bytes, err);
    return rc;
}

int dcp_torch_dist_assign(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    size_t world_size = (size_t)catalog->world_size;
    DCP_CLEANUP_FREE int *file = dcp_mem_calloc(world_size, sizeof *file);
    DCP_CLEANUP_FREE uint64_t *at = dcp_mem_calloc(world_size, sizeof *at);
    struct files f = { target, target->state, file, at };

    if (!file || !at)
        return no_memory(err);
    for (size_t r = 0; r < world_size; r++)
        file[r] = -1;
    int rc = check_pieces(catalog, err);
    if (!rc)
        rc = place_items(&f, err);
    for (size_t p = 0; p < catalog->n_pieces && !rc; p++)
        rc = place(&f, &catalog->pieces[p], err);
    for (size_t r = 0; r < world_size && !rc; r++)
        if (file[r] >= 0)
            catalog->files[file[r]].size_bytes = at[r];
    for (size_t o = 0; o < catalog->n_objects; o++) /* other words for groups hold them */
        catalog->objects[o].held =
            strcmp(catalog->objects[o].name, DCP_TORCH_TREE) != 0 ||
            !dcp_out_replaced(&f.state->out, DCP_TORCH_TREE);
    return rc ? rc : dcp_common_write(target, err);
}

/* -- finalize ------------------------------------------------------------------------ */

/* What follows the bytes of a piece in its archive. */
static int add_tail(struct dcp_target *target, const struct dcp_piece *piece,
                    struct dcp_error *err)
{
    const struct dcp_torch_dist_state *state = target->state;
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    struct dcp_tensor part;

    dcp_write_part(target->catalog, piece, &part);
    DCP_TRY(dcp_torch_item_tail(state->out.keys.style, &part, piece->crc32, &buf, err));
    return dcp_literals_take(target, piece->file, piece->offset + piece->stored_size,
                             &buf, err);
}

int dcp_torch_dist_finalize(struct dcp_target *target, int rank, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = target->catalog;

    for (size_t p = 0; p < catalog->n_pieces; p++)
        if (catalog->pieces[p].rank == rank)
            DCP_TRY(add_tail(target, &catalog->pieces[p], err));
    return DCP_OK;
}
