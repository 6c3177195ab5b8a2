/* write: a catalog to the data files of a distributed checkpoint.
 *
 * A rank's file is items one behind the other, each byte for byte what torch.save writes
 * for that part of a tensor. Between items lie zeros, so that tensors of a page or more
 * begin on a multiple of 4096 and the others of 64; PyTorch finds items by offset and
 * length alone. Objects stand first in the file of rank 0. */
#include "write.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/state_dict/out.h"
#include "heads.h"
#include "item.h"
#include "metadata.h"
#include <string.h>

enum { PAGE_BYTES = 4096, SMALL_ALIGN = 64 };

static const unsigned char zeros[PAGE_BYTES];

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the layout of a checkpoint");
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
    char shown[160];

    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        if (piece->region.kind != DCP_FLAT && piece->codec == DCP_CODEC_NONE &&
            piece->rank < catalog->world)
            continue;
        dcp_error_set(
            err, DCP_E_MISMATCH,
            "a distributed checkpoint cannot hold: tensor '%s' in flat ranges "
            "or compressed",
            dcp_str_escape(shown, sizeof shown, catalog->tensors[piece->tensor].name));
        dcp_error_hint(err, "add --layout dim0");
        return DCP_E_MISMATCH;
    }
    return DCP_OK;
}

/* Where the next item of each rank begins. */
struct layout {
    struct dcp_catalog *catalog;
    struct dcp_literals *literals;
    struct dcp_heads heads;
    enum dcp_torch_style style;
    int *file;    /* of each rank, -1: none yet */
    uint64_t *at; /* the end of its file so far */
};

static int open_file(struct layout *l, int rank, struct dcp_error *err)
{
    char name[64];

    if (l->file[rank] >= 0)
        return DCP_OK;
    dcp_dcp_file_name(name, rank);
    return dcp_catalog_add_file(l->catalog,
                                &(struct dcp_file){ .name = name, .rank = rank },
                                &l->file[rank], err);
}

static int add(struct layout *l, int rank, const void *data, size_t n,
               struct dcp_error *err)
{
    uint64_t at = l->at[rank];

    l->at[rank] += n;
    return n ? dcp_literals_add(l->literals, l->catalog, l->file[rank], at, data, n, err)
             : DCP_OK;
}

static int place(struct layout *l, struct dcp_piece *piece, struct dcp_error *err)
{
    const struct dcp_head *head;
    struct dcp_tensor part;
    int rank = piece->rank;

    dcp_write_part(l->catalog, piece, &part);
    int rc = dcp_heads_get(&l->heads, l->style, &part, &head, err);
    if (!rc)
        rc = open_file(l, rank, err);
    if (rc)
        return rc;
    uint64_t bytes = dcp_tensor_bytes(&part);
    uint64_t align = bytes >= PAGE_BYTES ? PAGE_BYTES : SMALL_ALIGN;
    uint64_t data_at = l->at[rank] + head->n;
    rc = add(l, rank, zeros, (size_t)((align - data_at % align) % align), err);
    if (!rc)
        rc = add(l, rank, head->data, head->n, err);
    piece->file = l->file[rank];
    piece->offset = l->at[rank];
    piece->stored_size = bytes;
    l->at[rank] += head->item_bytes - head->n;
    return rc;
}

static int place_items(struct layout *l, const struct dcp_target_options *options,
                       struct dcp_error *err)
{
    DCP_CLEANUP_OUT struct dcp_out out = { 0 };
    int rc = dcp_out_make(l->catalog, options, &out, err);

    l->style = out.keys.style;
    if (!rc && out.n_items)
        rc = open_file(l, 0, err);
    for (size_t i = 0; i < out.n_items && !rc; i++)
        rc = add(l, 0, out.items[i].data, out.items[i].size_bytes, err);
    return rc;
}

int dcp_dcp_layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                   struct dcp_literals *literals, struct dcp_error *err)
{
    size_t world = (size_t)catalog->world;
    DCP_CLEANUP_FREE int *file = dcp_mem_calloc(world, sizeof *file);
    DCP_CLEANUP_FREE uint64_t *at = dcp_mem_calloc(world, sizeof *at);
    struct layout l = { .catalog = catalog,
                        .literals = literals,
                        .heads = { .arena = catalog->arena },
                        .file = file,
                        .at = at };

    if (!file || !at)
        return no_memory(err);
    for (size_t r = 0; r < world; r++)
        file[r] = -1;
    int rc = dcp_catalog_sort(catalog, err);
    if (!rc)
        rc = check_pieces(catalog, err);
    if (!rc)
        rc = place_items(&l, options, err);
    for (size_t p = 0; p < catalog->n_pieces && !rc; p++)
        rc = place(&l, &catalog->pieces[p], err);
    for (size_t r = 0; r < world && !rc; r++)
        if (file[r] >= 0)
            catalog->files[file[r]].size_bytes = at[r];
    if (!rc)
        rc = dcp_common_write(catalog, literals, err);
    dcp_catalog_hold_object(catalog, NULL);
    dcp_heads_fini(&l.heads);
    return rc;
}

/* -- seal ---------------------------------------------------------------------------- */

/* What follows the bytes of a piece in its archive. */
static int add_tail(struct dcp_catalog *catalog, const struct dcp_piece *piece,
                    enum dcp_torch_style style, struct dcp_literals *literals,
                    struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    struct dcp_tensor part;

    dcp_write_part(catalog, piece, &part);
    int rc = dcp_torch_item_tail(style, &part, piece->crc32, &buf, err);
    if (rc)
        return rc;
    void *data = dcp_catalog_alloc(catalog, buf.size_bytes, 1);
    if (!data)
        return no_memory(err);
    memcpy(data, buf.data, buf.size_bytes);
    return dcp_literals_add(literals, catalog, piece->file,
                            piece->offset + piece->stored_size, data, buf.size_bytes,
                            err);
}

int dcp_dcp_seal(struct dcp_catalog *catalog, int rank,
                 const struct dcp_target_options *options, struct dcp_literals *literals,
                 struct dcp_error *err)
{
    DCP_CLEANUP_KEYS struct dcp_keys keys = { 0 };

    if (rank == DCP_SEAL_GLOBAL)
        return dcp_write_meta(catalog, options, literals, err);
    int rc = dcp_keys_load(&keys, catalog, err);
    for (size_t p = 0; p < catalog->n_pieces && !rc; p++)
        if (catalog->pieces[p].rank == rank)
            rc = add_tail(catalog, &catalog->pieces[p], keys.style, literals, err);
    return rc;
}
