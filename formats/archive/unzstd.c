/* unzstd: a decoder over a file. */
#include "unzstd.h"
#include "base/decoder.h"
#include "base/mem.h"
#include <string.h>

#define FILE_NAME "item"

enum { STEP_BYTES = 64 << 10 };

/* Where the frame is stored. */
struct frame {
    const struct dcp_input *in;
    uint64_t offset;
    bool failed; /* reading it */
};

static int read_frame(void *self, uint64_t at, void *out, size_t n, struct dcp_error *err)
{
    struct frame *frame = self;
    int rc = dcp_input_read(frame->in, frame->offset + at, out, n, err);

    frame->failed = rc != 0;
    return rc;
}

int dcp_unzstd(const struct dcp_input *in, uint64_t offset, uint64_t size_bytes,
               size_t max_bytes, struct dcp_buf *out, bool *out_ended,
               struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *plain = malloc(STEP_BYTES);
    struct frame frame = { .in = in, .offset = offset };
    const struct dcp_decoder_input input = { &frame, read_frame, size_bytes };
    struct dcp_decoder *decoder = NULL;
    bool ended = false;
    int rc = plain ? dcp_decoder_new(DCP_DECODE_ZSTD, &input, &decoder, err)
                   : dcp_error_memory(err, "a compressed item");

    while (!rc && !ended && out->size_bytes < max_bytes) {
        size_t n, room = max_bytes - out->size_bytes;
        struct dcp_error why = { 0 };
        rc = dcp_decoder_some(decoder, plain, room < STEP_BYTES ? room : STEP_BYTES, &n,
                              &ended, &why);
        if (rc == DCP_E_CORRUPT && !frame.failed)
            dcp_error_set(err, rc, "'%s': at byte %llu there is no valid zstd frame",
                          in->shown, (unsigned long long)offset);
        else if (rc && err)
            *err = why;
        dcp_buf_add(out, plain, n);
    }
    dcp_decoder_free(decoder);
    if (out_ended)
        *out_ended = ended;
    return rc ? rc : dcp_buf_check(out, err);
}

int dcp_unzstd_open(struct dcp_unzstd_file *out, const struct dcp_input *in,
                    uint64_t offset, uint64_t size_bytes, size_t max_bytes,
                    struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    bool ended;

    *out = (struct dcp_unzstd_file){ 0 };
    int rc = dcp_unzstd(in, offset, size_bytes, max_bytes, &buf, &ended, err);
    if (!rc && !ended)
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED,
                           "'%s': the compressed item at byte %llu is longer than %zu "
                           "bytes, which is not supported for items of its kind",
                           in->shown, (unsigned long long)offset, max_bytes);
    if (!rc)
        rc = dcp_store_mem(&out->store, err);
    if (!rc)
        rc = dcp_store_write_file(&out->store, FILE_NAME, buf.data, buf.size_bytes, err);
    const struct dcp_source source = { .store = &out->store, .name = FILE_NAME };
    if (!rc)
        rc = dcp_input_open(&out->in, &source, NULL, err);
    if (!rc) { /* messages name the file that people have */
        char *shown = strdup(in->shown);
        if (!shown)
            return dcp_error_memory(err, "a file name");
        free(out->in.shown);
        out->in.shown = shown;
    }
    return rc;
}

void dcp_unzstd_close(struct dcp_unzstd_file *file)
{
    dcp_input_close(&file->in);
    if (file->store.ops)
        dcp_store_free(&file->store);
    *file = (struct dcp_unzstd_file){ 0 };
}
