#include "share.h"
#include "base/mem.h"
#include <dcp/store.h>
#include <stdatomic.h>

#define ADDED UINT32_MAX /* in place of a file's number: name and writer follow */

enum { HAS_SRC_PARTS = 1, HAS_OVERFLOWS = 2, HAS_PROOF = 4 };

static int bad(const struct dcp_share *share, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "what part %d tells is not what was planned for it",
                         share->part + 1);
}

static bool is_mine(const struct dcp_share *share, int writer)
{
    return writer >= 0 && writer < share->of->n_writers &&
           share->of->part_of[writer] == share->part;
}

static uint8_t flags_of(const struct dcp_share *share)
{
    return (uint8_t)((share->src_parts ? HAS_SRC_PARTS : 0) |
                     (share->overflows ? HAS_OVERFLOWS : 0) |
                     (share->proof ? HAS_PROOF : 0));
}

static void pack_files(const struct dcp_share *share, struct dcp_buf *buf)
{
    const struct dcp_catalog *target = share->target;
    uint64_t n = 0;

    for (size_t f = 0; f < target->n_files; f++)
        n += is_mine(share, target->files[f].rank);
    dcp_buf_add_le64(buf, n);
    for (size_t f = 0; f < target->n_files; f++) {
        const struct dcp_file *file = &target->files[f];
        size_t length = strlen(file->name) + 1;
        if (!is_mine(share, file->rank))
            continue;
        dcp_buf_add_le32(buf, f < share->of->n_files ? (uint32_t)f : ADDED);
        if (f >= share->of->n_files) {
            dcp_buf_add_le32(buf, (uint32_t)file->rank);
            dcp_buf_add_le32(buf, (uint32_t)length);
            dcp_buf_add(buf, file->name, length);
        }
        dcp_buf_add_le64(buf, file->size_bytes);
        dcp_buf_add_le64(buf, file->crc);
    }
}

static bool piece_is_mine(const struct dcp_share *share, size_t p)
{
    const struct dcp_catalog *target = share->target;

    return is_mine(share, target->files[target->pieces[p].file].rank);
}

static void pack_pieces(const struct dcp_share *share, struct dcp_buf *buf)
{
    const struct dcp_catalog *target = share->target;
    uint64_t n = 0;

    for (size_t p = 0; p < target->n_pieces; p++)
        n += piece_is_mine(share, p);
    dcp_buf_add_le64(buf, n);
    for (size_t p = 0; p < target->n_pieces; p++) {
        const struct dcp_piece *piece = &target->pieces[p];
        if (!piece_is_mine(share, p))
            continue;
        dcp_buf_add_le64(buf, p);
        dcp_buf_add_le64(buf, piece->offset);
        dcp_buf_add_le64(buf, piece->stored_size);
        dcp_buf_add_le64(buf, piece->crc);
    }
}

void dcp_share_pack(const struct dcp_share *share, struct dcp_buf *buf)
{
    dcp_buf_add_u8(buf, flags_of(share));
    dcp_buf_add_le64(buf, share->shared_bytes ? *share->shared_bytes : 0);
    for (size_t t = 0; t < share->target->n_tensors; t++) {
        dcp_buf_add_le64(buf, share->parts[t]);
        if (share->src_parts)
            dcp_buf_add_le64(buf, share->src_parts[t]);
        if (share->overflows)
            dcp_buf_add_le64(buf, share->overflows[t]);
    }
    pack_files(share, buf);
    pack_pieces(share, buf);
    if (share->proof)
        dcp_proof_pack(share->proof, buf);
}

/* A file that was not known before its pieces were written. */
static int unpack_added(const struct dcp_share *share, struct dcp_cursor *in,
                        struct dcp_file *out, struct dcp_error *err)
{
    int rank = (int)dcp_cursor_le32(in);
    uint32_t n = dcp_cursor_le32(in);
    const char *name = dcp_cursor_take(in, n);

    if (!name || !n || name[n - 1] != '\0' || memchr(name, 0, n - 1) ||
        !dcp_store_name_ok(name) || !is_mine(share, rank))
        return bad(share, err);
    *out = (struct dcp_file){ .name = name, .rank = rank };
    return DCP_OK;
}

static int unpack_files(const struct dcp_share *share, struct dcp_cursor *in,
                        struct dcp_error *err)
{
    struct dcp_catalog *target = share->target;
    uint64_t n = dcp_cursor_le64(in);

    for (uint64_t i = 0; i < n; i++) {
        uint32_t f = dcp_cursor_le32(in);
        struct dcp_file added = { 0 }, *file = &added;
        if (in->bad)
            return bad(share, err);
        if (f == ADDED)
            DCP_TRY(unpack_added(share, in, &added, err));
        else if (f >= share->of->n_files || !is_mine(share, target->files[f].rank) ||
                 target->files[f].has_crc)
            return bad(share, err);
        else
            file = &target->files[f];
        file->size_bytes = dcp_cursor_le64(in);
        file->crc = dcp_cursor_le64(in);
        file->has_crc = true;
        if (in->bad)
            return bad(share, err);
        if (f == ADDED)
            DCP_TRY(dcp_catalog_add_file(target, &added, NULL, err));
    }
    return in->bad ? bad(share, err) : DCP_OK;
}

/* Without a codec a piece lies where it was planned; with one it may have shrunk. */
static bool fits(const struct dcp_catalog *target, const struct dcp_piece *piece,
                 uint64_t offset, uint64_t stored)
{
    uint64_t size = target->files[piece->file].size_bytes;
    bool planned = piece->codec == DCP_CODEC_NONE
                       ? offset == piece->offset && stored == piece->stored_size
                       : stored <= piece->stored_size;

    return planned && offset <= size && stored <= size - offset;
}

static int unpack_pieces(const struct dcp_share *share, struct dcp_cursor *in,
                         struct dcp_error *err)
{
    struct dcp_catalog *target = share->target;
    uint64_t n = dcp_cursor_le64(in);

    for (uint64_t i = 0; i < n; i++) {
        uint64_t p = dcp_cursor_le64(in), offset = dcp_cursor_le64(in);
        uint64_t stored = dcp_cursor_le64(in), crc = dcp_cursor_le64(in);
        if (in->bad || p >= target->n_pieces || !piece_is_mine(share, (size_t)p))
            return bad(share, err);
        struct dcp_piece *piece = &target->pieces[p];
        if (piece->has_crc || !fits(target, piece, offset, stored))
            return bad(share, err);
        piece->offset = offset;
        piece->stored_size = stored;
        piece->crc = crc;
        piece->has_crc = true;
    }
    return in->bad ? bad(share, err) : DCP_OK;
}

int dcp_share_unpack(const struct dcp_share *share, struct dcp_cursor *in,
                     struct dcp_error *err)
{
    if (dcp_cursor_u8(in) != flags_of(share))
        return bad(share, err);
    uint64_t shared = dcp_cursor_le64(in);
    if (share->shared_bytes)
        *share->shared_bytes += shared;
    for (size_t t = 0; t < share->target->n_tensors && !in->bad; t++) {
        share->parts[t] ^= dcp_cursor_le64(in);
        if (share->src_parts)
            atomic_fetch_xor(&share->src_parts[t], dcp_cursor_le64(in));
        if (share->overflows)
            atomic_fetch_add(&share->overflows[t], dcp_cursor_le64(in));
    }
    DCP_TRY(unpack_files(share, in, err));
    DCP_TRY(unpack_pieces(share, in, err));
    if (share->proof)
        DCP_TRY(dcp_proof_unpack(share->proof, in, err));
    return in->bad || dcp_cursor_left(in) ? bad(share, err) : DCP_OK;
}

bool dcp_shares_complete(const struct dcp_catalog *target)
{
    bool all = true;

    for (size_t f = 0; f < target->n_files && all; f++)
        all = target->files[f].has_crc;
    for (size_t p = 0; p < target->n_pieces && all; p++)
        all = target->pieces[p].has_crc;
    return all;
}
