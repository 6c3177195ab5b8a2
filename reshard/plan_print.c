/* What a reshard will do, what it did, for people and for scripts. */
#include "job.h"

#include "base/buf.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/text.h"
#include <stdio.h>
#include <string.h>

#define LEFT_COLUMNS 38 /* "from   native, 8 ranks, zero3" */

enum { SHOWN_NAMES = 8 };

/* "native, 8 ranks, zero3" */
static void add_side(struct dcp_buf *text, const struct dcp_catalog *catalog)
{
    char layout[64];
    dcp_buf_add_text(text, catalog->format);
    if (catalog->world_size > 1 || (catalog->layout && catalog->layout[0]))
        dcp_buf_add_fmt(
            text, ", %s",
            dcp_human_items((uint64_t)catalog->world_size, "rank", "ranks").text);
    if (catalog->layout && catalog->layout[0])
        dcp_buf_add_fmt(text, ", %s",
                        dcp_str_escape(layout, sizeof layout, catalog->layout));
}

static void put_side(struct dcp_main *m, const char *word,
                     const struct dcp_catalog *catalog, uint64_t bytes, size_t files)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    dcp_buf_add_fmt(&text, "%-6s ", word);
    add_side(&text, catalog);
    int taken = text.failed ? 0 : dcp_text_width((const char *)text.data);
    dcp_buf_add_fill(&text, ' ',
                     (size_t)(taken < LEFT_COLUMNS ? LEFT_COLUMNS - taken : 2));
    dcp_buf_add_fmt(&text, "%s, %s\n", dcp_human_size(bytes).text,
                    dcp_human_items(files, catalog->world_size > 1 ? "shard" : "file",
                                    catalog->world_size > 1 ? "shards" : "files")
                        .text);
    if (!text.failed)
        dcp_term_put(&m->out, (const char *)text.data);
}

/* "trainer, scheduler and 3 more": what a target has no place for. */
static void put_objects_left(struct dcp_main *m, const struct reshard_job *job)
{
    const char *const *names = dcp_reshard_facts(job->reshard)->objects_left;
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    size_t n = 0;

    if (!names)
        return;
    for (; names[n]; n++)
        if (n < SHOWN_NAMES)
            dcp_buf_add_fmt(&text, "%s%s", n ? ", " : "", DCP_SHOWN(names[n]));
    if (n > SHOWN_NAMES)
        dcp_buf_add_fmt(&text, " and %s more", dcp_human_count(n - SHOWN_NAMES).text);
    if (!text.failed)
        dcp_term_printf(&m->out, "left out what the format %s cannot hold: %s\n",
                        dcp_reshard_target(job->reshard)->format,
                        (const char *)text.data);
}

static uint64_t count_objects_left(const char *const *names)
{
    uint64_t n = 0;

    while (names && names[n])
        n++;
    return n;
}

/* All of them, ", " between them; null: none. */
static json_t *objects_left_json(const char *const *names)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };

    for (size_t n = 0; names && names[n]; n++)
        dcp_buf_add_fmt(&text, "%s%s", n ? ", " : "", names[n]);
    if (text.failed)
        return NULL;
    return text.data ? dcp_doc_text((const char *)text.data) : json_null();
}

/* What nothing proves, what --lossy gave up, and what is no tensor and has no place. */
static void put_notes(struct dcp_main *m, const struct reshard_job *job)
{
    const struct dcp_reshard_plan *f = dcp_reshard_facts(job->reshard);
    if (f->n_from_masters)
        dcp_term_put(&m->out, "weights  made of the optimizer's masters\n");
    if (f->n_kept)
        dcp_term_printf(&m->out, "dtype    %s not cast: quantized weights depend on %s\n",
                        dcp_human_items(f->n_kept, "tensor", "tensors").text,
                        f->n_kept > 1 ? "them" : "it");
    if (f->n_masters_left)
        dcp_term_put(&m->out,
                     "weights  as the model computes with them; --weights master "
                     "takes the optimizer's masters\n");
    if (f->assumed)
        dcp_term_printf(&m->out, "assumed  %s\n", f->assumed);
    if (f->n_left)
        dcp_term_printf(&m->out, "left out %s that the format %s cannot hold ('%s'%s)\n",
                        dcp_human_items(f->n_left, "tensor", "tensors").text,
                        dcp_reshard_target(job->reshard)->format,
                        DCP_SHOWN(f->first_left), f->n_left > 1 ? " and others" : "");
    if (f->n_beside)
        dcp_term_printf(&m->out, "left out %s that %s no weight%s ('%s'%s)\n",
                        dcp_human_items(f->n_beside, "tensor", "tensors").text,
                        f->n_beside > 1 ? "are" : "is", f->n_beside > 1 ? "s" : "",
                        DCP_SHOWN(f->first_beside), f->n_beside > 1 ? " and others" : "");
    put_objects_left(m, job);
    if (f->n_objects_left)
        dcp_term_printf(&m->out, "left out %s not known to be safe to load ('%s'%s)\n",
                        dcp_human_items(f->n_objects_left, "object", "objects").text,
                        f->first_object, f->n_objects_left > 1 ? " and others" : "");
}

/* Kept as it was asked for, but never silent. */
static void warn_unsafe(struct dcp_main *m, const struct reshard_job *job)
{
    const struct dcp_reshard_plan *f = dcp_reshard_facts(job->reshard);
    if (f->n_unsafe_kept)
        dcp_log_write(&m->log, DCP_LOG_WARN,
                      "%s kept that may run code when the target is loaded ('%s'%s)",
                      dcp_human_items(f->n_unsafe_kept, "object", "objects").text,
                      f->first_object, f->n_unsafe_kept > 1 ? " and others" : "");
}

/* Which part does what. */
static void put_parts(struct dcp_main *m, const struct reshard_job *job)
{
    int n = dcp_reshard_n_parts(job->reshard);

    for (int i = 0; i < n; i++) {
        const struct dcp_reshard_part *part = dcp_reshard_part(job->reshard, i);
        dcp_term_printf(&m->out, "part   %d/%d: %s, %s%s\n", i + 1, n,
                        dcp_human_items(part->n_files, "file", "files").text,
                        dcp_human_size(part->size_bytes).text,
                        part->made ? ", made" : "");
    }
}

/* How much of the target takes no space. A block that is shared is there once. */
static void put_shared(struct dcp_main *m, const struct reshard_job *job,
                       const char *word, uint64_t bytes)
{
    const struct dcp_reshard_plan *f = dcp_reshard_facts(job->reshard);
    uint64_t of = f->stored_bytes;

    if (!job->options.reflink)
        return;
    if (job->options.part)
        of = dcp_reshard_part(job->reshard, job->options.part - 1)->size_bytes;
    dcp_term_printf(&m->out, "%s %s of %s with the source%s\n", word,
                    dcp_human_size(bytes).text, dcp_human_size(of).text,
                    bytes ? "" : ": nothing lies alike in blocks of both");
}

void reshard_print_part(struct dcp_main *m, const struct reshard_job *job)
{
    const struct dcp_term *out = &m->out;
    bool was_done = dcp_reshard_was_done(job->reshard);
    char path[512];

    dcp_term_printf(out, "%s%s%s: ", dcp_term_style(out, DCP_STYLE_BOLD),
                    dcp_str_escape(path, sizeof path, job->target_path),
                    dcp_term_style(out, DCP_STYLE_OFF));
    if (job->options.finish) {
        dcp_term_put(out, "published already, nothing was written\n");
        return;
    }
    const struct dcp_reshard_part *part =
        dcp_reshard_part(job->reshard, job->options.part - 1);
    dcp_term_printf(out, "part %d of %d, %s, %s, %s", job->options.part,
                    job->options.n_parts,
                    dcp_human_items(part->n_files, "file", "files").text,
                    dcp_human_size(part->size_bytes).text,
                    was_done                 ? "made already"
                    : job->options.no_verify ? "not verified (--no-verify)"
                                             : "read back");
    dcp_term_printf(out, ", %s\n", dcp_human_time(job->seconds).text);
    if (!was_done)
        put_shared(m, job, "shared", dcp_reshard_shared(job->reshard));
}

void reshard_print_plan(struct dcp_main *m, const struct reshard_job *job)
{
    const struct dcp_reshard_plan *f = dcp_reshard_facts(job->reshard);
    const struct dcp_term *out = &m->out;
    put_side(m, "from", job->source, f->source_bytes, f->source_files);
    put_side(m, "to", dcp_reshard_target(job->reshard), f->target_bytes, f->target_files);
    dcp_term_printf(out, "plan   %s merged to %s and %s; ",
                    dcp_human_items(f->n_copies, "copy", "copies").text,
                    dcp_human_items(f->n_reads, "read", "reads").text,
                    dcp_human_items(f->n_writes, "write", "writes").text);
    if (f->read_bytes > f->source_bytes)
        dcp_term_printf(out, "%s read in all\n", dcp_human_size(f->read_bytes).text);
    else
        dcp_term_put(out, "each byte read once\n");
    dcp_term_printf(out, "       largest buffers %s",
                    dcp_human_size(f->buffer_bytes).text);
    if (f->free_bytes != UINT64_MAX)
        dcp_term_printf(out, "; free space %s", dcp_human_size(f->free_bytes).text);
    dcp_term_put(out, "\n");
    put_shared(m, job, "shares", f->shared_bytes);
    put_parts(m, job);
    put_notes(m, job);
}

/* What floats were cast to: what was asked for, else what each had to be. */
static const char *dtype_word(const struct reshard_job *job)
{
    int dtype = job->options.dtype;

    return dtype >= 0 ? dcp_dtype_name((enum dcp_dtype)dtype) : "another dtype";
}

/* What is proved of the target. A tensor that was cast has other bytes than its source,
 * so there is nothing that its fingerprint could equal. */
static void put_proof(struct dcp_main *m, const struct reshard_job *job)
{
    const struct dcp_term *out = &m->out;
    uint64_t n_cast = dcp_reshard_facts(job->reshard)->n_cast;
    uint64_t n = dcp_reshard_facts(job->reshard)->n_tensors;
    if (n_cast)
        dcp_term_printf(out, ", %s cast to %s",
                        n_cast == n ? "all" : dcp_human_count(n_cast).text,
                        dtype_word(job));
    if (job->options.no_verify)
        dcp_term_put(out, ", not verified (--no-verify)");
    else if (n_cast < n)
        dcp_term_printf(out, ", fingerprints%s equal to the source's",
                        n_cast ? " of the others" : "");
}

/* Numbers that are now infinite: no failure, since it was asked for, but never silent. */
static void warn_overflows(struct dcp_main *m, const struct reshard_job *job)
{
    const char *first;
    size_t n_tensors;
    uint64_t n = dcp_reshard_overflows(job->reshard, &n_tensors, &first);
    if (n)
        dcp_log_write(&m->log, DCP_LOG_WARN,
                      "%s of %s out of the range of %s became "
                      "infinite or NaN ('%s'%s)",
                      dcp_human_items(n, "number", "numbers").text,
                      dcp_human_items(n_tensors, "tensor", "tensors").text,
                      dtype_word(job), DCP_SHOWN(first),
                      n_tensors > 1 ? " and others" : "");
}

void reshard_print_result(struct dcp_main *m, const struct reshard_job *job)
{
    const struct dcp_catalog *target = dcp_reshard_target(job->reshard);
    const struct dcp_reshard_plan *f = dcp_reshard_facts(job->reshard);
    const struct dcp_term *out = &m->out;
    char path[512];
    dcp_term_printf(out, "%s%s%s: ", dcp_term_style(out, DCP_STYLE_BOLD),
                    dcp_str_escape(path, sizeof path, job->target_path),
                    dcp_term_style(out, DCP_STYLE_OFF));
    bool is_native = strcmp(target->format, "native") == 0;
    if (!is_native)
        dcp_term_put(out, target->format);
    if (is_native || target->world_size > 1)
        dcp_term_printf(
            out, "%s%s", is_native ? "" : ", ",
            dcp_human_items((uint64_t)target->world_size, "rank", "ranks").text);
    dcp_term_printf(out, ", %s, %s", dcp_human_size(f->target_bytes).text,
                    dcp_human_items(f->n_tensors, "tensor", "tensors").text);
    put_proof(m, job);
    if (job->options.finish)
        dcp_term_printf(
            out, ", made in %s",
            dcp_human_items((uint64_t)dcp_reshard_n_parts(job->reshard), "part", "parts")
                .text);
    dcp_term_printf(out, ", %s\n", dcp_human_time(job->seconds).text);
    if (f->n_unproved && !job->options.no_verify)
        dcp_term_printf(out, "%s of %s of the source have no digest to check\n",
                        dcp_human_count(f->n_unproved).text,
                        dcp_human_items(f->n_tensors, "tensor", "tensors").text);
    put_shared(m, job, "shared", dcp_reshard_shared(job->reshard));
    if (m->verbose == 0)
        put_notes(m, job);
    warn_overflows(m, job);
    warn_unsafe(m, job);
}

static json_t *side_json(const char *path, const struct dcp_catalog *catalog,
                         uint64_t bytes, size_t files)
{
    return json_pack("{s:o, s:s, s:i, s:o, s:o, s:o, s:o}", "path", dcp_doc_text(path),
                     "format", catalog->format, "world", catalog->world_size, "layout",
                     dcp_doc_text(catalog->layout), "step",
                     catalog->step < 0 ? json_null() : json_integer(catalog->step),
                     "size_bytes", dcp_doc_u64(bytes), "n_files", dcp_doc_u64(files));
}

/* [{"part": 1, "n_files": …}] */
static json_t *parts_json(const struct dcp_reshard *reshard)
{
    int n = dcp_reshard_n_parts(reshard);
    json_t *list = json_array();

    for (int i = 0; i < n && list; i++) {
        const struct dcp_reshard_part *part = dcp_reshard_part(reshard, i);
        json_t *item = json_pack("{s:i, s:o, s:o, s:b}", "part", i + 1, "n_files",
                                 dcp_doc_u64(part->n_files), "size_bytes",
                                 dcp_doc_u64(part->size_bytes), "made", (int)part->made);
        if (dcp_doc_add(list, item)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Of what was made; of a dry run, what would be. */
static json_t *shared_json(const struct reshard_job *job)
{
    if (!job->options.reflink)
        return json_null();
    return dcp_doc_u64(job->dry_run ? dcp_reshard_facts(job->reshard)->shared_bytes
                                    : dcp_reshard_shared(job->reshard));
}

int reshard_print_json(struct dcp_main *m, const struct reshard_job *job,
                       struct dcp_error *err)
{
    const struct dcp_reshard_plan *f = dcp_reshard_facts(job->reshard);
    const struct dcp_catalog *target = dcp_reshard_target(job->reshard);
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new(job->verb);
    json_t *plan =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "n_copies", dcp_doc_u64(f->n_copies),
                  "n_reads", dcp_doc_u64(f->n_reads), "n_writes",
                  dcp_doc_u64(f->n_writes), "read_bytes", dcp_doc_u64(f->read_bytes),
                  "buffer_bytes", dcp_doc_u64(f->buffer_bytes), "free_bytes",
                  f->free_bytes == UINT64_MAX ? json_null() : dcp_doc_u64(f->free_bytes));
    int rc = dcp_doc_set(
        doc, "source",
        side_json(job->location.path, job->source, f->source_bytes, f->source_files));
    rc |= dcp_doc_set(
        doc, "target",
        side_json(job->target_path, target, f->target_bytes, f->target_files));
    rc |= dcp_doc_set(doc, "n_tensors", dcp_doc_u64(f->n_tensors));
    size_t n_tensors;
    const char *first;
    rc |=
        dcp_doc_set(doc, "n_overflows",
                    dcp_doc_u64(dcp_reshard_overflows(job->reshard, &n_tensors, &first)));
    rc |= dcp_doc_set(doc, "n_left_out", dcp_doc_u64(f->n_left));
    rc |= dcp_doc_set(doc, "n_beside_left_out", dcp_doc_u64(f->n_beside));
    rc |= dcp_doc_set(doc, "objects_left_out", objects_left_json(f->objects_left));
    rc |= dcp_doc_set(doc, "n_unproved", dcp_doc_u64(f->n_unproved));
    rc |= dcp_doc_set(doc, "n_from_masters", dcp_doc_u64(f->n_from_masters));
    rc |=
        dcp_doc_set(doc, "assumed", f->assumed ? dcp_doc_text(f->assumed) : json_null());
    rc |=
        dcp_doc_set(doc, "n_objects_left_out",
                    dcp_doc_u64(f->n_objects_left + count_objects_left(f->objects_left)));
    rc |= dcp_doc_set(doc, "n_unsafe_left_out", dcp_doc_u64(f->n_objects_left));
    rc |= dcp_doc_set(doc, "n_unsafe_objects", dcp_doc_u64(f->n_unsafe_kept));
    rc |= dcp_doc_set(doc, "n_cast", dcp_doc_u64(f->n_cast));
    rc |= dcp_doc_set(doc, "n_kept", dcp_doc_u64(f->n_kept));
    rc |= dcp_doc_set(doc, "shared_bytes", shared_json(job));
    rc |= dcp_doc_set(doc, "plan", plan);
    if (dcp_reshard_n_parts(job->reshard))
        rc |= dcp_doc_set(doc, "parts", parts_json(job->reshard));
    rc |= dcp_doc_set(doc, "part",
                      job->options.part ? json_integer(job->options.part) : json_null());
    rc |= dcp_doc_set(doc, "was_done", json_boolean(dcp_reshard_was_done(job->reshard)));
    rc |= dcp_doc_set(doc, "dry_run", json_boolean(job->dry_run));
    rc |= dcp_doc_set(
        doc, "verified",
        json_boolean(!job->dry_run && !job->options.no_verify && !job->options.part));
    rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(job->seconds));
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}
