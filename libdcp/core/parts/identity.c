#include "identity.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/pack.h"
#include "core/files/files.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>

#define FIRST_LINE "libdcp reshard in parts 1\n"
#define SAMPLE_BYTES 4096 /* of a file that no digest vouches for, */
#define SAMPLE_FILES 65536

enum { SAMPLES = 16 }; /* so often */

/* Digests of digests: what is large is not kept. */
static void add_digest(struct dcp_buf *all, const void *data, size_t size_bytes)
{
    dcp_buf_add_le64(all, dcp_hash_xxh3(data, size_bytes));
}

static int add_catalog(struct dcp_buf *all, const struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf packed = { 0 };

    DCP_TRY(dcp_pack_catalog(catalog, &packed, err));
    add_digest(all, packed.data, packed.size_bytes);
    return DCP_OK;
}

static int sample_file(struct dcp_files *files, int f, uint64_t size, struct dcp_buf *all,
                       struct dcp_error *err)
{
    unsigned char bytes[SAMPLE_BYTES];
    size_t n = size < SAMPLE_BYTES ? (size_t)size : SAMPLE_BYTES;
    uint64_t last = size - n;

    for (uint64_t i = 0; n && i < SAMPLES; i++) {
        DCP_TRY(dcp_files_read(files, f, last / (SAMPLES - 1) * i, n, bytes, err));
        add_digest(all, bytes, n);
    }
    return DCP_OK;
}

/* Where a format keeps no digests two checkpoints of one model have the same headers. In
 * an archive nothing can be read here and there: its size has to do. */
static int sample(const struct dcp_identity_of_job *job, struct dcp_buf *all,
                  struct dcp_error *err)
{
    const struct dcp_store *store = job->source->store;
    struct dcp_files *files;

    dcp_buf_add_le64(all, store->packed_bytes);
    if (!job->unproved || store->packed_bytes)
        return DCP_OK;
    int rc = dcp_files_new(job->source, job->src, SAMPLE_BYTES, &files, err);
    if (rc)
        return rc;
    for (size_t f = 0; f < job->src->n_files && f < SAMPLE_FILES && !rc; f++)
        rc = sample_file(files, (int)f, job->src->files[f].size_bytes, all, err);
    dcp_files_free(files);
    return rc;
}

static int digest_source(const struct dcp_identity_of_job *job, uint64_t *out,
                         struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf all = { 0 };

    DCP_TRY(add_catalog(&all, job->src, err));
    DCP_TRY(sample(job, &all, err));
    DCP_TRY(dcp_buf_check(&all, err));
    *out = dcp_hash_xxh3(all.data, all.size_bytes);
    return DCP_OK;
}

/* Whatever an option does shows in the catalog of the target, in the bytes of its headers
 * or in where its tensors come from. */
static int digest_target(const struct dcp_identity_of_job *job, uint64_t *out,
                         struct dcp_error *err)
{
    const struct dcp_catalog *catalog = job->target->catalog;
    const struct dcp_literals *literals = &job->target->literals;
    DCP_CLEANUP_BUF struct dcp_buf all = { 0 };

    DCP_TRY(add_catalog(&all, catalog, err));
    add_digest(&all, job->src_tensor, catalog->n_tensors * sizeof *job->src_tensor);
    for (size_t i = 0; i < literals->n; i++) {
        dcp_buf_add_le32(&all, (uint32_t)literals->items[i].file);
        dcp_buf_add_le64(&all, literals->items[i].offset);
        add_digest(&all, literals->items[i].data, literals->items[i].size_bytes);
    }
    dcp_buf_add_le32(&all, (uint32_t)job->parity);
    dcp_buf_add_u8(&all, job->no_verify);
    DCP_TRY(dcp_buf_check(&all, err));
    *out = dcp_hash_xxh3(all.data, all.size_bytes);
    return DCP_OK;
}

static bool is_coded(const struct dcp_catalog *target)
{
    for (size_t p = 0; p < target->n_pieces; p++)
        if (target->pieces[p].codec != DCP_CODEC_NONE)
            return true;
    return false;
}

int dcp_job_identify(const struct dcp_identity_of_job *job, struct dcp_buf *text,
                     struct dcp_error *err)
{
    uint64_t source = 0, target = 0;

    DCP_TRY(digest_source(job, &source, err));
    DCP_TRY(digest_target(job, &target, err));
    dcp_buf_add_fmt(text,
                    FIRST_LINE "version %s\nparts %d\nsource %016" PRIx64
                               "\ntarget %016" PRIx64 "\n",
                    dcp_version(), job->n, source, target);
    if (is_coded(job->target->catalog)) /* another version codes other bytes */
        dcp_buf_add_fmt(text, "zstd %s\n", ZSTD_versionString());
    return dcp_buf_check(text, err);
}

/* The rest of the line that begins so, up to its end; "?" when there is none. */
static void line_of(const char *text, const char *key, char out[64])
{
    const char *at = strstr(text, key);

    snprintf(out, 64, "%.*s", at ? (int)strcspn(at + strlen(key), "\n") : 1,
             at ? at + strlen(key) : "?");
}

int dcp_job_compare(const char *text, const char *ours, const char *where,
                    struct dcp_error *err)
{
    char theirs[64], mine[64], what[200] = "";

    if (!strcmp(text, ours))
        return DCP_OK;
    if (!dcp_str_starts(text, FIRST_LINE))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s/job' does not say what is made in it", where);
    line_of(text, "\nversion ", theirs);
    line_of(ours, "\nversion ", mine);
    if (strcmp(theirs, mine) != 0)
        snprintf(what, sizeof what, "by libdcp %s, and this is %s", DCP_SHOWN(theirs),
                 mine);
    line_of(text, "\nparts ", theirs);
    line_of(ours, "\nparts ", mine);
    if (!what[0] && strcmp(theirs, mine) != 0)
        snprintf(what, sizeof what, "in %s parts, not %s", DCP_SHOWN(theirs), mine);
    line_of(text, "\nsource ", theirs);
    line_of(ours, "\nsource ", mine);
    if (!what[0] && strcmp(theirs, mine) != 0)
        snprintf(what, sizeof what, "from another source");
    line_of(text, "\ntarget ", theirs);
    line_of(ours, "\ntarget ", mine);
    if (!what[0] && strcmp(theirs, mine) != 0)
        snprintf(what, sizeof what, "with other options");
    line_of(text, "\nzstd ", theirs);
    line_of(ours, "\nzstd ", mine);
    if (!what[0])
        snprintf(what, sizeof what, "with zstd %s, and this is %s", DCP_SHOWN(theirs),
                 mine);
    dcp_error_set(err, DCP_E_MISMATCH, "'%s' was begun %s", where, what);
    dcp_error_hint(err,
                   "give every part what the first one was given; or throw its parts "
                   "away: 'dcp-reshard gc --parts --yes' in that folder");
    return DCP_E_MISMATCH;
}

int dcp_job_parts(const char *text)
{
    char parts[64];
    int64_t n;

    line_of(text, "\nparts ", parts);
    return dcp_str_starts(text, FIRST_LINE) && dcp_str_parse_i64(parts, &n) && n > 0 &&
                   n <= INT32_MAX
               ? (int)n
               : 0;
}
