/* Small frames, decoded whole and kept as long as there is room. */
#include "base/mem.h"
#include "tape_own.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool dcp_tape_is_small(const struct dcp_tape *tape, size_t i)
{
    return i + 1 < tape->n_frames &&
           tape->frames[i + 1].raw - tape->frames[i].raw <= TAPE_FRAME_BYTES &&
           tape->frames[i + 1].at - tape->frames[i].at <=
               ZSTD_compressBound(TAPE_FRAME_BYTES);
}

static void decoder_free(struct tape_decoder *decoder)
{
    if (!decoder)
        return;
    ZSTD_freeDCtx(decoder->zstd);
    free(decoder->stored);
    free(decoder);
}

static struct tape_decoder *decoder_new(void)
{
    struct tape_decoder *decoder = calloc(1, sizeof *decoder);

    if (!decoder)
        return NULL;
    decoder->zstd = ZSTD_createDCtx();
    decoder->stored = malloc(ZSTD_compressBound(TAPE_FRAME_BYTES));
    if (decoder->zstd && decoder->stored)
        return decoder;
    decoder_free(decoder);
    return NULL;
}

/* Reads and decodes a frame into a slot. The lock is not held. */
static int load(struct dcp_tape *tape, struct tape_decoder *decoder,
                struct tape_slot *slot, struct tape_frame end, struct dcp_error *err)
{
    uint64_t at = slot->frame.at;
    size_t raw_n = (size_t)(end.raw - slot->frame.raw), n = (size_t)(end.at - at);

    if (!slot->data && !(slot->data = malloc(TAPE_FRAME_BYTES)))
        return dcp_error_memory(err, "a frame of an archive");
    DCP_TRY(tape->store->ops->read_at(tape->store->self, tape->file, at, decoder->stored,
                                      n, err));
    size_t got =
        ZSTD_decompressDCtx(decoder->zstd, slot->data, raw_n, decoder->stored, n);
    if (ZSTD_isError(got))
        return dcp_tape_complain(tape, at, got, err);
    if (got != raw_n)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' is corrupt: the zstd frame at byte %" PRIu64
                             " holds %zu bytes, its seek table says %zu",
                             tape->shown, at, got, raw_n);
    return DCP_OK;
}

/* The slot that holds frame i, or one to load it into, or NULL: all are in use. */
static struct tape_slot *find_slot(struct dcp_tape *tape, struct tape_frame frame)
{
    struct tape_slot *victim = NULL;

    for (int s = 0; s < tape->n_slots; s++) {
        struct tape_slot *slot = &tape->slots[s];
        if ((slot->full || slot->loading) && slot->frame.raw == frame.raw &&
            slot->frame.at == frame.at)
            return slot;
        if (!slot->loading && !slot->pins && (!victim || slot->used < victim->used))
            victim = slot;
    }
    return victim;
}

/* Gives up the lock while it decodes. */
static int fill_slot(struct dcp_tape *tape, struct tape_slot *slot, size_t i,
                     struct dcp_error *err)
{
    struct tape_frame end = tape->frames[i + 1];
    struct tape_decoder *decoder = tape->decoders;

    slot->frame = tape->frames[i];
    slot->full = false;
    slot->loading = true;
    if (decoder)
        tape->decoders = decoder->next;
    pthread_mutex_unlock(&tape->lock);
    if (!decoder)
        decoder = decoder_new();
    int rc = decoder ? load(tape, decoder, slot, end, err)
                     : dcp_error_memory(err, "the decompression of an archive");
    pthread_mutex_lock(&tape->lock);
    if (decoder) {
        decoder->next = tape->decoders;
        tape->decoders = decoder;
    }
    slot->loading = false;
    slot->full = rc == DCP_OK;
    pthread_cond_broadcast(&tape->change);
    return rc;
}

int dcp_tape_read_kept(struct dcp_tape *tape, size_t i, uint64_t offset, void *out,
                       size_t n, struct dcp_error *err)
{
    struct tape_frame frame = tape->frames[i];
    struct tape_slot *slot;

    for (;;) {
        slot = find_slot(tape, frame);
        bool holds = slot && slot->frame.at == frame.at && slot->frame.raw == frame.raw;
        if (holds && slot->full)
            break;
        if (!slot || slot->loading) {
            pthread_cond_wait(&tape->change, &tape->lock);
            continue;
        }
        DCP_TRY(fill_slot(tape, slot, i, err));
    }
    slot->used = ++tape->clock;
    slot->pins++;
    pthread_mutex_unlock(&tape->lock);
    memcpy(out, slot->data + (offset - frame.raw), n);
    pthread_mutex_lock(&tape->lock);
    slot->pins--;
    pthread_cond_broadcast(&tape->change);
    return DCP_OK;
}

void dcp_tape_kept_fini(struct dcp_tape *tape)
{
    for (int s = 0; tape->slots && s < tape->n_slots; s++)
        free(tape->slots[s].data);
    free(tape->slots);
    while (tape->decoders) {
        struct tape_decoder *next = tape->decoders->next;
        decoder_free(tape->decoders);
        tape->decoders = next;
    }
}
