/* decoder: a coded stream, read from its beginning on: frames of zstd, or deflated bytes.
 * Memory: a window of at most 128 MiB for zstd, what the stream asks for; 32 KiB for
 * deflate. Thread rule: one decoder, one thread. */
#ifndef DCP_BASE_DECODER_H
#define DCP_BASE_DECODER_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_decoder;
enum dcp_decoder_kind { DCP_DECODE_ZSTD, DCP_DECODE_DEFLATE };

/* Where the stored bytes come from: exactly n at `at`, at + n <= size_bytes. */
struct dcp_decoder_input {
    void *self;
    int (*read)(void *self, uint64_t at, void *out, size_t n, struct dcp_error *err);
    uint64_t size_bytes;
};

/* Caller owns. Errors: MEMORY. */
int dcp_decoder_new(enum dcp_decoder_kind kind, const struct dcp_decoder_input *input,
                    struct dcp_decoder **out_decoder, struct dcp_error *err);
void dcp_decoder_free(struct dcp_decoder *decoder);

/* Decoded bytes taken so far. */
uint64_t dcp_decoder_at(const struct dcp_decoder *decoder);
/* The next n decoded bytes; out NULL throws them away. After a failure the decoder is of
 * no more use. Errors: CORRUPT (corrupt, or it ends before), those of the input. */
int dcp_decoder_read(struct dcp_decoder *decoder, void *out, uint64_t n,
                     struct dcp_error *err);
/* Some of the next n decoded bytes, at least one unless *out_ended: a frame, or what is
 * deflated, is over. Errors: as above. */
int dcp_decoder_some(struct dcp_decoder *decoder, void *out, size_t n, size_t *out_n,
                     bool *out_ended, struct dcp_error *err);

#endif
