#include "gather.h"
#include "base/mem.h"
#include "core/catalog/pack.h"

/* Parts of fingerprints, but for those that are zero: a rank has no piece of most. */
static void pack_parts(const struct dcp_finish *finish, struct dcp_buf *buf)
{
    size_t n_tensors = finish->catalog->n_tensors, last = 0;

    for (size_t t = 0; t < n_tensors; t++) {
        uint64_t part = dcp_write_parts(finish->write, t);
        if (!part)
            continue;
        dcp_buf_add_varint(buf, t - last);
        dcp_buf_add_le64(buf, part);
        last = t;
    }
    dcp_buf_add_varint(buf, n_tensors - last); /* behind the last one */
}

static int unpack_parts(struct dcp_cursor *in, struct dcp_finish *finish,
                        struct dcp_error *err)
{
    size_t n_tensors = finish->catalog->n_tensors, t = 0;

    for (;;) {
        uint64_t further = dcp_cursor_varint(in);
        if (in->bad || further > n_tensors - t)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "a message between ranks is corrupt");
        t += (size_t)further;
        if (t == n_tensors)
            return DCP_OK;
        finish->parts[t] ^= dcp_cursor_le64(in);
    }
}

static void pack(const struct dcp_finish *finish, const struct dcp_findings *findings,
                 int rank, struct dcp_buf *buf)
{
    dcp_buf_add_u8(buf, findings->diverged);
    dcp_buf_add_u8(buf, findings->learned);
    pack_parts(finish, buf);
    dcp_pack_files(finish->catalog, rank, buf);
    if (finish->has_consolidated)
        dcp_pack_pieces(finish->catalog, buf);
}

/* The files of another rank, and its pieces, which name them by their places there. */
static int unpack_files(struct dcp_cursor *in, struct dcp_finish *finish, int rank,
                        bool wants_pieces, struct dcp_error *err)
{
    struct dcp_catalog *catalog = finish->catalog;
    int first = (int)catalog->n_files;
    size_t n = catalog->n_pieces;

    DCP_TRY(dcp_unpack_files(in, catalog, err));
    if (!wants_pieces)
        return DCP_OK;
    DCP_TRY(dcp_unpack_pieces(in, catalog, rank, err));
    for (; n < catalog->n_pieces; n++) {
        struct dcp_piece *piece = &catalog->pieces[n];
        piece->file += first;
        if (piece->file < first || (size_t)piece->file >= catalog->n_files)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "a message between ranks is corrupt");
    }
    return DCP_OK;
}

static int unpack_all(struct dcp_finish *finish, const struct dcp_comm *comm,
                      const unsigned char *all, const size_t *sizes,
                      struct dcp_findings *findings, struct dcp_error *err)
{
    bool wants_pieces = finish->has_consolidated && comm->rank == 0;

    for (int r = 0; r < comm->world_size; r++) {
        struct dcp_cursor in = dcp_cursor_init(all, sizes[r]);
        findings->diverged |= dcp_cursor_u8(&in) != 0;
        findings->learned |= dcp_cursor_u8(&in) != 0;
        DCP_TRY(unpack_parts(&in, finish, err));
        if (r != comm->rank)
            DCP_TRY(unpack_files(&in, finish, r, wants_pieces, err));
        all += sizes[r];
    }
    return wants_pieces ? dcp_catalog_sort(finish->catalog, err) : DCP_OK;
}

int dcp_gather_written(struct dcp_comm *comm, struct dcp_finish *finish,
                       struct dcp_findings *findings, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf message = { 0 };
    DCP_CLEANUP_FREE size_t *sizes =
        dcp_mem_calloc((size_t)comm->world_size, sizeof *sizes);
    DCP_CLEANUP_FREE void *all = NULL;

    pack(finish, findings, comm->rank, &message);
    int rc = sizes ? dcp_buf_check(&message, err) : dcp_error_memory(err, "a save");
    rc = dcp_agree(comm, rc, err);
    if (!rc && finish->options.parity)
        rc =
            dcp_comm_allgatherv(comm, message.data, message.size_bytes, &all, sizes, err);
    else if (!rc)
        rc = dcp_comm_gatherv(comm, message.data, message.size_bytes, &all, sizes, err);
    if (!rc && all)
        rc = unpack_all(finish, comm, all, sizes, findings, err);
    return dcp_agree(comm, rc, err);
}
