#include "decoder.h"
#include "mem.h"
#include <isa-l/igzip_lib.h>
#include <zstd.h>

enum { STORED_BYTES = 1 << 17, SKIPPED_BYTES = 1 << 16, MAX_WINDOW_LOG = 27 };

struct dcp_decoder {
    struct dcp_decoder_input input;
    uint64_t stored_at; /* stored bytes that were read */
    uint64_t at;        /* decoded bytes that were handed out */
    unsigned char *stored, *skipped;
    size_t begin, end; /* of what is left in stored */
    ZSTD_DCtx *zstd;
    struct inflate_state *inflate;
};

void dcp_decoder_free(struct dcp_decoder *decoder)
{
    if (!decoder)
        return;
    ZSTD_freeDCtx(decoder->zstd);
    free(decoder->inflate);
    free(decoder->stored);
    free(decoder->skipped);
    free(decoder);
}

static bool init_codec(struct dcp_decoder *d, enum dcp_decoder_kind kind)
{
    if (kind == DCP_DECODE_ZSTD) {
        d->zstd = ZSTD_createDCtx();
        return d->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(
                              d->zstd, ZSTD_d_windowLogMax, MAX_WINDOW_LOG));
    }
    d->inflate = malloc(sizeof *d->inflate);
    if (d->inflate)
        isal_inflate_init(d->inflate);
    return d->inflate != NULL;
}

int dcp_decoder_new(enum dcp_decoder_kind kind, const struct dcp_decoder_input *input,
                    struct dcp_decoder **out_decoder, struct dcp_error *err)
{
    struct dcp_decoder *d = calloc(1, sizeof *d);

    *out_decoder = NULL;
    if (!d)
        return dcp_error_memory(err, "a decoder");
    d->input = *input;
    d->stored = malloc(STORED_BYTES);
    d->skipped = malloc(SKIPPED_BYTES);
    if (!d->stored || !d->skipped || !init_codec(d, kind)) {
        dcp_decoder_free(d);
        return dcp_error_memory(err, "a decoder");
    }
    *out_decoder = d;
    return DCP_OK;
}

uint64_t dcp_decoder_at(const struct dcp_decoder *decoder)
{
    return decoder->at;
}

static int corrupt(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "the compressed data are corrupt");
}

/* Stored bytes to work on; there may be none left. */
static int fill(struct dcp_decoder *d, struct dcp_error *err)
{
    uint64_t left = d->input.size_bytes - d->stored_at;

    if (d->begin < d->end)
        return DCP_OK;
    d->begin = 0;
    d->end = left < STORED_BYTES ? (size_t)left : STORED_BYTES;
    int rc = d->end ? d->input.read(d->input.self, d->stored_at, d->stored, d->end, err)
                    : DCP_OK;
    d->stored_at += d->end;
    return rc;
}

static int step_zstd(struct dcp_decoder *d, unsigned char *out, size_t n, size_t *out_n,
                     bool *out_ended, struct dcp_error *err)
{
    ZSTD_inBuffer in = { d->stored, d->end, d->begin };
    ZSTD_outBuffer to = { out, n, 0 };

    size_t left = ZSTD_decompressStream(d->zstd, &to, &in);
    if (ZSTD_isError(left))
        return corrupt(err);
    d->begin = in.pos;
    *out_n = to.pos;
    *out_ended = left == 0;
    return DCP_OK;
}

static int step_inflate(struct dcp_decoder *d, unsigned char *out, size_t n,
                        size_t *out_n, bool *out_ended, struct dcp_error *err)
{
    struct inflate_state *state = d->inflate;

    state->next_in = d->stored + d->begin;
    state->avail_in = (uint32_t)(d->end - d->begin);
    state->next_out = out;
    state->avail_out = (uint32_t)n;
    if (isal_inflate(state) != ISAL_DECOMP_OK)
        return corrupt(err);
    d->begin = d->end - state->avail_in;
    *out_n = n - state->avail_out;
    *out_ended = state->block_state == ISAL_BLOCK_FINISH;
    return DCP_OK;
}

int dcp_decoder_some(struct dcp_decoder *d, void *out, size_t n, size_t *out_n,
                     bool *out_ended, struct dcp_error *err)
{
    *out_n = 0;
    *out_ended = false;
    while (*out_n == 0 && !*out_ended) {
        DCP_TRY(fill(d, err));
        size_t begin = d->begin, end = d->end;
        DCP_TRY(d->zstd ? step_zstd(d, out, n, out_n, out_ended, err)
                        : step_inflate(d, out, n, out_n, out_ended, err));
        bool stands = *out_n == 0 && d->begin == begin;
        if (stands && (end == 0 || end > begin))
            return dcp_error_set(err, DCP_E_CORRUPT, "the compressed data end too early");
    }
    d->at += *out_n;
    return DCP_OK;
}

int dcp_decoder_read(struct dcp_decoder *d, void *out, uint64_t n, struct dcp_error *err)
{
    unsigned char *to = out;

    while (n > 0) {
        uint64_t most = to ? (uint64_t)1 << 30 : SKIPPED_BYTES;
        size_t got, want = (size_t)(n < most ? n : most);
        bool ended;
        DCP_TRY(dcp_decoder_some(d, to ? to : d->skipped, want, &got, &ended, err));
        n -= got;
        if (to)
            to += got;
    }
    return DCP_OK;
}
