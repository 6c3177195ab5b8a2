#include "verify_print.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "checkpoint.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/text.h"
#include "globals.h"
#include <dcp/family.h>
#include <stdio.h>

#define INDENT 10 /* where findings begin */

#define NAMED 4 /* parts of tensors that are named of a file that is lost */

/* Elements begin .. end as a person would point at them: "all", rows, or elements. */
static void format_range(const struct dcp_tensor *t, int64_t begin, int64_t end,
                         char *out, size_t cap)
{
    int64_t row = t && t->ndim > 1 && t->shape[0] > 0 ? t->n_elems / t->shape[0] : 0;
    if (t && begin == 0 && end == t->n_elems)
        snprintf(out, cap, "all of it");
    else if (row > 0 && end > begin)
        snprintf(out, cap, "rows %lld..%lld", (long long)(begin / row),
                 (long long)((end - 1) / row));
    else
        snprintf(out, cap, "elements %lld..%lld", (long long)begin,
                 (long long)(end > begin ? end - 1 : end));
}

static void add_part(struct dcp_buf *text, const struct dcp_tensor *t,
                     const struct dcp_finding *finding)
{
    char range[80];
    format_range(t, finding->begin, finding->end, range, sizeof range);
    dcp_buf_add_text(text, "'");
    dcp_text_add_escaped(text, finding->tensor);
    dcp_buf_add_fmt(text, "' %s", range);
}

/* "tensor 'x' rows 0..3 in shard (1,024 bytes at 96): the block digest differs" */
static void add_finding(struct dcp_buf *text, const struct dcp_tensor *t,
                        const struct dcp_finding *finding)
{
    if (finding->tensor) {
        dcp_buf_add_text(text, "tensor ");
        add_part(text, t, finding);
    }
    if (finding->file) {
        dcp_buf_add_text(text, finding->tensor ? " in " : "");
        dcp_text_add_escaped(text, finding->file);
        if (finding->size_bytes)
            dcp_buf_add_fmt(text, " (%s at %s)",
                            dcp_human_items(finding->size_bytes, "byte", "bytes").text,
                            dcp_human_count(finding->offset).text);
    }
    dcp_buf_add_text(text, text->size_bytes ? ": " : "");
    dcp_text_add_escaped(text, finding->what ? finding->what : "");
}

/* Wrapped where the terminal is too narrow. */
static void print_line(struct dcp_main *m, const char *label, struct dcp_buf *text)
{
    const struct dcp_term *out = &m->out;
    DCP_CLEANUP_BUF struct dcp_buf line = { 0 };
    if (out->width && !text->failed)
        dcp_text_add_wrapped(&line, (const char *)text->data, INDENT, INDENT, out->width);
    dcp_main_progress_hide(m);
    dcp_term_printf(out, "%s%-*s%s", dcp_term_style(out, DCP_STYLE_BAD), INDENT, label,
                    dcp_term_style(out, DCP_STYLE_OFF));
    if (!text->failed && !line.failed)
        dcp_term_put(out, (const char *)(out->width ? line.data : text->data));
    dcp_term_put(out, "\n");
    fflush(out->file);
}

/* What is lost with a file is one line behind the file's. */
static void print_lost(struct inspect_findings *f)
{
    if (f->n_lost > NAMED)
        dcp_buf_add_fmt(&f->lost, " and %s more (--json lists them)",
                        dcp_human_count(f->n_lost - NAMED).text);
    if (f->n_lost)
        print_line(f->m, f->is_of_file ? "" : "corrupt", &f->lost);
    dcp_buf_fini(&f->lost);
    f->lost = (struct dcp_buf){ 0 };
    f->n_lost = 0;
}

static void print_finding(struct inspect_findings *f, const struct dcp_tensor *t,
                          const struct dcp_finding *finding)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (finding->with_file) {
        if (!finding->file && f->is_of_file)
            print_lost(f);
        f->is_of_file = finding->file;
        if (f->n_lost < NAMED) {
            dcp_buf_add_text(&f->lost, f->n_lost ? ", "
                                       : finding->file
                                           ? "with it "
                                           : "no shard manifest says where these lie: ");
            add_part(&f->lost, t, finding);
        }
        f->n_lost++;
        return;
    }
    print_lost(f);
    add_finding(&text, t, finding);
    print_line(f->m, finding->code == DCP_E_IO ? "unread" : "corrupt", &text);
}

/* What nothing proves: what the format does not say, else tensors that have no data. */
static void find_untold(const struct dcp_catalog *catalog, char *out, size_t cap)
{
    size_t n = 0;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        n += catalog->tensors[t].is_meta && catalog->tensors[t].n_elems > 0;
    snprintf(out, cap, "%s", catalog->untold ? catalog->untold : "");
    if (n && !catalog->untold)
        snprintf(out, cap, "%s on the meta device, without data",
                 dcp_human_items(n, "was saved", "were saved").text);
}

/* What a file system keeps no blocks for: where no digest proves the bytes, a file that a
 * crash cut short before it was written looks so. */
static void find_holes(struct inspect_findings *f, const struct dcp_catalog *catalog)
{
    bool is_dir = dcp_fs_is_dir(f->path);

    for (size_t i = 0; i < catalog->n_files; i++) {
        const char *name = catalog->files[i].name;
        DCP_CLEANUP_FREE char *below = is_dir ? dcp_str_join(f->path, "/", name) : NULL;
        const char *path = is_dir ? below : f->path;
        uint64_t bytes = path ? dcp_fs_hole_bytes(path) : 0;
        f->hole_bytes += bytes;
        if (bytes && !f->n_hole_files++)
            snprintf(f->hole_file, sizeof f->hole_file, "%s", DCP_SHOWN(name));
    }
}

void inspect_findings_begin(void *self, const struct dcp_catalog *catalog)
{
    struct inspect_findings *findings = self;
    findings->catalog = catalog;
    find_untold(catalog, findings->untold, sizeof findings->untold);
    find_holes(findings, catalog);
    dcp_family_lacks_weight(catalog, findings->weight, sizeof findings->weight);
    findings->retired = !dcp_fs_exists(findings->path);
    inspect_globals_warn(findings->m, catalog);
    if (findings->m->json)
        findings->head = inspect_catalog_json(findings->path, catalog);
}

void inspect_findings_add(void *self, const struct dcp_finding *finding)
{
    struct inspect_findings *findings = self;
    int i = finding->tensor ? dcp_catalog_find(findings->catalog, finding->tensor) : -1;
    if (findings->retired)
        return;
    if (!findings->m->json) {
        print_finding(findings, i < 0 ? NULL : &findings->catalog->tensors[i], finding);
        return;
    }
    json_t *item = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "code",
        dcp_error_name(finding->code), "path", dcp_doc_text(findings->path), "file",
        dcp_doc_text(finding->file), "tensor", dcp_doc_text(finding->tensor), "begin",
        finding->tensor ? json_integer(finding->begin) : json_null(), "end",
        finding->tensor ? json_integer(finding->end) : json_null(), "offset",
        finding->file ? dcp_doc_u64(finding->offset) : json_null(), "size_bytes",
        finding->file ? dcp_doc_u64(finding->size_bytes) : json_null(), "what",
        dcp_doc_text(finding->what));
    if (dcp_doc_add(findings->list, item)) {
        json_decref(findings->list);
        findings->list = NULL;
    }
}

/* What was found, and what that rests on. */
static void print_verdict(const struct inspect_findings *findings, int rc,
                          const struct dcp_verify_result *result, double seconds)
{
    const struct dcp_term *out = &findings->m->out;
    uint64_t n = result->n_findings, n_unproved = result->n_unproved;
    char shown[512];
    dcp_term_printf(
        out, "%s%-9s%s %s: %s\n",
        dcp_term_style(out, rc ? DCP_STYLE_BAD : DCP_STYLE_GOOD),
        rc == DCP_E_IO ? "unread"
        : rc           ? "corrupt"
                       : "complete",
        dcp_term_style(out, DCP_STYLE_OFF),
        dcp_str_escape(shown, sizeof shown, findings->path),
        rc == DCP_E_IO
            ? dcp_human_items(n, "file cannot be read", "files cannot be read").text
        : rc         ? dcp_human_items(n, "corrupt range", "corrupt ranges").text
        : n_unproved ? "no gaps, no overlaps"
                     : "every digest and fingerprint holds");
    dcp_term_printf(out, "          %s, %s read in %s%s",
                    dcp_human_items(result->n_tensors, "tensor", "tensors").text,
                    dcp_human_size(result->size_bytes).text, dcp_human_time(seconds).text,
                    rc || n_unproved ? "" : "; no gaps, no overlaps");
    if (n_unproved)
        dcp_term_printf(
            out, "; %s%s of them have no digest%s", dcp_term_style(out, DCP_STYLE_NOTE),
            dcp_human_count(n_unproved).text, dcp_term_style(out, DCP_STYLE_OFF));
    if (!rc && findings->untold[0])
        dcp_term_printf(out, "; %s%s%s", dcp_term_style(out, DCP_STYLE_NOTE),
                        findings->untold, dcp_term_style(out, DCP_STYLE_OFF));
    dcp_term_put(out, "\n");
}

/* What is no corruption, and yet not as it may be thought to be. */
static void print_notes(const struct inspect_findings *f, int rc,
                        const struct dcp_verify_result *result)
{
    const struct dcp_term *out = &f->m->out;
    DCP_CLEANUP_FREE char *note =
        dcp_str_join(dcp_term_style(out, DCP_STYLE_NOTE), "note      ",
                     dcp_term_style(out, DCP_STYLE_OFF));
    if (rc || !note)
        return;
    if (result->n_unproved && f->n_hole_files)
        dcp_term_printf(out, "%s%s%s %s %s that were never written, or only zeros\n",
                        note, f->hole_file, f->n_hole_files > 1 ? " and others" : "",
                        f->n_hole_files > 1 ? "have" : "has",
                        dcp_human_size(f->hole_bytes).text);
    if (f->weight[0])
        dcp_term_printf(out, "%s" DCP_FAMILY_LACKS "\n", note, DCP_SHOWN(f->weight));
}

static void print_part(struct dcp_main *m, const char *path, int rc,
                       const struct dcp_verify_result *r, const struct inspect_part *part,
                       double seconds)
{
    const struct dcp_term *out = &m->out;
    char shown[512], goes_on[80] = "all of it was read once";
    if (part->to < 1)
        snprintf(goes_on, sizeof goes_on, "the next call goes on at %.4g %%",
                 100 * part->to);
    dcp_term_printf(
        out, "%s%-9s%s %s: %.4g %% from %.4g %% on, %s\n",
        dcp_term_style(out, rc ? DCP_STYLE_BAD : DCP_STYLE_GOOD), rc ? "corrupt" : "good",
        dcp_term_style(out, DCP_STYLE_OFF), dcp_str_escape(shown, sizeof shown, path),
        100 * (part->to - part->from), 100 * part->from,
        rc ? dcp_human_items(r->n_findings, "corrupt range", "corrupt ranges").text
           : "every block as it was written");
    dcp_term_printf(out, "          %s read in %s; %s\n",
                    dcp_human_size(r->size_bytes).text, dcp_human_time(seconds).text,
                    goes_on);
}

void inspect_findings_print(struct inspect_findings *findings, int rc,
                            const struct dcp_verify_result *result,
                            const struct inspect_part *part, double seconds)
{
    print_lost(findings);
    if (part->to > 0)
        print_part(findings->m, findings->path, rc, result, part, seconds);
    else
        print_verdict(findings, rc, result, seconds);
    if (part->to <= 0)
        print_notes(findings, rc, result);
}

json_t *inspect_findings_json(struct inspect_findings *findings, int rc,
                              const struct dcp_verify_result *r,
                              const struct inspect_part *part, double seconds)
{
    json_t *doc = json_object();
    int failed = !doc || json_object_update(doc, findings->head);
    failed |= dcp_doc_set(doc, "whole", json_boolean(rc == DCP_OK));
    if (part->to > 0)
        failed |= dcp_doc_set(
            doc, "subset", json_pack("{s:f, s:f}", "from", part->from, "to", part->to));
    failed |= dcp_doc_set(doc, "n_damages", dcp_doc_u64(r->n_findings));
    failed |= dcp_doc_set(doc, "n_blocks", dcp_doc_u64(r->n_blocks));
    failed |= dcp_doc_set(doc, "n_unproved", dcp_doc_u64(r->n_unproved));
    failed |=
        dcp_doc_set(doc, "untold",
                    findings->untold[0] ? dcp_doc_text(findings->untold) : json_null());
    failed |= dcp_doc_set(doc, "hole_bytes",
                          dcp_doc_u64(r->n_unproved ? findings->hole_bytes : 0));
    failed |= dcp_doc_set(
        doc, "lacks", findings->weight[0] ? dcp_doc_text(findings->weight) : json_null());
    failed |= dcp_doc_set(doc, "read_bytes", dcp_doc_u64(r->size_bytes));
    failed |= dcp_doc_set(doc, "seconds", dcp_doc_real(seconds));
    failed |= dcp_doc_set(doc, "damages", findings->list);
    findings->list = NULL;
    if (failed) {
        json_decref(doc);
        doc = NULL;
    }
    return doc;
}

void inspect_findings_fini(struct inspect_findings *findings)
{
    json_decref(findings->head);
    json_decref(findings->list);
    dcp_buf_fini(&findings->lost);
}
