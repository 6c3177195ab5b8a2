/* One pass of a codec over a file, block by block as a checkpoint has them, in memory:
 * bench_coder FILE WIDTH CODEC prints the raw and the coded bytes, and the seconds of a
 * core that coding and decoding took. CODEC is one of the library's, or zstd:LEVEL.
 * tests/bench/codec asks for it. */
#include "core/files/codec.h"
#include "lib/must.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

static struct dcp_coder *coder;
static ZSTD_CCtx *encoder;
static ZSTD_DCtx *decoder;
static int codec, level; /* of the library; -1: zstd of that level */

/* To *out_stored, which is scratch, or raw where nothing is gained. */
static size_t encode(const unsigned char *raw, size_t n, size_t width,
                     unsigned char *scratch, const void **out_stored)
{
    size_t stored_n;

    if (codec >= 0) {
        must(!dcp_coder_encode(coder, (enum dcp_codec)codec, width, raw, n, out_stored,
                               &stored_n, NULL));
        return stored_n;
    }
    stored_n = ZSTD_compressCCtx(encoder, scratch, n - 1, raw, n, level);
    *out_stored = ZSTD_isError(stored_n) ? raw : scratch;
    return ZSTD_isError(stored_n) ? n : stored_n;
}

static void decode(const unsigned char *stored, size_t stored_n, size_t width,
                   unsigned char *raw, size_t n)
{
    if (codec >= 0 || stored_n == n)
        must(!dcp_coder_decode(coder, codec < 0 ? DCP_CODEC_NONE : (enum dcp_codec)codec,
                               width, stored, stored_n, raw, n, NULL));
    else
        must(ZSTD_decompressDCtx(decoder, raw, n, stored, stored_n) == n);
}

static double core_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static unsigned char *read_all(const char *path, size_t *out_n)
{
    FILE *file = fopen(path, "rb");

    must(file && !fseek(file, 0, SEEK_END));
    *out_n = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*out_n);
    must(data && fread(data, 1, *out_n, file) == *out_n);
    fclose(file);
    return data;
}

int main(int argc, char **argv)
{
    size_t n, width, sum = 0;
    double in_s = 0, out_s = 0;

    must(argc == 4);
    width = (size_t)strtol(argv[2], NULL, 10);
    codec = dcp_codec_parse(argv[3]);
    level = codec < 0 ? (int)strtol(strchr(argv[3], ':') + 1, NULL, 10) : 0;
    must(!dcp_coder_new(&coder, NULL));
    must((encoder = ZSTD_createCCtx()) && (decoder = ZSTD_createDCtx()));
    unsigned char *raw = read_all(argv[1], &n);
    unsigned char *out = malloc(DCP_BLOCK_BYTES), *scratch = malloc(DCP_BLOCK_BYTES);
    unsigned char *back = malloc(DCP_BLOCK_BYTES);
    must(out && scratch && back);
    for (int pass = 0; pass < 2; pass++) { /* the first one warms */
        sum = 0, in_s = out_s = 0;
        for (size_t at = 0; at < n; at += DCP_BLOCK_BYTES) {
            size_t size = n - at < DCP_BLOCK_BYTES ? n - at : DCP_BLOCK_BYTES;
            const void *coded;
            double began = core_s();
            size_t stored = encode(raw + at, size, width, scratch, &coded);
            in_s += core_s() - began;
            memcpy(out, coded, stored);
            began = core_s();
            decode(out, stored, width, back, size);
            out_s += core_s() - began;
            sum += stored;
            must(!memcmp(raw + at, back, size));
        }
    }
    printf("%zu %zu %.9f %.9f\n", n, sum, in_s, out_s);
    dcp_coder_free(coder);
    ZSTD_freeCCtx(encoder);
    ZSTD_freeDCtx(decoder);
    free(raw);
    free(out);
    free(scratch);
    free(back);
    return 0;
}
