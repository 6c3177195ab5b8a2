#include "proof.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

struct block {
    uint32_t crc;
    bool seen;
};

struct state {
    size_t first; /* of its blocks */
    uint64_t n_blocks, n_seen;
    size_t piece;  /* one that lies in it */
    uint32_t want; /* its CRC-32; 0: not known yet */
    bool broken;
};

struct dcp_proof {
    const struct dcp_catalog *catalog;
    struct state *records;
    struct block *blocks;
    size_t *order;        /* records by extent */
    int64_t *record_of;   /* of each piece; NULL: the catalog has no records */
    pthread_mutex_t lock; /* of records and blocks */
};

/* Where bytes are: in a file, or in what a stream of it decodes to. */
struct extent {
    int file;
    bool coded;
    uint64_t stream, at, n;
};

static struct extent extent_of_record(const struct dcp_record *r)
{
    bool coded = r->codec != DCP_CODEC_NONE;

    return (struct extent){ r->file, coded, coded ? r->offset : 0,
                            coded ? r->skip : r->offset, r->size_bytes };
}

static struct extent extent_of_piece(const struct dcp_catalog *catalog, size_t piece)
{
    const struct dcp_piece *p = &catalog->pieces[piece];
    bool coded = p->codec >= DCP_N_CODECS;

    return (struct extent){ p->file, coded, coded ? p->offset : 0,
                            coded ? p->skip : p->offset, dcp_piece_span(catalog, p) };
}

static int compare(const struct extent *a, const struct extent *b)
{
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a->coded != b->coded)
        return a->coded ? 1 : -1;
    if (a->stream != b->stream)
        return a->stream < b->stream ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

static int by_place(const void *a, const void *b, void *arg)
{
    const struct dcp_catalog *catalog = arg;
    struct extent x = extent_of_record(&catalog->records[*(const size_t *)a]);
    struct extent y = extent_of_record(&catalog->records[*(const size_t *)b]);

    return compare(&x, &y);
}

/* The last record that begins at a piece or before it, when the piece lies in it. */
static int64_t find_record(const struct dcp_proof *proof, size_t p)
{
    const struct dcp_record *records = proof->catalog->records;
    const struct dcp_piece *piece = &proof->catalog->pieces[p];
    struct extent wanted = extent_of_piece(proof->catalog, p), found;
    size_t lo = 0, hi = proof->catalog->n_records;

    if (piece->file < 0 || (piece->codec != DCP_CODEC_NONE && !wanted.coded))
        return DCP_NO_RECORD;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        found = extent_of_record(&records[proof->order[mid]]);
        if (compare(&found, &wanted) <= 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0)
        return DCP_NO_RECORD;
    found = extent_of_record(&records[proof->order[lo - 1]]);
    if (found.file != wanted.file || found.coded != wanted.coded ||
        found.stream != wanted.stream || wanted.at - found.at > found.n ||
        wanted.n > found.n - (wanted.at - found.at))
        return DCP_NO_RECORD;
    return (int64_t)proof->order[lo - 1];
}

static uint64_t n_blocks_of(const struct dcp_record *record)
{
    return record->size_bytes / DCP_BLOCK_BYTES +
           (record->size_bytes % DCP_BLOCK_BYTES != 0);
}

static bool link_pieces(struct dcp_proof *proof)
{
    const struct dcp_catalog *catalog = proof->catalog;
    size_t n = catalog->n_records;
    uint64_t n_blocks = 0;

    proof->record_of = dcp_mem_calloc(catalog->n_pieces, sizeof *proof->record_of);
    proof->records = dcp_mem_calloc(n, sizeof *proof->records);
    proof->order = dcp_mem_calloc(n, sizeof *proof->order);
    if (!proof->record_of || !proof->records || !proof->order)
        return false;
    for (size_t r = 0; r < n; r++) {
        struct state *state = &proof->records[r];
        *state = (struct state){ .first = (size_t)n_blocks,
                                 .n_blocks = n_blocks_of(&catalog->records[r]),
                                 .piece = catalog->n_pieces,
                                 .want = catalog->records[r].crc32 };
        if (__builtin_add_overflow(n_blocks, state->n_blocks, &n_blocks))
            return false;
        proof->order[r] = r;
    }
    qsort_r(proof->order, n, sizeof *proof->order, by_place, (void *)(uintptr_t)catalog);
    for (size_t p = catalog->n_pieces; p-- > 0;) {
        proof->record_of[p] = find_record(proof, p);
        if (proof->record_of[p] >= 0)
            proof->records[proof->record_of[p]].piece = p;
    }
    proof->blocks = dcp_mem_calloc((size_t)n_blocks, sizeof *proof->blocks);
    return proof->blocks;
}

int dcp_proof_new(const struct dcp_catalog *catalog, struct dcp_proof **out_proof,
                  struct dcp_error *err)
{
    struct dcp_proof *proof = calloc(1, sizeof *proof);

    *out_proof = NULL;
    if (!proof)
        return dcp_error_memory(err, "the checksums of a checkpoint");
    proof->catalog = catalog;
    pthread_mutex_init(&proof->lock, NULL);
    if (catalog->n_records && !link_pieces(proof)) {
        dcp_proof_free(proof);
        return dcp_error_memory(err, "the checksums of a checkpoint");
    }
    *out_proof = proof;
    return DCP_OK;
}

void dcp_proof_free(struct dcp_proof *proof)
{
    if (!proof)
        return;
    pthread_mutex_destroy(&proof->lock);
    free(proof->records);
    free(proof->blocks);
    free(proof->order);
    free(proof->record_of);
    free(proof);
}

int64_t dcp_proof_record(const struct dcp_proof *proof, size_t piece, uint64_t *out_at)
{
    if (!proof->record_of || proof->record_of[piece] < 0)
        return DCP_NO_RECORD;
    struct extent of = extent_of_piece(proof->catalog, piece);
    struct extent in =
        extent_of_record(&proof->catalog->records[proof->record_of[piece]]);
    *out_at = of.at - in.at;
    return proof->record_of[piece];
}

static int complain(const struct dcp_proof *proof, size_t r, const char *what,
                    struct dcp_error *err)
{
    const struct dcp_catalog *catalog = proof->catalog;
    const struct dcp_record *record = &catalog->records[r];
    size_t piece = proof->records[r].piece;
    const char *name = DCP_SHOWN(record->name);
    const char *file = DCP_SHOWN(catalog->files[record->file].name);

    dcp_error_file(err, catalog->files[record->file].name);
    if (piece == catalog->n_pieces)
        return dcp_error_set(
            err, DCP_E_CORRUPT,
            "the record '%s' of '%s' is corrupt: %s (bytes %" PRIu64 "..%" PRIu64 ")",
            name, file, what, record->offset, record->offset + record->stored_size - 1);
    const char *full = catalog->tensors[catalog->pieces[piece].tensor].name;
    return dcp_error_of_tensor(
        err, DCP_E_CORRUPT, full,
        "tensor '%s' is corrupt: %s (file '%s', record '%s', bytes %" PRIu64 "..%" PRIu64
        ")",
        DCP_SHOWN(full), what, file, name, record->offset,
        record->offset + record->stored_size - 1);
}

static uint32_t crc_of(const struct dcp_proof *proof, size_t r)
{
    const struct state *state = &proof->records[r];
    uint64_t left = proof->catalog->records[r].size_bytes;
    uint32_t crc = 0;

    for (uint64_t b = 0; b < state->n_blocks; b++) {
        uint64_t n = left < DCP_BLOCK_BYTES ? left : DCP_BLOCK_BYTES;
        crc = dcp_hash_crc32_combine(crc, proof->blocks[state->first + b].crc, n);
        left -= n;
    }
    return crc;
}

/* A block with that CRC-32 was read. */
static int note(struct dcp_proof *proof, size_t r, uint64_t b, uint32_t crc,
                const uint32_t *crc32, struct dcp_error *err)
{
    struct state *state = &proof->records[r];
    struct block *block = &proof->blocks[state->first + b];
    const char *what = NULL;

    pthread_mutex_lock(&proof->lock);
    if (block->seen) {
        what = block->crc == crc ? NULL : "what was read of it has changed";
    } else {
        *block = (struct block){ crc, true };
        state->want = crc32 ? *crc32 : state->want;
        if (++state->n_seen == state->n_blocks && state->want &&
            crc_of(proof, r) != state->want)
            what = "its CRC-32 differs";
    }
    state->broken = state->broken || what;
    pthread_mutex_unlock(&proof->lock);
    return what ? complain(proof, r, what, err) : DCP_OK;
}

int dcp_proof_add(struct dcp_proof *proof, size_t r, uint64_t b, const void *data,
                  size_t n, const uint32_t *crc32, struct dcp_error *err)
{
    return note(proof, r, b, dcp_hash_crc32(0, data, n), crc32, err);
}

void dcp_proof_break(struct dcp_proof *proof, size_t r, struct dcp_error *err)
{
    char what[sizeof err->message];

    pthread_mutex_lock(&proof->lock);
    proof->records[r].broken = true;
    pthread_mutex_unlock(&proof->lock);
    snprintf(what, sizeof what, "%s", err ? err->message : "");
    complain(proof, r, what, err);
}

bool dcp_proof_has(const struct dcp_proof *proof, size_t r, uint64_t block)
{
    return proof->blocks[proof->records[r].first + block].seen;
}

int dcp_proof_open(const struct dcp_proof *proof, bool all, size_t **out_records,
                   size_t *out_n, struct dcp_error *err)
{
    size_t n = proof->catalog->n_records;

    *out_n = 0;
    *out_records = dcp_mem_calloc(n + 1, sizeof **out_records);
    if (!*out_records)
        return dcp_error_memory(err, "the checksums of a checkpoint");
    for (size_t r = 0; r < n; r++) {
        const struct state *state = &proof->records[r];
        if (state->n_seen < state->n_blocks && (all || state->n_seen))
            (*out_records)[(*out_n)++] = r;
    }
    return DCP_OK;
}

bool dcp_proof_is_broken(const struct dcp_proof *proof, size_t record)
{
    return proof->records[record].broken;
}

size_t dcp_proof_first_piece(const struct dcp_proof *proof, size_t record)
{
    return proof->records[record].piece;
}

bool dcp_proof_covers(const struct dcp_proof *proof, const struct dcp_tensor *tensor)
{
    bool all = tensor->n_pieces > 0 || !tensor->n_elems;

    for (size_t i = 0; i < tensor->n_pieces && all; i++) {
        size_t p = tensor->first_piece + i;
        const struct dcp_piece *piece = &proof->catalog->pieces[p];
        bool in_memory = piece->file < 0; /* it was in a record that was read whole */
        all = piece->has_crc || piece->blocks || !tensor->n_elems ||
              (proof->record_of && (in_memory || proof->record_of[p] >= 0));
    }
    return all || tensor->has_fingerprint;
}

/* -- from one process to another ---------------------------------------------------- */

/* Blocks first .. first + n were read, and neither the one before nor the one behind. */
static uint64_t run_from(const struct dcp_proof *proof, const struct state *state,
                         uint64_t *first)
{
    uint64_t n = 0;

    while (*first < state->n_blocks && !proof->blocks[state->first + *first].seen)
        ++*first;
    while (*first + n < state->n_blocks && proof->blocks[state->first + *first + n].seen)
        n++;
    return n;
}

static void pack_record(const struct dcp_proof *proof, size_t r, struct dcp_buf *buf)
{
    const struct state *state = &proof->records[r];
    uint64_t first = 0, n;

    dcp_buf_add_le64(buf, r);
    dcp_buf_add_le32(buf, state->want);
    for (; (n = run_from(proof, state, &first)); first += n) {
        dcp_buf_add_le64(buf, n);
        dcp_buf_add_le64(buf, first);
        for (uint64_t b = 0; b < n; b++)
            dcp_buf_add_le32(buf, proof->blocks[state->first + first + b].crc);
    }
    dcp_buf_add_le64(buf, 0);
}

void dcp_proof_pack(const struct dcp_proof *proof, struct dcp_buf *buf)
{
    uint64_t n = 0;

    for (size_t r = 0; r < proof->catalog->n_records; r++)
        n += proof->records[r].n_seen > 0;
    dcp_buf_add_le64(buf, n);
    for (size_t r = 0; r < proof->catalog->n_records; r++)
        if (proof->records[r].n_seen)
            pack_record(proof, r, buf);
}

static int bad(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "what is told of a source's checksums is none of that source");
}

static int unpack_record(struct dcp_proof *proof, struct dcp_cursor *in,
                         struct dcp_error *err)
{
    uint64_t r = dcp_cursor_le64(in), n;
    uint32_t want = dcp_cursor_le32(in);

    if (in->bad || r >= proof->catalog->n_records)
        return bad(err);
    struct state *state = &proof->records[r];
    while ((n = dcp_cursor_le64(in))) {
        uint64_t first = dcp_cursor_le64(in);
        if (in->bad || first >= state->n_blocks || n > state->n_blocks - first ||
            n > dcp_cursor_left(in) / 4)
            return bad(err);
        for (uint64_t b = 0; b < n; b++)
            DCP_TRY(note(proof, (size_t)r, first + b, dcp_cursor_le32(in),
                         want ? &want : NULL, err));
    }
    return DCP_OK;
}

int dcp_proof_unpack(struct dcp_proof *proof, struct dcp_cursor *in,
                     struct dcp_error *err)
{
    uint64_t n = dcp_cursor_le64(in);
    int rc = DCP_OK;

    for (uint64_t i = 0; i < n && !rc && !in->bad; i++)
        rc = unpack_record(proof, in, err);
    return !rc && in->bad ? bad(err) : rc;
}
