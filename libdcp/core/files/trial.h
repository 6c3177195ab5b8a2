/* trial: how the planes of a block are best coded, told from a sample of it. */
#ifndef DCP_CORE_FILES_TRIAL_H
#define DCP_CORE_FILES_TRIAL_H

#include "base/planes.h"
#include <zstd.h>

enum dcp_plane_way {
    DCP_PLANE_RAW,     /* noise: nothing is gained */
    DCP_PLANE_ENTROPY, /* some bytes are more frequent than others */
    DCP_PLANE_MATCHES, /* runs of them repeat, which is slower to code, and pays */
};

struct dcp_trial {
    bool turned;
    enum dcp_plane_way ways[DCP_MAX_PLANES];
};

/* Scratch of dcp_trial_run. */
#define DCP_TRIAL_SAMPLE 4096 /* numbers */
#define DCP_TRIAL_BYTES ((size_t)4 * DCP_TRIAL_SAMPLE * DCP_MAX_PLANES)

/* For n > 0 numbers of width bytes. Whole numbers alone decide: the same block gets the
 * same answer on every machine. */
void dcp_trial_run(const unsigned char *in, size_t n, size_t width, ZSTD_CCtx *encoder,
                   unsigned char *scratch, struct dcp_trial *out_trial);

#endif
