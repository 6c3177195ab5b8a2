#include "tape.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "tape_own.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zstd_errors.h>

#define MOST_WINDOW_LOG 27 /* of TAPE_WINDOW_BYTES: also what zstd -d takes */
#define USUAL_WINDOW_LOG 23
#define HEAD_BYTES 16
#define SKIPPABLE 0x184d2a50u /* and the 15 numbers behind it */

static bool is_zstd(const unsigned char head[HEAD_BYTES])
{
    uint32_t magic = dcp_le32(head);

    return magic == ZSTD_MAGICNUMBER || (magic & ~15u) == SKIPPABLE;
}

/* The first bytes of a file, zeros behind its end. */
static int read_head(const struct dcp_store *store, const char *name,
                     struct dcp_store_file *file, unsigned char head[HEAD_BYTES],
                     uint64_t *out_size, struct dcp_error *err)
{
    bool is_dir;
    int rc = store->ops->stat(store->self, name, &is_dir, out_size, err);

    memset(head, 0, HEAD_BYTES);
    if (!rc && is_dir)
        rc = dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s/%s' is a folder", store->root,
                           name);
    size_t n = !rc && *out_size < HEAD_BYTES ? (size_t)*out_size : HEAD_BYTES;
    return rc || n == 0 ? rc : store->ops->read_at(store->self, file, 0, head, n, err);
}

bool dcp_tape_is_zstd(const struct dcp_store *store, const char *name)
{
    unsigned char head[HEAD_BYTES];
    struct dcp_store_file *file;
    uint64_t size;

    if (store->ops->open(store->self, name, &file, NULL))
        return false;
    int rc = read_head(store, name, file, head, &size, NULL);
    store->ops->close(store->self, file, NULL);
    return !rc && is_zstd(head);
}

/* How far back the frame with this head refers; RFC 8878, 3.1.1.1. */
static uint64_t window_of(const unsigned char head[HEAD_BYTES])
{
    bool single = head[4] & 0x20;
    uint64_t base = (uint64_t)1 << (10 + (head[5] >> 3));
    unsigned long long content = ZSTD_getFrameContentSize(head, HEAD_BYTES);

    if (dcp_le32(head) != ZSTD_MAGICNUMBER)
        return 0;
    return single ? content : base + base / 8 * (head[5] & 7);
}

/* The larger the window, the fewer streams. */
static void size_streams(struct dcp_tape *tape, const unsigned char head[HEAD_BYTES])
{
    bool large = window_of(head) > (uint64_t)1 << USUAL_WINDOW_LOG;

    tape->window_log = large ? MOST_WINDOW_LOG : USUAL_WINDOW_LOG;
    tape->n_streams = large ? 1 : TAPE_STREAMS;
}

static int open_zstd(struct dcp_tape *tape, const unsigned char head[HEAD_BYTES],
                     struct dcp_error *err)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN) * 2;
    bool found;

    size_streams(tape, head);
    tape->n_slots = n < 8 ? 8 : n > 32 ? 32 : (int)n;
    tape->slots = dcp_mem_calloc((size_t)tape->n_slots, sizeof *tape->slots);
    if (!tape->slots)
        return dcp_error_memory(err, "the frames of an archive");
    int rc = dcp_tape_read_table(tape, &found, err);
    if (rc || found)
        return rc;
    return dcp_tape_note_frame(tape, 0, (struct tape_frame){ 0 }, err);
}

int dcp_tape_new(const struct dcp_store *store, const char *name,
                 struct dcp_tape **out_tape, struct dcp_error *err)
{
    struct dcp_tape *tape = calloc(1, sizeof *tape);
    size_t n = strlen(store->root) + strlen(name) + 2;
    unsigned char head[HEAD_BYTES];

    *out_tape = NULL;
    if (!tape)
        return dcp_error_memory(err, "an archive");
    tape->store = store;
    pthread_mutex_init(&tape->lock, NULL);
    pthread_cond_init(&tape->change, NULL);
    tape->shown = malloc(n);
    int rc = tape->shown ? store->ops->open(store->self, name, &tape->file, err)
                         : dcp_error_memory(err, "an archive");
    if (!rc) {
        snprintf(tape->shown, n, "%s/%s", store->root, name);
        rc = read_head(store, name, tape->file, head, &tape->file_bytes, err);
    }
    if (!rc && (tape->is_zstd = is_zstd(head)))
        rc = open_zstd(tape, head, err);
    if (rc) {
        dcp_tape_free(tape);
        return rc;
    }
    *out_tape = tape;
    return DCP_OK;
}

void dcp_tape_free(struct dcp_tape *tape)
{
    if (!tape)
        return;
    if (tape->file)
        tape->store->ops->close(tape->store->self, tape->file, NULL);
    dcp_tape_kept_fini(tape);
    dcp_tape_streams_fini(tape);
    free(tape->frames);
    free(tape->shown);
    pthread_cond_destroy(&tape->change);
    pthread_mutex_destroy(&tape->lock);
    free(tape);
}

const char *dcp_tape_shown(const struct dcp_tape *tape)
{
    return tape->shown;
}

uint64_t dcp_tape_bytes(struct dcp_tape *tape)
{
    uint64_t bytes = tape->file_bytes;

    if (!tape->is_zstd)
        return bytes;
    pthread_mutex_lock(&tape->lock);
    bytes = tape->complete ? tape->frames[tape->n_frames - 1].raw : UINT64_MAX;
    pthread_mutex_unlock(&tape->lock);
    return bytes;
}

static int read_plain(struct dcp_tape *tape, uint64_t offset, void *out, size_t n,
                      size_t *out_n, struct dcp_error *err)
{
    uint64_t left = offset < tape->file_bytes ? tape->file_bytes - offset : 0;

    *out_n = n < left ? n : (size_t)left;
    return *out_n ? tape->store->ops->read_at(tape->store->self, tape->file, offset, out,
                                              *out_n, err)
                  : DCP_OK;
}

int dcp_tape_read(struct dcp_tape *tape, uint64_t offset, void *out, size_t n,
                  size_t *out_n, struct dcp_error *err)
{
    unsigned char *to = out;
    size_t done = 0, got = 1;
    int rc = DCP_OK;

    *out_n = 0;
    if (!tape->is_zstd)
        return read_plain(tape, offset, out, n, out_n, err);
    pthread_mutex_lock(&tape->lock);
    while (done < n && got && !rc) {
        uint64_t at = offset + done;
        size_t i = dcp_tape_find_frame(tape, at), last = tape->n_frames - 1;
        uint64_t left = i < last ? tape->frames[i + 1].raw - at : UINT64_MAX;
        got = n - done < left ? n - done : (size_t)left;
        if (i == last && tape->complete)
            break;
        if (dcp_tape_is_small(tape, i))
            rc = dcp_tape_read_kept(tape, i, at, to + done, got, err);
        else
            rc = dcp_tape_read_stream(tape, at, to + done, got, &got, err);
        done += rc ? 0 : got;
    }
    pthread_mutex_unlock(&tape->lock);
    *out_n = rc ? 0 : done;
    return rc;
}

int dcp_tape_complain(const struct dcp_tape *tape, uint64_t at, size_t zstd_code,
                      struct dcp_error *err)
{
    switch (ZSTD_getErrorCode(zstd_code)) {
    case ZSTD_error_memory_allocation:
        return dcp_error_memory(err, "the decompression of an archive");
    case ZSTD_error_frameParameter_windowTooLarge:
        dcp_error_set(err, DCP_E_UNSUPPORTED,
                      "'%s' was compressed with a window of more than %zu MiB, which"
                      " needs too much memory",
                      tape->shown, TAPE_WINDOW_BYTES >> 20);
        dcp_error_hint(err, "unpack it with 'tar -I \"zstd -d --long=31\" -xf'");
        return DCP_E_UNSUPPORTED;
    default:
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is corrupt: the zstd frame at byte %" PRIu64
                             " does not decode (%s)",
                             tape->shown, at, ZSTD_getErrorName(zstd_code));
    }
}
