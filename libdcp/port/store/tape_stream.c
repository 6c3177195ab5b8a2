/* Frames that are decoded from front to back, and thrown away as they go by. */
#include "base/mem.h"
#include "tape_own.h"
#include <inttypes.h>
#include <stdlib.h>

#define STREAM_IN ((size_t)128 << 10)

/* The free stream that stands nearest before offset, unless the frame's begin is nearer.
 */
static struct tape_stream *nearest(struct dcp_tape *tape, uint64_t offset,
                                   struct tape_frame begin)
{
    struct tape_stream *best = NULL;

    for (int s = 0; s < tape->n_streams; s++) {
        struct tape_stream *stream = &tape->streams[s];
        if (stream->set && !stream->busy && stream->raw <= offset &&
            stream->raw >= begin.raw && (!best || stream->raw > best->raw))
            best = stream;
    }
    return best;
}

/* The free stream that was not used for longest. */
static struct tape_stream *oldest(struct dcp_tape *tape)
{
    struct tape_stream *best = NULL;

    for (int s = 0; s < tape->n_streams; s++) {
        struct tape_stream *stream = &tape->streams[s];
        if (!stream->busy && (!best || stream->used < best->used))
            best = stream;
    }
    return best;
}

static int stream_open(struct tape_stream *stream, int window_log, struct dcp_error *err)
{
    if (!stream->in)
        stream->in = malloc(2 * STREAM_IN);
    if (!stream->zstd)
        stream->zstd = ZSTD_createDCtx();
    if (!stream->in || !stream->zstd)
        return dcp_error_memory(err, "the decompression of an archive");
    ZSTD_DCtx_setParameter(stream->zstd, ZSTD_d_windowLogMax, window_log);
    ZSTD_DCtx_reset(stream->zstd, ZSTD_reset_session_only);
    return DCP_OK;
}

/* A stream to read from offset on, marked busy. Waits for one. */
static int take_stream(struct dcp_tape *tape, uint64_t offset, struct tape_stream **out,
                       struct dcp_error *err)
{
    struct tape_stream *stream;
    size_t frame;
    int rc = DCP_OK;

    for (;;) {
        frame = dcp_tape_find_frame(tape, offset);
        stream = nearest(tape, offset, tape->frames[frame]);
        if (stream || (stream = oldest(tape)))
            break;
        pthread_cond_wait(&tape->change, &tape->lock);
    }
    if (!stream->set || stream->raw > offset || stream->raw < tape->frames[frame].raw) {
        rc = stream_open(stream, tape->window_log, err);
        stream->set = rc == DCP_OK;
        stream->begun = false;
        stream->frame = frame;
        stream->raw = tape->frames[frame].raw;
        stream->at = tape->frames[frame].at;
        stream->in_at = stream->n = 0;
    }
    stream->busy = rc == DCP_OK;
    stream->used = ++tape->clock;
    *out = stream;
    return rc;
}

/* A frame is over: where the next one begins. */
static int end_frame(struct dcp_tape *tape, struct tape_stream *stream,
                     struct dcp_error *err)
{
    struct tape_frame next = { stream->at - (stream->n - stream->in_at), stream->raw };

    stream->begun = false;
    stream->frame++;
    pthread_mutex_lock(&tape->lock);
    int rc = dcp_tape_note_frame(tape, stream->frame, next, err);
    pthread_mutex_unlock(&tape->lock);
    return rc;
}

/* More input. *out_end: there is none, and no frame is open. */
static int refill(struct dcp_tape *tape, struct tape_stream *stream, bool *out_end,
                  struct dcp_error *err)
{
    uint64_t left = tape->file_bytes - stream->at;
    size_t n = left < STREAM_IN ? (size_t)left : STREAM_IN;

    *out_end = n == 0 && !stream->begun;
    if (n == 0 && stream->begun)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is incomplete: it ends in the middle of a zstd frame",
                             tape->shown);
    int rc = n ? tape->store->ops->read_at(tape->store->self, tape->file, stream->at,
                                           stream->in, n, err)
               : DCP_OK;
    stream->at += n;
    stream->in_at = 0;
    stream->n = n;
    return rc;
}

/* Decodes at most n bytes to out. *out_end: the tape is at its end. */
static int decode(struct dcp_tape *tape, struct tape_stream *stream, void *out, size_t n,
                  bool *out_end, struct dcp_error *err)
{
    *out_end = false;
    if (stream->in_at == stream->n) {
        int rc = refill(tape, stream, out_end, err);
        if (rc || *out_end)
            return rc;
    }
    ZSTD_inBuffer in = { stream->in, stream->n, stream->in_at };
    ZSTD_outBuffer to = { out, n, 0 };
    size_t code = ZSTD_decompressStream(stream->zstd, &to, &in);
    if (ZSTD_isError(code))
        return dcp_tape_complain(tape, stream->at - (stream->n - in.pos), code, err);
    stream->in_at = in.pos;
    stream->raw += to.pos;
    stream->begun = true;
    return code == 0 ? end_frame(tape, stream, err) : DCP_OK;
}

/* Goes on to offset + n; *out_end as above. The lock is not held. */
static int advance(struct dcp_tape *tape, struct tape_stream *stream, uint64_t offset,
                   unsigned char *out, size_t n, bool *out_end, struct dcp_error *err)
{
    *out_end = false;
    while (stream->raw < offset + n && !*out_end) {
        bool skip = stream->raw < offset;
        uint64_t left = skip ? offset - stream->raw : offset + n - stream->raw;
        size_t most = skip && left > STREAM_IN ? STREAM_IN : (size_t)left;
        DCP_TRY(decode(tape, stream,
                       skip ? stream->in + STREAM_IN : out + (stream->raw - offset), most,
                       out_end, err));
    }
    return DCP_OK;
}

int dcp_tape_read_stream(struct dcp_tape *tape, uint64_t offset, void *out, size_t n,
                         size_t *out_n, struct dcp_error *err)
{
    struct tape_stream *stream;
    bool end = false;
    int rc = take_stream(tape, offset, &stream, err);

    *out_n = 0;
    if (rc)
        return rc;
    pthread_mutex_unlock(&tape->lock);
    rc = advance(tape, stream, offset, out, n, &end, err);
    pthread_mutex_lock(&tape->lock);
    if (!rc)
        *out_n = stream->raw > offset ? (size_t)(stream->raw - offset) : 0;
    tape->complete |= end;
    stream->set = rc == DCP_OK;
    stream->busy = false;
    pthread_cond_broadcast(&tape->change);
    return rc;
}

void dcp_tape_streams_fini(struct dcp_tape *tape)
{
    for (int s = 0; s < TAPE_STREAMS; s++) {
        ZSTD_freeDCtx(tape->streams[s].zstd);
        free(tape->streams[s].in);
    }
}
