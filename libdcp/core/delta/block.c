#include "block.h"
#include "base/bytes.h"
#include "base/planes.h"
#include "base/vectors.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
    LEVEL_SPARSE = 3, /* little is left, and it is worth it */
    LEVEL_PLANES = 1, /* as the codec "planes" of shards */
    SPARSE_HEAD = 12, /* three numbers before the two frames */
    GAP_BYTES = 3,    /* at most: a place in a block is below 2^21 */
    SLICES = 4,       /* of a block that are tried first, */
    SLICE = 8192      /* of so many bytes each */
};

struct dcp_delta_coder {
    ZSTD_CCtx *encoder;
    ZSTD_DCtx *decoder;
    unsigned char *mask;   /* of the block */
    unsigned char *planes; /* a block, and room for gaps behind it */
    unsigned char *gaps;
    unsigned char *best, *tried; /* stored blocks: what was least so far, and a try */
    unsigned char *room;
};

enum { GAPS_CAP = GAP_BYTES << 20, MAX_WIDTH = 8 };

int dcp_delta_coder_new(struct dcp_delta_coder **out, struct dcp_error *err)
{
    struct dcp_delta_coder *coder = calloc(1, sizeof *coder);

    *out = NULL;
    if (coder) {
        coder->encoder = ZSTD_createCCtx();
        coder->decoder = ZSTD_createDCtx();
        coder->mask = malloc(DCP_DELTA_BLOCK_BYTES);
        coder->planes = malloc(DCP_DELTA_BLOCK_BYTES);
        coder->gaps = malloc(GAPS_CAP);
        coder->best = malloc(DCP_DELTA_BLOCK_BYTES);
        coder->tried = malloc(DCP_DELTA_BLOCK_BYTES);
        coder->room = malloc(DCP_DELTA_BLOCK_BYTES);
    }
    if (!coder || !coder->encoder || !coder->decoder || !coder->mask || !coder->planes ||
        !coder->gaps || !coder->best || !coder->tried || !coder->room) {
        dcp_delta_coder_free(coder);
        return dcp_error_memory(err, "a coder of deltas");
    }
    *out = coder;
    return DCP_OK;
}

void dcp_delta_coder_free(struct dcp_delta_coder *coder)
{
    if (!coder)
        return;
    ZSTD_freeCCtx(coder->encoder);
    ZSTD_freeDCtx(coder->decoder);
    free(coder->mask);
    free(coder->planes);
    free(coder->gaps);
    free(coder->best);
    free(coder->tried);
    free(coder->room);
    free(coder);
}

unsigned char *dcp_delta_coder_room(struct dcp_delta_coder *coder)
{
    return coder->room;
}

/* -- bytes --------------------------------------------------------------------------- */

DCP_VECTORS static void xor_into(unsigned char *restrict out,
                                 const unsigned char *restrict with, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        uint64_t a, b;
        memcpy(&a, out + i, 8);
        memcpy(&b, with + i, 8);
        a ^= b;
        memcpy(out + i, &a, 8);
    }
    for (; i < n; i++)
        out[i] ^= with[i];
}

/* The places of planes that lie one behind the other. */
static void place_planes(unsigned char *memory, size_t rows, size_t width,
                         unsigned char *planes[MAX_WIDTH])
{
    for (size_t b = 0; b < width; b++)
        planes[b] = memory + b * rows;
}

/* Byte b of every element together; n is a multiple of width. */
static void split(const unsigned char *in, unsigned char *out, size_t n, size_t width)
{
    unsigned char *planes[MAX_WIDTH];

    place_planes(out, n / width, width, planes);
    dcp_planes_split(in, n / width, width, false, planes);
}

/* The masks of elements, given in planes, applied to the elements themselves. */
static void apply_planes(struct dcp_delta_coder *coder, unsigned char *out, size_t n,
                         size_t width)
{
    unsigned char *planes[MAX_WIDTH];

    place_planes(coder->planes, n / width, width, planes);
    dcp_planes_join((const unsigned char *const *)planes, n / width, width, false,
                    coder->tried);
    xor_into(out, coder->tried, n);
}

/* Where the next byte that is not zero stands, from `at` on; n: nowhere. */
static size_t next_change(const unsigned char *mask, size_t at, size_t n)
{
    for (; at < n && at % 8; at++)
        if (mask[at])
            return at;
    for (; at + 8 <= n; at += 8) {
        uint64_t word;
        memcpy(&word, mask + at, 8);
        if (word)
            break;
    }
    while (at < n && !mask[at])
        at++;
    return at;
}

static uint64_t count_changed(const unsigned char *mask, size_t n, size_t width)
{
    uint64_t changed = 0;

    for (size_t at = next_change(mask, 0, n); at < n; changed++)
        at = next_change(mask, (at / width + 1) * width, n);
    return changed;
}

/* -- coding -------------------------------------------------------------------------- */

/* At most cap bytes, else 0: more is no gain, and zstd gives up. */
static int compress(struct dcp_delta_coder *coder, unsigned char *out, size_t cap,
                    const void *in, size_t n, int level, size_t *out_n,
                    struct dcp_error *err)
{
    size_t stored = ZSTD_compressCCtx(coder->encoder, out, cap, in, n, level);

    *out_n = ZSTD_isError(stored) ? 0 : stored;
    if (ZSTD_isError(stored) && ZSTD_getErrorCode(stored) == ZSTD_error_memory_allocation)
        return dcp_error_memory(err, "the compression of a block");
    return DCP_OK;
}

static size_t put_gap(unsigned char *out, size_t gap)
{
    size_t n = 0;

    for (; gap >= 0x80; gap >>= 7)
        out[n++] = (unsigned char)(gap | 0x80);
    out[n++] = (unsigned char)gap;
    return n;
}

/* The masks that are not zero, one behind the other, and before each how many elements
 * lie between it and the one before. */
static int try_sparse(struct dcp_delta_coder *coder, const unsigned char *mask, size_t n,
                      size_t width, unsigned char *out, size_t cap, size_t *out_n,
                      struct dcp_error *err)
{
    size_t k = 0, next = 0, gaps = 0, gaps_n, masks_n;
    unsigned char *masks = coder->planes; /* then in planes, in the other half */

    *out_n = 0;
    for (size_t at = next_change(mask, 0, n); at < n; k++) {
        size_t i = at / width;
        if ((k + 1) * width > n / 2 || gaps + GAP_BYTES > GAPS_CAP)
            return DCP_OK; /* not sparse */
        gaps += put_gap(coder->gaps + gaps, i - next);
        memcpy(masks + k * width, mask + i * width, width);
        next = i + 1;
        at = next_change(mask, next * width, n);
    }
    if (cap <= SPARSE_HEAD || !k)
        return DCP_OK;
    unsigned char *planes = masks + n / 2;
    split(masks, planes, k * width, width);
    unsigned char *at = out + SPARSE_HEAD;
    cap -= SPARSE_HEAD;
    int rc = compress(coder, at, cap, coder->gaps, gaps, LEVEL_SPARSE, &gaps_n, err);
    if (rc || !gaps_n)
        return rc;
    rc = compress(coder, at + gaps_n, cap - gaps_n, planes, k * width, LEVEL_SPARSE,
                  &masks_n, err);
    if (rc || !masks_n)
        return rc;
    dcp_put_le32(out, (uint32_t)k);
    dcp_put_le32(out + 4, (uint32_t)gaps);
    dcp_put_le32(out + 8, (uint32_t)gaps_n);
    *out_n = SPARSE_HEAD + gaps_n + masks_n;
    return DCP_OK;
}

static int try_planes(struct dcp_delta_coder *coder, const unsigned char *mask, size_t n,
                      size_t width, unsigned char *out, size_t cap, size_t *out_n,
                      struct dcp_error *err)
{
    const unsigned char *in = mask;

    if (width > 1) {
        split(mask, coder->planes, n, width);
        in = coder->planes;
    }
    return compress(coder, out, cap, in, n, LEVEL_PLANES, out_n, err);
}

static const int widths[] = { 1, 2, 4, 8 };
enum { N_WIDTHS = sizeof widths / sizeof *widths };

/* A way to code, and what it takes. */
struct way {
    enum dcp_delta_method method;
    int width;
    size_t size_bytes;
};

/* Codes by one way, if it takes less than the best one so far, which it then becomes: its
 * bytes are in coder->best. */
static int attempt(struct dcp_delta_coder *coder, const unsigned char *mask, size_t n,
                   enum dcp_delta_method method, int width, struct way *best,
                   struct dcp_error *err)
{
    size_t size = 0, cap = best->size_bytes - 1;

    if (n % (size_t)width || !cap)
        return DCP_OK;
    int rc =
        method == DCP_DELTA_SPARSE
            ? try_sparse(coder, mask, n, (size_t)width, coder->tried, cap, &size, err)
            : try_planes(coder, mask, n, (size_t)width, coder->tried, cap, &size, err);
    if (rc || !size)
        return rc;
    unsigned char *tried = coder->best;
    coder->best = coder->tried;
    coder->tried = tried;
    *best = (struct way){ method, width, size };
    return DCP_OK;
}

/* Which way of those that are tried on all of `mask` is best; RAW with n: none. */
static int find_way(struct dcp_delta_coder *coder, const unsigned char *mask, size_t n,
                    int width, bool sparse_only, struct way *best, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (int w = 0; w < N_WIDTHS && !rc; w++) {
        if (width && widths[w] != width)
            continue;
        rc = attempt(coder, mask, n, DCP_DELTA_SPARSE, widths[w], best, err);
        if (!rc && !sparse_only)
            rc = attempt(coder, mask, n, DCP_DELTA_PLANES, widths[w], best, err);
    }
    return rc;
}

/* A large block with many changes is tried on slices of it, and then coded the way that
 * was best there. */
static int code_by_sample(struct dcp_delta_coder *coder, size_t n, int width,
                          struct way *best, struct dcp_error *err)
{
    unsigned char sample[SLICES * SLICE];
    struct way way = { DCP_DELTA_RAW, 0, sizeof sample };

    for (size_t s = 0; s < SLICES; s++)
        memcpy(sample + s * SLICE, coder->mask + (n / SLICES * s) / 8 * 8, SLICE);
    int rc = find_way(coder, sample, sizeof sample, width, false, &way, err);
    if (rc || way.method == DCP_DELTA_RAW)
        return rc;
    return attempt(coder, coder->mask, n, way.method, way.width, best, err);
}

int dcp_delta_encode(struct dcp_delta_coder *coder, const void *base, const void *target,
                     size_t n, int width, struct dcp_delta_coded *out,
                     struct dcp_error *err)
{
    struct way best = { DCP_DELTA_RAW, 0, n };

    *out = (struct dcp_delta_coded){ .n_elements = n };
    memcpy(coder->mask, target, n);
    xor_into(coder->mask, base, n);
    uint64_t changed = count_changed(coder->mask, n, 1);
    if (!changed)
        return DCP_OK;
    int rc;
    if (changed * 16 < n)
        rc = find_way(coder, coder->mask, n, width, true, &best, err);
    else if (n <= SLICES * SLICE)
        rc = find_way(coder, coder->mask, n, width, false, &best, err);
    else
        rc = code_by_sample(coder, n, width, &best, err);
    if (rc)
        return rc;
    size_t element = best.width ? (size_t)best.width : 1;
    out->method = best.method;
    out->width = best.width;
    out->size_bytes = best.size_bytes;
    out->data = best.method == DCP_DELTA_RAW ? coder->mask : coder->best;
    out->n_elements = n / element;
    out->n_changed = element == 1 ? changed : count_changed(coder->mask, n, element);
    return DCP_OK;
}

/* -- decoding ------------------------------------------------------------------------ */

int dcp_delta_check(unsigned method, unsigned width, size_t stored, size_t n,
                    struct dcp_error *err)
{
    bool coded = method == DCP_DELTA_SPARSE || method == DCP_DELTA_PLANES;
    bool wide = width == 1 || width == 2 || width == 4 || width == 8;
    bool good = method < DCP_DELTA_N_METHODS &&
                (coded ? wide && n % width == 0 && stored && stored < n
                       : !width && stored == (method == DCP_DELTA_RAW ? n : 0));

    return good ? DCP_OK
                : dcp_error_set(err, DCP_E_CORRUPT,
                                "a block of %zu bytes cannot be %zu of method %u, width "
                                "%u",
                                n, stored, method, width);
}

static int decompress(struct dcp_delta_coder *coder, unsigned char *out, size_t n,
                      const unsigned char *in, size_t in_n, struct dcp_error *err)
{
    size_t got = ZSTD_decompressDCtx(coder->decoder, out, n, in, in_n);

    if (ZSTD_isError(got) && ZSTD_getErrorCode(got) == ZSTD_error_memory_allocation)
        return dcp_error_memory(err, "the decompression of a block");
    return !ZSTD_isError(got) && got == n
               ? DCP_OK
               : dcp_error_set(err, DCP_E_CORRUPT,
                               "a block of a delta does not decompress to %zu bytes", n);
}

static int wrong_places(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "a sparse block of a delta has places outside of it");
}

static int apply_sparse(struct dcp_delta_coder *coder, size_t width,
                        const unsigned char *stored, size_t stored_n,
                        unsigned char *bytes, size_t n, struct dcp_error *err)
{
    if (stored_n < SPARSE_HEAD)
        return wrong_places(err);
    size_t k = dcp_le32(stored), gaps = dcp_le32(stored + 4),
           gaps_n = dcp_le32(stored + 8), rows = n / width;
    if (!k || k > rows || gaps < k || gaps > GAP_BYTES * k ||
        gaps_n > stored_n - SPARSE_HEAD)
        return wrong_places(err);
    const unsigned char *frames = stored + SPARSE_HEAD;
    int rc = decompress(coder, coder->gaps, gaps, frames, gaps_n, err);
    if (!rc)
        rc = decompress(coder, coder->planes, k * width, frames + gaps_n,
                        stored_n - SPARSE_HEAD - gaps_n, err);
    if (rc)
        return rc;
    size_t at = 0, row = 0;
    for (size_t i = 0; i < k; i++, row++) {
        size_t gap = 0, shift = 0;
        unsigned char byte;
        do {
            if (at == gaps || shift > 7 * (GAP_BYTES - 1))
                return wrong_places(err);
            byte = coder->gaps[at++];
            gap |= (size_t)(byte & 0x7f) << shift;
            shift += 7;
        } while (byte & 0x80);
        row += gap;
        if (row >= rows)
            return wrong_places(err);
        for (size_t b = 0; b < width; b++)
            bytes[row * width + b] ^= coder->planes[b * k + i];
    }
    return at == gaps ? DCP_OK : wrong_places(err);
}

int dcp_delta_decode(struct dcp_delta_coder *coder, unsigned method, unsigned width,
                     const void *stored, size_t stored_n, unsigned char *bytes, size_t n,
                     struct dcp_error *err)
{
    int rc = dcp_delta_check(method, width, stored_n, n, err);

    if (rc || method == DCP_DELTA_UNCHANGED)
        return rc;
    if (method == DCP_DELTA_RAW) {
        xor_into(bytes, stored, n);
        return DCP_OK;
    }
    if (method == DCP_DELTA_SPARSE)
        return apply_sparse(coder, width, stored, stored_n, bytes, n, err);
    rc = decompress(coder, coder->planes, n, stored, stored_n, err);
    if (!rc)
        apply_planes(coder, bytes, n, width);
    return rc;
}
