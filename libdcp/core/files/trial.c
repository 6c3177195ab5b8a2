#include "trial.h"
#include <stdint.h>
#include <string.h>

#define RUNS 8 /* the sample is so many runs of neighbours, all over the block */

/* To code a plane takes time, which is counted as this part of its bytes: so much must be
 * saved by it. What noise seems to save in a sample is less. */
#define WORTH_CODING 24
/* Matches must save this part of what an entropy coder leaves: they are three times
 * slower to find. */
#define WORTH_MATCHING 6

/* log2(x) in 1/256, within 2/256: x = 2^e (1 + f), and log2(1 + f) = f + 0.34 f (1 - f),
 * nearly. */
static uint64_t log2_256(uint32_t x)
{
    unsigned e = 31 - (unsigned)__builtin_clz(x);
    uint64_t f = ((uint64_t)x << (31 - e) >> 23) & 0xff;

    return e * 256 + f + f * (256 - f) * 88 / 65536;
}

/* What an entropy coder makes of n bytes, in bytes: Shannon's bound, but at least one bit
 * for each, as in a Huffman code. */
static size_t entropy_bytes(const unsigned char *in, size_t n)
{
    uint32_t counts[2][256] = {
        0
    }; /* two, since a counter waits for its last addition */
    uint64_t bits_256 = 0;

    for (size_t i = 0; i + 1 < n; i += 2) {
        counts[0][in[i]]++;
        counts[1][in[i + 1]]++;
    }
    if (n % 2)
        counts[0][in[n - 1]]++;
    for (int i = 0; i < 256; i++) {
        uint32_t count = counts[0][i] + counts[1][i];
        if (count)
            bits_256 += count * (log2_256((uint32_t)n) - log2_256(count));
    }
    size_t bytes = (size_t)(bits_256 / 256 / 8);
    return bytes > n / 8 ? bytes : n / 8;
}

/* Returns how many numbers the sample has. */
static size_t take_sample(const unsigned char *in, size_t n, size_t width,
                          unsigned char *out)
{
    const size_t run = DCP_TRIAL_SAMPLE / RUNS;

    if (n <= DCP_TRIAL_SAMPLE) {
        memcpy(out, in, n * width);
        return n;
    }
    for (size_t i = 0; i < RUNS; i++)
        memcpy(out + i * run * width, in + (n - run) / (RUNS - 1) * i * width,
               run * width);
    return DCP_TRIAL_SAMPLE;
}

/* The planes of the sample, one behind the other. */
static void split(const unsigned char *sample, size_t n, size_t width, bool turned,
                  unsigned char *out)
{
    unsigned char *planes[DCP_MAX_PLANES] = { NULL };

    for (size_t b = 0; b < width; b++)
        planes[b] = out + b * n;
    dcp_planes_split(sample, n, width, turned, planes);
}

/* The entropy coded sizes of the sample's planes, n for one that is not worth it. Returns
 * what they cost together, time and all. */
static size_t weigh(const unsigned char *planes, size_t n, size_t width,
                    size_t sizes[DCP_MAX_PLANES])
{
    size_t sum = 0;

    for (size_t b = 0; b < width; b++) {
        size_t coded = entropy_bytes(planes + b * n, n), cost = coded + n / WORTH_CODING;
        sizes[b] = cost < n ? coded : n;
        sum += cost < n ? cost : n;
    }
    return sum;
}

void dcp_trial_run(const unsigned char *in, size_t n, size_t width, ZSTD_CCtx *encoder,
                   unsigned char *scratch, struct dcp_trial *out_trial)
{
    const size_t most = (size_t)DCP_TRIAL_SAMPLE * DCP_MAX_PLANES;
    unsigned char *sample = scratch, *planes = scratch + most, *turned = planes + most;
    unsigned char *coded = turned + most;
    size_t sizes[2][DCP_MAX_PLANES];
    size_t n_sample = take_sample(in, n, width, sample);

    *out_trial = (struct dcp_trial){ 0 };
    split(sample, n_sample, width, false, planes);
    size_t sum = weigh(planes, n_sample, width, sizes[0]);
    if (dcp_planes_can_turn(width)) {
        split(sample, n_sample, width, true, turned);
        out_trial->turned = weigh(turned, n_sample, width, sizes[1]) < sum;
    }
    if (out_trial->turned)
        planes = turned;
    for (size_t b = 0; b < width; b++) {
        size_t best = sizes[out_trial->turned][b];
        size_t limit = best - best / WORTH_MATCHING;
        size_t size =
            ZSTD_compressCCtx(encoder, coded, most, planes + b * n_sample, n_sample, 1);
        if (!ZSTD_isError(size) && size < limit)
            out_trial->ways[b] = DCP_PLANE_MATCHES;
        else if (best < n_sample)
            out_trial->ways[b] = DCP_PLANE_ENTROPY;
    }
}
