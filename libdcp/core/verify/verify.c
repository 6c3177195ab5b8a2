/* verify: reads everything and believes nothing. Continues after an error, and names all
 * of it. */
#include "base/hash.h"
#include "base/mem.h"
#include "base/pool.h"
#include "core/catalog/order.h"
#include "core/catalog/region.h"
#include "core/files/files.h"
#include "core/integrity/fingerprint.h"
#include "core/read/blocks.h"
#include "core/run/pin.h"
#include "delta.h"
#include "findings.h"
#include "lost.h"
#include "parity.h"
#include "whole.h"
#include <dcp/checkpoint.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define WORKER_CACHE ((uint64_t)4 << 20)

struct worker {
    struct dcp_blocks *blocks;
    unsigned char *buffer; /* a block, or DCP_VERIFY_WHOLE_BYTES */
};

struct verify {
    const struct dcp_source *source;
    struct dcp_catalog *catalog; /* texts of findings are kept in it, under the lock */
    const struct dcp_verify_options *options;
    struct dcp_finding *findings;
    size_t n_findings, cap;
    struct worker *workers;
    int n_workers;
    struct dcp_proof *proof; /* of records, */
    size_t *open;            /* of which these were not read whole by pieces */
    size_t *order;           /* pieces as they lie in files, which are read in turn */
    uint64_t *before;        /* by piece: bytes of those before it in that order */
    uint64_t begin, end;     /* of the bytes in that order: what is read */
    pthread_mutex_t lock;    /* of findings and progress */
    _Atomic uint64_t *parts; /* fingerprint parts, by tensor */
    _Atomic bool *broken;    /* by tensor: corruption is reported already */
    bool *unread;            /* by file: reported as a whole, under the lock */
    uint64_t done_bytes, total_bytes, n_blocks;
};

/* Under the lock. */
static int append_finding(struct verify *v, struct dcp_finding finding,
                          struct dcp_error *err)
{
    struct dcp_finding *grown =
        dcp_mem_grow(v->findings, &v->cap, v->n_findings + 1, sizeof finding);
    if (!grown)
        return dcp_error_memory(err, "the list of findings");
    v->findings = grown;
    grown[v->n_findings++] = finding;
    return DCP_OK;
}

static int add_finding(struct verify *v, struct dcp_finding finding,
                       struct dcp_error *err)
{
    pthread_mutex_lock(&v->lock);
    int rc = append_finding(v, finding, err);
    pthread_mutex_unlock(&v->lock);
    return rc;
}

/* A file that cannot be read is one finding, however many blocks lie in it. */
static int add_unread(struct verify *v, int file, const struct dcp_error *why,
                      struct dcp_error *err)
{
    struct dcp_finding finding = { .code = why->code,
                                   .file = v->catalog->files[file].name };
    char text[DCP_VERIFY_WHY_CAP];
    int rc = DCP_OK;

    dcp_verify_why(why, text);
    pthread_mutex_lock(&v->lock);
    if (!v->unread[file]) {
        finding.what = dcp_catalog_text(v->catalog, text);
        rc = finding.what ? append_finding(v, finding, err)
                          : dcp_error_memory(err, "the list of findings");
        v->unread[file] = true;
    }
    pthread_mutex_unlock(&v->lock);
    return rc;
}

static int add_in_piece(struct verify *v, const struct dcp_piece *piece, uint64_t begin,
                        uint64_t n, const char *what, struct dcp_error *err)
{
    struct dcp_finding finding = { .code = DCP_E_CORRUPT, .what = what };

    finding.file = piece->file >= 0 ? v->catalog->files[piece->file].name : NULL;
    finding.tensor = v->catalog->tensors[piece->tensor].name;
    finding.offset = piece->offset;
    finding.size_bytes = piece->stored_size;
    if (n <= DCP_BLOCK_BYTES) /* not all of a larger piece, but one block */
        dcp_blocks_extent(piece, begin / DCP_BLOCK_BYTES, n, &finding.offset,
                          &finding.size_bytes);
    if (n) /* else it has no elements: begin == end */
        dcp_blocks_locate(v->catalog, piece, begin, n, &finding.begin, &finding.end);
    finding.end += n > 0;
    v->broken[piece->tensor] = true;
    return add_finding(v, finding, err);
}

static int progress(struct verify *v, uint64_t n, uint64_t blocks, struct dcp_error *err)
{
    const struct dcp_progress *progress = &v->options->progress;

    pthread_mutex_lock(&v->lock);
    v->done_bytes += n;
    v->n_blocks += blocks;
    bool stop = progress->report &&
                progress->report(progress->self, v->done_bytes, v->total_bytes);
    pthread_mutex_unlock(&v->lock);
    return stop ? dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted") : DCP_OK;
}

static bool is_part(const struct verify *v)
{
    return v->options->to > 0;
}

/* A piece of a file that is lost: all of it. Told once for the whole file, and for each
 * piece. */
static int lose_piece(struct verify *v, size_t p, struct dcp_error *err)
{
    const struct dcp_piece *piece = &v->catalog->pieces[p];
    const struct dcp_file *file = &v->catalog->files[piece->file];
    uint64_t bytes = dcp_piece_span(v->catalog, piece);
    struct dcp_finding finding = { .code = file->lost,
                                   .file = file->name,
                                   .tensor = v->catalog->tensors[piece->tensor].name,
                                   .offset = piece->offset,
                                   .size_bytes = piece->stored_size,
                                   .what = "it is lost with its file",
                                   .with_file = true };

    v->broken[piece->tensor] = true;
    if (!bytes)
        return DCP_OK;
    dcp_blocks_locate(v->catalog, piece, 0, bytes, &finding.begin, &finding.end);
    finding.end++;
    return add_finding(v, finding, err);
}

static int verify_piece(struct verify *v, struct worker *worker, size_t p,
                        struct dcp_error *err)
{
    const struct dcp_piece *piece = &v->catalog->pieces[p];
    const struct dcp_tensor *tensor = &v->catalog->tensors[piece->tensor];
    uint64_t bytes = dcp_piece_span(v->catalog, piece), crc = 0, part = 0, in_record;
    bool recorded = dcp_proof_record(v->proof, p, &in_record) != DCP_NO_RECORD;
    size_t elem = dcp_dtype_size(tensor->dtype);
    bool corrupt = false;
    int rc = DCP_OK;

    for (uint64_t at = 0; at < bytes && !rc; at += DCP_BLOCK_BYTES) {
        size_t n = (size_t)(bytes - at < DCP_BLOCK_BYTES ? bytes - at : DCP_BLOCK_BYTES);
        struct dcp_error why = { 0 };
        uint64_t place = v->before[p] + at;
        if (place < v->begin || place >= v->end)
            continue;
        int bad = dcp_blocks_read(worker->blocks, p, at, n, worker->buffer, &why);
        if (bad == DCP_E_MEMORY)
            return dcp_error_memory(err, "a verification");
        if (bad) {
            v->broken[piece->tensor] = true;
            rc = bad == DCP_E_CORRUPT && recorded ? DCP_OK /* told with its record */
                 : bad == DCP_E_CORRUPT
                     ? add_in_piece(v, piece, at, n, "the block digest differs", err)
                     : add_unread(v, piece->file, &why, err);
            corrupt = true;
        } else if (!corrupt && !piece->stride) {
            uint64_t block_crc = dcp_hash_crc64(0, worker->buffer, n);
            crc = dcp_hash_crc64_combine(crc, block_crc, n);
            part ^= dcp_fingerprint_part(tensor, &piece->region, (int64_t)(at / elem),
                                         (int64_t)(n / elem), worker->buffer, block_crc);
        }
        if (!rc)
            rc = progress(v, n, 1, err);
    }
    bool differs = piece->has_crc && !piece->stride && crc != piece->crc;
    if (!rc && !corrupt && differs && !is_part(v))
        rc = add_in_piece(v, piece, 0, bytes, "the digest of the piece differs", err);
    /* Pieces are sorted: of replicas the first counts. */
    bool replica =
        p > tensor->first_piece &&
        !dcp_region_order(tensor, &v->catalog->pieces[p - 1].region, &piece->region);
    if (!replica)
        atomic_fetch_xor(&v->parts[piece->tensor], part);
    return rc;
}

static int piece_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    struct verify *v = arg;
    const struct dcp_piece *piece = &v->catalog->pieces[v->order[i]];

    if (piece->file >= 0 && v->catalog->files[piece->file].lost)
        return lose_piece(v, v->order[i], err);
    return verify_piece(v, &v->workers[worker], v->order[i], err);
}

/* What was not read of the records of other programs' formats, for their checksums. */
static int record_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    struct verify *v = arg;
    size_t r = v->open[i];
    struct dcp_error why = { 0 };
    int bad = dcp_blocks_read_rest(v->workers[worker].blocks, r, &why);

    if (bad == DCP_E_MEMORY)
        return dcp_error_memory(err, "a verification");
    if (bad && bad != DCP_E_CORRUPT)
        return add_unread(v, v->catalog->records[r].file, &why, err);
    return progress(v, 0, 0, err);
}

/* A corrupt record is told of once for each piece in it, or for itself. */
static int check_records(struct verify *v, struct dcp_pool *pool, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = v->catalog;
    size_t n;

    DCP_TRY(dcp_proof_open(v->proof, true, &v->open, &n, err));
    DCP_TRY(dcp_pool_for(pool, n, record_job, v, err));
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        uint64_t at;
        int64_t r = dcp_proof_record(v->proof, p, &at);
        if (r != DCP_NO_RECORD && dcp_proof_is_broken(v->proof, (size_t)r))
            DCP_TRY(add_in_piece(v, &catalog->pieces[p], 0,
                                 dcp_piece_span(catalog, &catalog->pieces[p]),
                                 "the CRC-32 of its record differs", err));
    }
    for (size_t r = 0; r < catalog->n_records; r++) {
        const struct dcp_record *record = &catalog->records[r];
        const struct dcp_finding finding = { .code = DCP_E_CORRUPT,
                                             .file = catalog->files[record->file].name,
                                             .offset = record->offset,
                                             .size_bytes = record->stored_size,
                                             .what = "the CRC-32 of a record differs" };
        if (dcp_proof_is_broken(v->proof, r) &&
            dcp_proof_first_piece(v->proof, r) == catalog->n_pieces)
            DCP_TRY(add_finding(v, finding, err));
    }
    return DCP_OK;
}

/* Replicas of a region count once in a fingerprint; corrupt tensors and strided pieces
 * are not summed. */
static int check_fingerprints(struct verify *v, struct dcp_verify_result *result,
                              struct dcp_error *err)
{
    for (size_t t = 0; t < v->catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &v->catalog->tensors[t];
        result->n_unproved += !dcp_proof_covers(v->proof, tensor);
        if (!tensor->has_fingerprint)
            continue;
        if (v->broken[t] ||
            dcp_fingerprint_whole(tensor, v->parts[t]) == tensor->fingerprint)
            continue;
        DCP_TRY(add_finding(v,
                            (struct dcp_finding){ .code = DCP_E_CORRUPT,
                                                  .tensor = tensor->name,
                                                  .begin = 0,
                                                  .end = tensor->n_elems,
                                                  .what = "the fingerprint differs" },
                            err));
    }
    return DCP_OK;
}

/* A fingerprint counts one of several replicas. Pieces are sorted. */
static int check_replicas(struct verify *v, struct dcp_error *err)
{
    for (size_t p = 1; p < v->catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &v->catalog->pieces[p];
        if (dcp_replica_differs(v->catalog, p))
            DCP_TRY(add_in_piece(v, piece, 0, dcp_piece_span(v->catalog, piece),
                                 "it differs from its replica", err));
    }
    return DCP_OK;
}

/* Whole files: what lies between the pieces (headers) and files without pieces. order:
 * the n pieces in it. */
static int check_file(struct verify *v, size_t f, const size_t *order, size_t n,
                      struct dcp_error *err)
{
    const struct dcp_file *entry = &v->catalog->files[f];
    struct dcp_error why = { 0 };
    int rc =
        dcp_verify_whole(v->source, v->catalog, f, order, n, v->workers[0].buffer, &why);

    if (rc == DCP_E_MEMORY) /* it says nothing about the file */
        return dcp_error_memory(err, "a verification");
    if (rc && rc != DCP_E_CORRUPT)
        return add_unread(v, (int)f, &why, err);
    const struct dcp_finding finding = { .code = rc,
                                         .file = entry->name,
                                         .size_bytes = entry->size_bytes,
                                         .what = "the digest of the file differs" };
    return rc ? add_finding(v, finding, err) : DCP_OK;
}

static int add_lost(struct verify *v, struct dcp_error *err)
{
    for (size_t f = 0; f < v->catalog->n_files; f++) {
        const struct dcp_file *file = &v->catalog->files[f];
        if (file->lost)
            DCP_TRY(add_finding(v,
                                (struct dcp_finding){ .code = file->lost,
                                                      .file = file->name,
                                                      .what = file->lost_why },
                                err));
    }
    return DCP_OK;
}

/* What a file says of itself against the catalog. */
struct own_words {
    struct verify *v;
    const struct dcp_file *file;
};

static int on_differs(void *self, const struct dcp_piece *piece, const char *what,
                      struct dcp_error *err)
{
    const struct own_words *own = self;
    struct dcp_finding finding = { .code = DCP_E_CORRUPT,
                                   .file = own->file->name,
                                   .what = what };

    if (piece)
        return add_in_piece(own->v, piece, 0, dcp_piece_span(own->v->catalog, piece),
                            what, err);
    return add_finding(own->v, finding, err);
}

static int check_own_words(struct verify *v, size_t f, const size_t *order, size_t n,
                           struct dcp_error *err)
{
    const struct dcp_format *format = dcp_format_find(v->catalog->format);
    struct own_words own = { v, &v->catalog->files[f] };
    const struct dcp_difference_listener differs = { on_differs, &own };
    struct dcp_error why = { 0 };

    if (!format || !format->check || own.file->lost || v->unread[f])
        return DCP_OK;
    int rc = format->check(v->source, v->catalog, f, order, n, &differs, &why);
    if (rc == DCP_E_MEMORY)
        return dcp_error_memory(err, "a verification");
    return rc ? add_unread(v, (int)f, &why, err) : DCP_OK;
}

/* A file is read as a whole only when its pieces and its header did not already show what
 * is wrong with it. */
static int check_files(struct verify *v, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = v->catalog;
    size_t first = 0, end = 0; /* the pieces of a file, in v->order */

    while (end < catalog->n_pieces && catalog->pieces[v->order[end]].file < 0)
        end++;
    for (size_t f = 0; f < catalog->n_files; f++) {
        const struct dcp_file *file = &catalog->files[f];
        bool known = !file->has_crc || file->lost || is_part(v);
        for (first = end; end < catalog->n_pieces; end++)
            if (catalog->pieces[v->order[end]].file != (int)f)
                break;
        DCP_TRY(check_own_words(v, f, v->order + first, end - first, err));
        for (size_t d = 0; d < v->n_findings && !known; d++)
            known = v->findings[d].file == file->name;
        if (!known)
            DCP_TRY(check_file(v, f, v->order + first, end - first, err));
    }
    return DCP_OK;
}

/* The sentence names tensor and elements. That a tensor was saved without data is no
 * corruption. */
static int check_holes(struct verify *v, struct dcp_error *err)
{
    struct dcp_error hole = { 0 };
    struct dcp_finding finding = { .code = dcp_catalog_check(v->catalog, &hole) };

    if (finding.code == DCP_E_MEMORY)
        return dcp_error_memory(err, "a verification");
    if (!finding.code || finding.code == DCP_E_UNSUPPORTED)
        return DCP_OK;
    finding.what = dcp_catalog_text(v->catalog, hole.message);
    return finding.what ? add_finding(v, finding, err)
                        : dcp_error_memory(err, "a verification");
}

/* Where the manifest was read from its parity, the file itself is still to be told. */
static int check_manifest(struct verify *v, const struct dcp_reconstruction *rebuilt,
                          struct dcp_error *err)
{
    const struct dcp_finding finding = { .code = DCP_E_CORRUPT,
                                         .file = DCP_PARITY_MANIFEST,
                                         .what = "it is missing or corrupt" };
    bool intact;
    size_t n;

    dcp_reconstruction_manifest(rebuilt, &n, &intact);
    return intact ? DCP_OK : add_finding(v, finding, err);
}

/* Begin and end are places in the bytes of all pieces, in the order they are read in. */
static void choose_part(struct verify *v)
{
    uint64_t all = 0;

    for (size_t i = 0; i < v->catalog->n_pieces; i++) {
        const struct dcp_piece *piece = &v->catalog->pieces[v->order[i]];
        v->before[v->order[i]] = all;
        all += dcp_piece_span(v->catalog, piece);
    }
    v->end = UINT64_MAX;
    v->total_bytes = all;
    if (!is_part(v))
        return;
    v->begin = (uint64_t)((double)all * v->options->from);
    if (v->options->to < 1)
        v->end = (uint64_t)((double)all * v->options->to);
    v->total_bytes = (v->end < all ? v->end : all) - v->begin;
}

static int add_parity_finding(void *self, const struct dcp_finding *finding,
                              struct dcp_error *err)
{
    return add_finding(self, *finding, err);
}

static void free_readers(struct verify *v)
{
    for (int w = 0; v->workers && w < v->n_workers; w++) {
        dcp_blocks_free(v->workers[w].blocks);
        v->workers[w].blocks = NULL;
    }
}

static int run(struct verify *v, struct dcp_verify_result *result, struct dcp_error *err)
{
    struct dcp_pool *pool = NULL;
    size_t n_tensors = v->catalog->n_tensors;
    uint64_t more = 0;
    bool proved = false;
    int rc = DCP_OK;

    v->n_workers = v->options->threads > 0 ? v->options->threads : 2;
    v->workers = dcp_mem_calloc((size_t)v->n_workers, sizeof *v->workers);
    v->parts = dcp_mem_calloc(n_tensors, sizeof *v->parts);
    v->broken = dcp_mem_calloc(n_tensors, sizeof *v->broken);
    v->order = dcp_file_order(v->catalog);
    v->unread = dcp_mem_calloc(v->catalog->n_files, sizeof *v->unread);
    v->before = dcp_mem_calloc(v->catalog->n_pieces, sizeof *v->before);
    if (!v->workers || !v->parts || !v->broken || !v->order || !v->unread || !v->before)
        return dcp_error_memory(err, "a verification");
    choose_part(v);
    rc = dcp_proof_new(v->catalog, &v->proof, err);
    for (int w = 0; w < v->n_workers && !rc; w++) {
        v->workers[w].buffer = malloc(DCP_BLOCK_BYTES);
        rc = v->workers[w].buffer ? dcp_blocks_new(v->source, v->catalog, WORKER_CACHE,
                                                   true, &v->workers[w].blocks, err)
                                  : dcp_error_memory(err, "a verification");
        if (!rc)
            dcp_blocks_check_records(v->workers[w].blocks, v->proof);
    }
    if (!rc)
        rc = add_lost(v, err);
    if (!rc)
        rc = v->catalog->partial
                 ? dcp_verify_lost(v->catalog, v->broken, add_parity_finding, v, err)
                 : check_holes(v, err);
    if (!rc && v->n_workers > 1)
        rc = dcp_pool_new(v->n_workers - 1, &pool, err); /* the caller works too */
    if (!rc)
        rc = dcp_pool_for(pool, v->catalog->n_pieces, piece_job, v, err);
    if (!rc && !is_part(v))
        rc = check_records(v, pool, err);
    dcp_pool_free(pool);
    free_readers(v); /* what follows opens files, too */
    if (!rc && !is_part(v))
        rc = check_fingerprints(v, result, err);
    if (!rc && !is_part(v))
        rc = check_replicas(v, err);
    if (!rc)
        rc = check_files(v, err);
    if (!rc)
        rc = dcp_verify_parity(v->source, v->catalog, v->options, add_parity_finding, v,
                               &more, err);
    v->done_bytes += more;
    if (!rc)
        rc = dcp_verify_delta(v->source, v->catalog, add_parity_finding, v, &proved,
                              &more, err);
    v->done_bytes += proved ? more : 0;
    if (proved)
        result->n_unproved = 0;
    return rc;
}

static void verify_fini(struct verify *v)
{
    free_readers(v);
    for (int w = 0; v->workers && w < v->n_workers; w++)
        free(v->workers[w].buffer);
    free(v->workers);
    free(v->open);
    dcp_proof_free(v->proof);
    free(v->parts);
    free(v->broken);
    free(v->order);
    free(v->before);
    free(v->unread);
    free(v->findings);
    pthread_mutex_destroy(&v->lock);
}

int dcp_verify(const struct dcp_source *source, const struct dcp_verify_options *options,
               struct dcp_verify_result *out_result, struct dcp_error *err)
{
    static const struct dcp_verify_options none = { 0 };
    struct verify v = { .source = source, .options = options ? options : &none };
    struct dcp_verify_result result = { 0 };
    struct dcp_catalog *catalog = NULL;
    struct dcp_reconstruction *rebuilt = NULL;
    struct dcp_store_file *pin;

    dcp_pin(source->store, source->name, &pin, NULL);
    int rc = dcp_verify_index(source, &catalog, &rebuilt, err);
    if (rc) {
        dcp_unpin(source->store, &pin);
        return rc;
    }
    if (v.options->to > 0 && strcmp(catalog->format, dcp_format_of_steps()->name)) {
        dcp_unpin(source->store, &pin);
        dcp_catalog_free(catalog);
        return dcp_error_set(err, DCP_E_USAGE,
                             "only native steps can be verified in parts");
    }
    v.catalog = catalog;
    pthread_mutex_init(&v.lock, NULL);
    rc = run(&v, &result, err);
    if (!rc && rebuilt)
        rc = check_manifest(&v, rebuilt, err);
    dcp_reconstruction_free(rebuilt);
    dcp_unpin(source->store, &pin);
    dcp_findings_sort(v.findings, v.n_findings);
    if (v.options->begin)
        v.options->begin(v.options->self, catalog);
    for (size_t d = 0; d < v.n_findings && v.options->finding; d++)
        v.options->finding(v.options->self, &v.findings[d]);
    result.n_findings = v.n_findings;
    result.size_bytes = v.done_bytes;
    result.n_blocks = v.n_blocks;
    result.n_tensors = catalog->n_tensors;
    if (!rc && v.n_findings)
        rc = dcp_findings_judge(v.findings, v.n_findings, err);
    verify_fini(&v);
    dcp_catalog_free(catalog);
    if (out_result)
        *out_result = result;
    return rc;
}
