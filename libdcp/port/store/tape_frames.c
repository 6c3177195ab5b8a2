/* Where the frames of a tape begin. The seek table is that of zstd's "seekable format"
 * (contrib/seekable_format/zstd_seekable_compression_format.md of its sources): a
 * skippable frame that ends the file,
 *
 *     4 bytes    0x184d2a5e
 *     4 bytes    size of what follows
 *     each frame 4 bytes stored size, 4 bytes raw size, and 4 bytes of a digest when
 *                bit 7 of the descriptor is set
 *     4 bytes    number of frames
 *     1 byte     descriptor
 *     4 bytes    0x8f92eab1
 *
 * What it says is checked twice: its sizes must add up to the file's, and every frame
 * that is read must begin, end and decode as it says. */
#include "base/bytes.h"
#include "base/mem.h"
#include "tape_own.h"
#include <inttypes.h>

#define TABLE_MAGIC 0x184d2a5eu
#define FOOTER_MAGIC 0x8f92eab1u
#define HEADER_BYTES 8
#define FOOTER_BYTES 9
#define RESERVED_BITS 0x7cu
#define DIGEST_BIT 0x80u
#define LEAST_FRAME 8 /* bytes of the shortest frame, an empty skippable one */
#define BATCH 4096    /* entries read at once */

struct table {
    uint64_t at, n; /* in the file; entries */
    size_t entry_bytes;
};

static int read_at(const struct dcp_tape *tape, uint64_t at, void *out, size_t n,
                   struct dcp_error *err)
{
    return tape->store->ops->read_at(tape->store->self, tape->file, at, out, n, err);
}

static int corrupt(const struct dcp_tape *tape, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "'%s' is corrupt: its seek table does not fit its frames",
                         tape->shown);
}

/* Finds the table by its last bytes; n = 0 and at = 0: there is none. */
static int find_table(const struct dcp_tape *tape, struct table *out,
                      struct dcp_error *err)
{
    unsigned char footer[FOOTER_BYTES], header[HEADER_BYTES];
    uint64_t size = tape->file_bytes;

    *out = (struct table){ 0 };
    if (size < HEADER_BYTES + FOOTER_BYTES)
        return DCP_OK;
    int rc = read_at(tape, size - FOOTER_BYTES, footer, sizeof footer, err);
    if (rc || dcp_le32(footer + 5) != FOOTER_MAGIC)
        return rc;
    uint64_t n = dcp_le32(footer);
    size_t entry_bytes = footer[4] & DIGEST_BIT ? 12 : 8;
    uint64_t bytes = HEADER_BYTES + n * entry_bytes + FOOTER_BYTES;
    if (bytes > size || n > TAPE_MAX_FRAMES || (footer[4] & RESERVED_BITS))
        return corrupt(tape, err);
    DCP_TRY(read_at(tape, size - bytes, header, sizeof header, err));
    if (dcp_le32(header) != TABLE_MAGIC || dcp_le32(header + 4) != bytes - HEADER_BYTES)
        return corrupt(tape, err);
    *out = (struct table){ size - bytes, n, entry_bytes };
    return DCP_OK;
}

int dcp_tape_read_table(struct dcp_tape *tape, bool *out_found, struct dcp_error *err)
{
    unsigned char batch[BATCH * 12];
    struct tape_frame next = { 0 };
    struct table table;
    int rc = find_table(tape, &table, err);

    *out_found = !rc && table.entry_bytes;
    if (rc || !*out_found)
        return rc;
    tape->frames = dcp_mem_calloc((size_t)table.n + 1, sizeof *tape->frames);
    if (!tape->frames)
        return dcp_error_memory(err, "the seek table of an archive");
    tape->cap_frames = (size_t)table.n + 1;
    for (uint64_t i = 0; i < table.n && !rc; i++) {
        size_t in_batch = (size_t)(i % BATCH);
        uint64_t left = table.n - i < BATCH ? table.n - i : BATCH;
        if (in_batch == 0)
            rc = read_at(tape, table.at + HEADER_BYTES + i * table.entry_bytes, batch,
                         (size_t)left * table.entry_bytes, err);
        const unsigned char *entry = batch + in_batch * table.entry_bytes;
        if (!rc && dcp_le32(entry) < LEAST_FRAME)
            rc = corrupt(tape, err);
        tape->frames[i] = next;
        next.at += rc ? 0 : dcp_le32(entry); /* 32 bits, 2^24 times: no wrap */
        next.raw += rc ? 0 : dcp_le32(entry + 4);
    }
    tape->frames[table.n] = next;
    tape->n_frames = (size_t)table.n + 1;
    tape->complete = true;
    return !rc && next.at != table.at ? corrupt(tape, err) : rc;
}

size_t dcp_tape_find_frame(const struct dcp_tape *tape, uint64_t offset)
{
    size_t low = 0, high = tape->n_frames - 1;

    while (low < high) {
        size_t middle = high - (high - low) / 2;
        if (tape->frames[middle].raw <= offset)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int dcp_tape_note_frame(struct dcp_tape *tape, size_t i, struct tape_frame frame,
                        struct dcp_error *err)
{
    if (i < tape->n_frames)
        return tape->frames[i].at == frame.at && tape->frames[i].raw == frame.raw
                   ? DCP_OK
                   : corrupt(tape, err);
    if (i >= TAPE_MAX_FRAMES)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "'%s' has more than %zu zstd frames",
                             tape->shown, TAPE_MAX_FRAMES);
    struct tape_frame *grown =
        dcp_mem_grow(tape->frames, &tape->cap_frames, tape->n_frames + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the frames of an archive");
    tape->frames = grown;
    grown[tape->n_frames++] = frame;
    return DCP_OK;
}
