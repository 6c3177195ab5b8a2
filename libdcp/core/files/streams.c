#include "streams.h"
#include "base/decoder.h"
#include "base/mem.h"

void dcp_streams_init(struct dcp_streams *s, struct dcp_files *files)
{
    *s = (struct dcp_streams){ .files = files };
}

static void drop(struct dcp_stream_slot *slot)
{
    dcp_decoder_free(slot->decoder);
    *slot = (struct dcp_stream_slot){ .file = -1 };
}

void dcp_streams_fini(struct dcp_streams *s)
{
    for (int i = 0; i < DCP_MAX_STREAMS; i++)
        drop(&s->slots[i]);
}

static int read_coded(void *self, uint64_t at, void *out, size_t n, struct dcp_error *err)
{
    const struct dcp_stream_slot *slot = self;

    return dcp_files_read(slot->streams->files, slot->file, slot->offset + at, n, out,
                          err);
}

/* The decoder of an extent, at or before a decoded byte. */
static int slot_at(struct dcp_streams *s, const struct dcp_extent *extent, uint64_t at,
                   struct dcp_stream_slot **out, struct dcp_error *err)
{
    struct dcp_stream_slot *slot = &s->slots[0];
    bool found = false;

    for (int i = 0; i < DCP_MAX_STREAMS && !found; i++) {
        struct dcp_stream_slot *other = &s->slots[i];
        found = other->decoder && other->file == extent->file &&
                other->offset == extent->offset;
        if (found || other->used < slot->used)
            slot = other;
    }
    if (!found || dcp_decoder_at(slot->decoder) > at) {
        const struct dcp_decoder_input input = { slot, read_coded, extent->stored_size };
        drop(slot);
        *slot = (struct dcp_stream_slot){ .streams = s,
                                          .file = extent->file,
                                          .offset = extent->offset };
        DCP_TRY(dcp_decoder_new(
            extent->codec == DCP_CODEC_ZSTD_STREAM ? DCP_DECODE_ZSTD : DCP_DECODE_DEFLATE,
            &input, &slot->decoder, err));
    }
    slot->used = ++s->clock;
    *out = slot;
    return DCP_OK;
}

int dcp_streams_read(struct dcp_streams *s, const struct dcp_extent *extent, uint64_t at,
                     size_t n, void *out, struct dcp_error *err)
{
    struct dcp_stream_slot *slot = NULL;

    DCP_TRY(slot_at(s, extent, extent->skip + at, &slot, err));
    int rc = dcp_decoder_read(slot->decoder, NULL,
                              extent->skip + at - dcp_decoder_at(slot->decoder), err);
    if (!rc)
        rc = dcp_decoder_read(slot->decoder, out, n, err);
    if (rc)
        drop(slot);
    return rc;
}
