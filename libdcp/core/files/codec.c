#include "codec.h"
#include "base/mem.h"
#include "split.h"
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

/* Level 1: a checkpoint is written far more often than read, and higher levels gain
 * little on weights, whose mantissas are noise. */
#define LEVEL 1

struct dcp_coder {
    ZSTD_CCtx *encoder; /* of dcp_split_encoder_new, which level 1 takes no notice of */
    ZSTD_DCtx *decoder;
    unsigned char *planes, *coded; /* DCP_BLOCK_BYTES each */
};

int dcp_coder_new(struct dcp_coder **out_coder, struct dcp_error *err)
{
    struct dcp_coder *coder = calloc(1, sizeof *coder);

    *out_coder = NULL;
    if (coder) {
        coder->encoder = dcp_split_encoder_new();
        coder->decoder = ZSTD_createDCtx();
        coder->planes = malloc(DCP_BLOCK_BYTES);
        coder->coded = malloc(DCP_BLOCK_BYTES);
    }
    if (!coder || !coder->encoder || !coder->decoder || !coder->planes || !coder->coded) {
        dcp_coder_free(coder);
        return dcp_error_memory(err, "a block coder");
    }
    *out_coder = coder;
    return DCP_OK;
}

void dcp_coder_free(struct dcp_coder *coder)
{
    if (!coder)
        return;
    ZSTD_freeCCtx(coder->encoder);
    ZSTD_freeDCtx(coder->decoder);
    free(coder->planes);
    free(coder->coded);
    free(coder);
}

/* Of codec planes; what is no whole number stands behind the planes. */
static void split_planes(const unsigned char *in, unsigned char *out, size_t n,
                         size_t elem)
{
    unsigned char *planes[DCP_MAX_PLANES];
    size_t whole = n - n % elem;

    for (size_t b = 0; b < elem; b++)
        planes[b] = out + b * (n / elem);
    dcp_planes_split(in, n / elem, elem, false, planes);
    memcpy(out + whole, in + whole, n - whole);
}

static void join_planes(const unsigned char *in, unsigned char *out, size_t n,
                        size_t elem)
{
    const unsigned char *planes[DCP_MAX_PLANES];
    size_t whole = n - n % elem;

    for (size_t b = 0; b < elem; b++)
        planes[b] = in + b * (n / elem);
    dcp_planes_join(planes, n / elem, elem, false, out);
    memcpy(out + whole, in + whole, n - whole);
}

int dcp_coder_encode(struct dcp_coder *coder, enum dcp_codec codec, size_t elem_size,
                     const void *raw, size_t n, const void **out_stored, size_t *out_n,
                     struct dcp_error *err)
{
    const void *in = raw;

    *out_stored = raw;
    *out_n = n;
    if (codec == DCP_CODEC_NONE || n < 2)
        return DCP_OK;
    if (codec == DCP_CODEC_SPLIT) {
        size_t less;
        DCP_TRY(dcp_split_encode(coder->encoder, elem_size, raw, n, coder->planes,
                                 coder->coded, &less, err));
        if (less) {
            *out_stored = coder->coded;
            *out_n = less;
        }
        return DCP_OK;
    }
    if (codec == DCP_CODEC_PLANES && elem_size > 1) {
        split_planes(raw, coder->planes, n, elem_size);
        in = coder->planes;
    }
    /* Room for n - 1 bytes: more is no gain, and zstd then gives up. */
    size_t stored = ZSTD_compressCCtx(coder->encoder, coder->coded, n - 1, in, n, LEVEL);
    if (!ZSTD_isError(stored)) {
        *out_stored = coder->coded;
        *out_n = stored;
    } else if (ZSTD_getErrorCode(stored) == ZSTD_error_memory_allocation) {
        return dcp_error_memory(err, "the compression of a block");
    }
    return DCP_OK;
}

int dcp_coder_decode(struct dcp_coder *coder, enum dcp_codec codec, size_t elem_size,
                     const void *stored, size_t stored_n, void *raw, size_t n,
                     struct dcp_error *err)
{
    bool planes = codec == DCP_CODEC_PLANES && elem_size > 1;

    if (codec == DCP_CODEC_NONE || stored_n == n) {
        if (stored_n != n)
            return dcp_error_set(err, DCP_E_CORRUPT, "a block has %zu bytes, not %zu",
                                 stored_n, n);
        memcpy(raw, stored, n);
        return DCP_OK;
    }
    if (codec == DCP_CODEC_SPLIT)
        return dcp_split_decode(coder->decoder, elem_size, stored, stored_n,
                                coder->planes, raw, n, err);
    size_t got = ZSTD_decompressDCtx(coder->decoder, planes ? coder->planes : raw, n,
                                     stored, stored_n);
    if (ZSTD_isError(got))
        return dcp_error_set(err, DCP_E_CORRUPT, "a block does not decompress: %s",
                             ZSTD_getErrorName(got));
    if (got != n)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "a block decompresses to %zu bytes, not %zu", got, n);
    if (planes)
        join_planes(coder->planes, raw, n, elem_size);
    return DCP_OK;
}
