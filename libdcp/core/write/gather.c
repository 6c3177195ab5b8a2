#include "gather.h"
#include "base/mem.h"
#include "core/catalog/pack.h"
#include "core/collective/gather.h"
#include <string.h>

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

static void pack_text(const char *text, struct dcp_buf *buf)
{
    size_t n = strlen(text);

    dcp_buf_add_varint(buf, n);
    dcp_buf_add(buf, text, n);
}

/* What became deltas of this rank's files, and why others did not. */
static void pack_coded(const struct dcp_finish *finish, struct dcp_buf *buf)
{
    const struct dcp_catalog *catalog = finish->catalog;
    const struct dcp_error *why;
    uint64_t n = 0;

    for (size_t f = 0; f < catalog->n_files; f++)
        n += dcp_write_coded(finish->write, f, &why) != NULL;
    dcp_buf_add_varint(buf, n);
    for (size_t f = 0; f < catalog->n_files; f++) {
        const struct dcp_coded *coded = dcp_write_coded(finish->write, f, &why);
        if (!coded)
            continue;
        pack_text(catalog->files[f].name, buf);
        dcp_buf_add_le64(buf, catalog->files[f].size_bytes);
        dcp_buf_add_le64(buf, coded->size_bytes);
        dcp_buf_add_le64(buf, coded->table_crc);
        dcp_buf_add_le64(buf, coded->base_bytes);
    }
    dcp_write_coded(finish->write, 0, &why);
    pack_text(why->code ? why->message : "", buf);
}

static int unpack_coded(struct dcp_cursor *in, struct dcp_finish *finish,
                        struct dcp_error *err)
{
    uint64_t n = dcp_cursor_varint(in);

    for (uint64_t i = 0; i < n && !in->bad; i++) {
        uint64_t length = dcp_cursor_varint(in);
        const char *name = dcp_cursor_take(in, (size_t)length);
        struct dcp_coded_file file = { .size_bytes = dcp_cursor_le64(in) };
        file.coded.size_bytes = dcp_cursor_le64(in);
        file.coded.table_crc = dcp_cursor_le64(in);
        file.coded.base_bytes = dcp_cursor_le64(in);
        if (in->bad)
            break;
        struct dcp_coded_file *grown = dcp_mem_grow(finish->coded, &finish->cap_coded,
                                                    finish->n_coded + 1, sizeof *grown);
        char *copy = dcp_catalog_alloc(finish->catalog, (size_t)length + 1, 1);
        if (!grown || !copy)
            return dcp_error_memory(err, "a save");
        memcpy(copy, name, (size_t)length);
        file.name = copy;
        finish->coded = grown;
        grown[finish->n_coded++] = file;
    }
    uint64_t length = dcp_cursor_varint(in);
    const char *why = dcp_cursor_take(in, (size_t)length);
    if (in->bad)
        return dcp_error_set(err, DCP_E_CORRUPT, "a message between ranks is corrupt");
    if (length && !finish->unfit.code)
        dcp_error_set(&finish->unfit, DCP_E_MISMATCH, "%.*s",
                      (int)(length < sizeof finish->unfit.message
                                ? length
                                : sizeof finish->unfit.message),
                      why);
    return DCP_OK;
}

static void pack(const struct dcp_finish *finish, const struct dcp_findings *findings,
                 int rank, struct dcp_buf *buf)
{
    dcp_buf_add_u8(buf, findings->diverged);
    dcp_buf_add_u8(buf, findings->learned);
    pack_parts(finish, buf);
    pack_coded(finish, buf);
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
        DCP_TRY(unpack_coded(&in, finish, err));
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
    DCP_CLEANUP_GATHERED struct dcp_gathered told = { 0 };
    bool to_all = finish->options.parity > 0;

    pack(finish, findings, comm->rank, &message);
    int rc = dcp_gather_buf(comm, to_all, &message, DCP_OK, &told, err);
    if (!rc && told.all)
        rc = unpack_all(finish, comm, told.all, told.sizes, findings, err);
    return dcp_agree(comm, rc, err);
}
