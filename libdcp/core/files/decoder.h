/* decoder: a coded stream, read from its beginning on. For extents of other programs'
 * files (zstd frames, deflated zip records), which have no blocks to begin at. Memory: a
 * window of at most 128 MiB for zstd, what the stream asks for; 32 KiB for deflate.
 * Thread rule: one decoder, one thread. */
#ifndef DCP_CORE_FILES_DECODER_H
#define DCP_CORE_FILES_DECODER_H

#include <dcp/tensor.h>

struct dcp_decoder;

/* Where the stored bytes come from: exactly n at `at`, at + n <= size_bytes. */
struct dcp_decoder_input {
    void *self;
    int (*read)(void *self, uint64_t at, void *out, size_t n, struct dcp_error *err);
    uint64_t size_bytes;
};

/* codec is one of the streams. Caller owns. Errors: MEMORY. */
int dcp_decoder_new(enum dcp_codec codec, const struct dcp_decoder_input *input,
                    struct dcp_decoder **out_decoder, struct dcp_error *err);
void dcp_decoder_free(struct dcp_decoder *decoder);

/* Decoded bytes taken so far. */
uint64_t dcp_decoder_at(const struct dcp_decoder *decoder);
/* The next n decoded bytes; out NULL throws them away. After a failure the decoder is of
 * no more use. Errors: CORRUPT (damaged, or it ends before), those of the input. */
int dcp_decoder_read(struct dcp_decoder *decoder, void *out, uint64_t n,
                     struct dcp_error *err);

#endif
