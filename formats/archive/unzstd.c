/* unzstd: zstd's streaming decoder over a file. */
#include "unzstd.h"
#include "base/mem.h"
#include <string.h>
#include <zstd.h>

#define FILE_NAME "item"

enum { STEP_BYTES = 64 << 10 };

struct decoder {
    ZSTD_DStream *zstd;
    const struct dcp_input *in;
    uint64_t at, end;
    unsigned char packed[STEP_BYTES];
    unsigned char plain[STEP_BYTES];
};

static void decoder_free(struct decoder **decoder)
{
    if (*decoder)
        ZSTD_freeDStream((*decoder)->zstd);
    free(*decoder);
}

static int damaged(const struct dcp_input *in, uint64_t offset, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "'%s': at byte %llu there is no sound zstd frame", in->shown,
                         (unsigned long long)offset);
}

/* Until the frame ends or max_bytes are there. */
static int run(struct decoder *d, uint64_t offset, size_t max_bytes, struct dcp_buf *out,
               bool *out_ended, struct dcp_error *err)
{
    ZSTD_inBuffer packed = { d->packed, 0, 0 };

    while (!*out_ended && out->size_bytes < max_bytes) {
        size_t room = max_bytes - out->size_bytes;
        ZSTD_outBuffer plain = { d->plain, room < STEP_BYTES ? room : STEP_BYTES, 0 };
        if (packed.pos == packed.size && d->at < d->end) {
            packed.size =
                d->end - d->at < STEP_BYTES ? (size_t)(d->end - d->at) : STEP_BYTES;
            packed.pos = 0;
            int rc = dcp_input_read(d->in, d->at, d->packed, packed.size, err);
            if (rc)
                return rc;
            d->at += packed.size;
        }
        size_t before = packed.pos;
        size_t left = ZSTD_decompressStream(d->zstd, &plain, &packed);
        if (ZSTD_isError(left))
            return damaged(d->in, offset, err);
        dcp_buf_add(out, d->plain, plain.pos);
        *out_ended = left == 0;
        if (left && !plain.pos && packed.pos == before && d->at == d->end)
            return damaged(d->in, offset, err); /* it is cut off */
    }
    return dcp_buf_check(out, err);
}

int dcp_unzstd(const struct dcp_input *in, uint64_t offset, uint64_t size_bytes,
               size_t max_bytes, struct dcp_buf *out, bool *out_ended,
               struct dcp_error *err)
{
    DCP_CLEANUP(decoder_free) struct decoder *d = malloc(sizeof *d);
    bool ended = false;

    if (!d)
        return dcp_error_memory(err, "a compressed item");
    d->zstd = ZSTD_createDStream();
    d->in = in;
    d->at = offset;
    d->end = offset + size_bytes; /* checked when the file was opened */
    int rc = d->zstd ? run(d, offset, max_bytes, out, &ended, err)
                     : dcp_error_memory(err, "a compressed item");
    if (out_ended)
        *out_ended = ended;
    return rc;
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
