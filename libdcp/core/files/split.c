/* For the name of one parameter, which zstd may yet change: with another version blocks
 * may become larger or slower to code, and are frames of zstd all the same. */
#define ZSTD_STATIC_LINKING_ONLY
#include "split.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "trial.h"
#include <dcp/tensor.h>
#include <zstd_errors.h>

#define TURNED 1      /* the first byte of a block; else 0 */
#define PLANE_ENTRY 4 /* bytes of a plane's stored size */
#define MATCHES_LEVEL 1
#define TABLE_LOG 15 /* bytes of a plane that share a Huffman code, as a power of two */
/* Of literals. Older versions of zstd have another name for it. */
#define HUFFMAN_ALWAYS 1

_Static_assert(DCP_TRIAL_BYTES <= DCP_BLOCK_BYTES, "a trial fits in a block's scratch");

static size_t head_bytes(size_t width)
{
    return 1 + PLANE_ENTRY * width;
}

/* The lowest level hardly looks for matches; that literals are coded, which it would
 * leave out, is asked for. A zstd that cannot be asked codes by its level 1, and is
 * slower. What a frame codes at once is no larger than its window. */
ZSTD_CCtx *dcp_split_encoder_new(void)
{
    ZSTD_CCtx *encoder = ZSTD_createCCtx();

    if (!encoder)
        return NULL;
    size_t rc =
        ZSTD_CCtx_setParameter(encoder, ZSTD_c_literalCompressionMode, HUFFMAN_ALWAYS);
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_compressionLevel,
                           ZSTD_isError(rc) ? MATCHES_LEVEL : ZSTD_minCLevel());
    ZSTD_CCtx_setParameter(encoder, ZSTD_c_windowLog, TABLE_LOG);
    return encoder;
}

/* One plane of n bytes; an error when it does not become smaller. */
static size_t code_plane(ZSTD_CCtx *encoder, enum dcp_plane_way way,
                         const unsigned char *plane, size_t n, unsigned char *out,
                         size_t room)
{
    if (n > 1 && room && !memcmp(plane, plane + 1, n - 1)) {
        out[0] = plane[0];
        return 1;
    }
    if (room > n - 1)
        room = n - 1; /* more is no gain, and zstd then gives up */
    if (way == DCP_PLANE_ENTROPY)
        return ZSTD_compress2(encoder, out, room, plane, n);
    /* Takes none of the context's parameters. */
    return ZSTD_compressCCtx(encoder, out, room, plane, n, MATCHES_LEVEL);
}

/* Where the planes are put: those that stay as they are, up to the first that does not,
 * where they are stored; the others in scratch. Returns how many the first are. */
static size_t place_planes(const struct dcp_trial *trial, size_t rows, size_t width,
                           unsigned char *stored, unsigned char *scratch,
                           unsigned char *planes[DCP_MAX_PLANES])
{
    size_t first = 0;

    while (first < width && trial->ways[first] == DCP_PLANE_RAW)
        first++;
    for (size_t b = 0; b < width; b++)
        planes[b] = (b < first ? stored : scratch) + b * rows;
    return first;
}

int dcp_split_encode(ZSTD_CCtx *encoder, size_t width, const unsigned char *raw, size_t n,
                     unsigned char *scratch, unsigned char *out, size_t *out_n,
                     struct dcp_error *err)
{
    size_t rows = n / width, at = head_bytes(width);
    unsigned char *planes[DCP_MAX_PLANES];
    struct dcp_trial trial;

    *out_n = 0;
    if (n % width || at >= n)
        return DCP_OK;
    dcp_trial_run(raw, rows, width, encoder, out, &trial);
    size_t first = place_planes(&trial, rows, width, out + at, scratch, planes);
    if (first * rows >= n - at)
        return DCP_OK;
    dcp_planes_split(raw, rows, width, trial.turned, planes);
    out[0] = trial.turned ? TURNED : 0;
    for (size_t b = 0; b < width; b++) {
        size_t size = rows;
        if (trial.ways[b] != DCP_PLANE_RAW)
            size = code_plane(encoder, trial.ways[b], planes[b], rows, out + at, n - at);
        if (ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation)
            return dcp_error_memory(err, "the compression of a block");
        if (ZSTD_isError(size))
            size = rows;
        if (size > n - at)
            return DCP_OK;
        if (size == rows && b >= first) /* the first lie there already */
            memcpy(out + at, planes[b], rows);
        dcp_put_le32(out + 1 + PLANE_ENTRY * b, (uint32_t)size);
        at += size;
    }
    *out_n = at < n ? at : 0;
    return DCP_OK;
}

static int corrupt(struct dcp_error *err, size_t plane, const char *why)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "plane %zu of a block %s", plane, why);
}

/* Where the bytes of a plane are once it is decoded: in the block itself, or in out. */
static int decode_plane(ZSTD_DCtx *decoder, size_t b, const unsigned char *stored,
                        size_t size, unsigned char *out, size_t rows,
                        const unsigned char **out_plane, struct dcp_error *err)
{
    *out_plane = out;
    if (size == rows) {
        *out_plane = stored;
    } else if (size == 1) {
        memset(out, stored[0], rows);
    } else if (ZSTD_findFrameCompressedSize(stored, size) != size) {
        return corrupt(err, b, "is not one frame of zstd");
    } else {
        size_t got = ZSTD_decompressDCtx(decoder, out, rows, stored, size);
        if (ZSTD_isError(got))
            return corrupt(err, b, "does not decompress");
        if (got != rows)
            return corrupt(err, b,
                           "has another number of bytes than the block has numbers");
    }
    return DCP_OK;
}

int dcp_split_decode(ZSTD_DCtx *decoder, size_t width, const unsigned char *stored,
                     size_t stored_n, unsigned char *planes, unsigned char *raw, size_t n,
                     struct dcp_error *err)
{
    const unsigned char *at[DCP_MAX_PLANES];
    size_t rows = n / width, next = head_bytes(width);

    if (n % width || stored_n >= n || stored_n < next)
        return dcp_error_set(err, DCP_E_CORRUPT, "a block of %zu bytes cannot hold %zu",
                             stored_n, n);
    bool turned = stored[0] == TURNED;
    if (stored[0] > TURNED || (turned && !dcp_planes_can_turn(width)))
        return dcp_error_set(err, DCP_E_CORRUPT, "the head of a block says %u",
                             (unsigned)stored[0]);
    for (size_t b = 0; b < width; b++) {
        size_t size = dcp_le32(stored + 1 + PLANE_ENTRY * b);
        if (size > stored_n - next)
            return corrupt(err, b, "reaches past its end");
        DCP_TRY(decode_plane(decoder, b, stored + next, size, planes + b * rows, rows,
                             &at[b], err));
        next += size;
    }
    if (next != stored_n)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "a block has %zu bytes behind its planes", stored_n - next);
    dcp_planes_join(at, rows, width, turned, raw);
    return DCP_OK;
}
