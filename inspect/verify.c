/* verify: reads everything and names what is damaged. */
#include "verbs.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "checkpoint.h"
#include "cli/damage.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/text.h"
#include "globals.h"
#include "scrub.h"
#include <stdio.h>

#define INDENT 10 /* where findings begin */

#define NAMED 4 /* parts of tensors that are named of a file that is lost */

/* Damage goes to the terminal, or into the document. */
struct findings {
    struct dcp_main *m;
    const char *path; /* of the checkpoint */
    const struct dcp_catalog *catalog;
    json_t *head, *list; /* with --json; NULL once memory ran out */
    struct dcp_buf lost; /* what is lost with the file that was named last: its parts */
    uint64_t n_lost;
    bool is_of_file; /* they lie in it */
};

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
                     const struct dcp_damage *damage)
{
    char range[80];
    format_range(t, damage->begin, damage->end, range, sizeof range);
    dcp_buf_add_text(text, "'");
    dcp_text_add_escaped(text, damage->tensor);
    dcp_buf_add_fmt(text, "' %s", range);
}

/* "tensor 'x' rows 0..3 in shard (1,024 bytes at 96): the block digest differs" */
static void add_damage(struct dcp_buf *text, const struct dcp_tensor *t,
                       const struct dcp_damage *damage)
{
    if (damage->tensor) {
        dcp_buf_add_text(text, "tensor ");
        add_part(text, t, damage);
    }
    if (damage->file) {
        dcp_buf_add_text(text, damage->tensor ? " in " : "");
        dcp_text_add_escaped(text, damage->file);
        if (damage->size_bytes)
            dcp_buf_add_fmt(text, " (%s at %s)",
                            dcp_human_items(damage->size_bytes, "byte", "bytes").text,
                            dcp_human_count(damage->offset).text);
    }
    dcp_buf_add_text(text, text->size_bytes ? ": " : "");
    dcp_text_add_escaped(text, damage->what ? damage->what : "");
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
static void print_lost(struct findings *f)
{
    if (f->n_lost > NAMED)
        dcp_buf_add_fmt(&f->lost, " and %s more (--json lists them)",
                        dcp_human_count(f->n_lost - NAMED).text);
    if (f->n_lost)
        print_line(f->m, f->is_of_file ? "" : "damaged", &f->lost);
    dcp_buf_fini(&f->lost);
    f->lost = (struct dcp_buf){ 0 };
    f->n_lost = 0;
}

static void print_damage(struct findings *f, const struct dcp_tensor *t,
                         const struct dcp_damage *damage)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (damage->with_file) {
        if (!damage->file && f->is_of_file)
            print_lost(f);
        f->is_of_file = damage->file;
        if (f->n_lost < NAMED) {
            dcp_buf_add_text(&f->lost, f->n_lost ? ", "
                                       : damage->file
                                           ? "with it "
                                           : "no shard manifest says where these lie: ");
            add_part(&f->lost, t, damage);
        }
        f->n_lost++;
        return;
    }
    print_lost(f);
    add_damage(&text, t, damage);
    print_line(f->m, damage->code == DCP_E_IO ? "unread" : "damaged", &text);
}

static void on_begin(void *self, const struct dcp_catalog *catalog)
{
    struct findings *findings = self;
    findings->catalog = catalog;
    inspect_globals_warn(findings->m, catalog);
    if (findings->m->json)
        findings->head = inspect_catalog_json(findings->path, catalog);
}

static void on_damage(void *self, const struct dcp_damage *damage)
{
    struct findings *findings = self;
    int i = damage->tensor ? dcp_catalog_find(findings->catalog, damage->tensor) : -1;
    if (!findings->m->json) {
        print_damage(findings, i < 0 ? NULL : &findings->catalog->tensors[i], damage);
        return;
    }
    json_t *item = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "code", dcp_error_name(damage->code),
        "file", dcp_doc_text(damage->file), "tensor", dcp_doc_text(damage->tensor),
        "begin", damage->tensor ? json_integer(damage->begin) : json_null(), "end",
        damage->tensor ? json_integer(damage->end) : json_null(), "offset",
        damage->file ? dcp_doc_u64(damage->offset) : json_null(), "size_bytes",
        damage->file ? dcp_doc_u64(damage->size_bytes) : json_null(), "what",
        dcp_doc_text(damage->what));
    if (dcp_doc_add(findings->list, item)) {
        json_decref(findings->list);
        findings->list = NULL;
    }
}

/* What was found, and what that rests on. */
static void print_verdict(struct dcp_main *m, const char *path, int rc,
                          const struct dcp_verify_result *result, double seconds)
{
    const struct dcp_term *out = &m->out;
    uint64_t n = result->n_damages, n_unproved = result->n_unproved;
    char shown[512];
    dcp_term_printf(
        out, "%s%-9s%s %s: %s\n",
        dcp_term_style(out, rc ? DCP_STYLE_BAD : DCP_STYLE_GOOD),
        rc == DCP_E_IO ? "unread"
        : rc           ? "not whole"
                       : "whole",
        dcp_term_style(out, DCP_STYLE_OFF), dcp_str_escape(shown, sizeof shown, path),
        rc == DCP_E_IO
            ? dcp_human_items(n, "file cannot be read", "files cannot be read").text
        : rc         ? dcp_human_items(n, "damaged place", "damaged places").text
        : n_unproved ? "no holes, no overlaps"
                     : "every digest and fingerprint holds");
    dcp_term_printf(out, "          %s, %s read in %s%s",
                    dcp_human_items(result->n_tensors, "tensor", "tensors").text,
                    dcp_human_size(result->size_bytes).text, dcp_human_time(seconds).text,
                    rc || n_unproved ? "" : "; no holes, no overlaps");
    if (n_unproved)
        dcp_term_printf(
            out, "; %sno digest proves %s of them%s", dcp_term_style(out, DCP_STYLE_NOTE),
            dcp_human_count(n_unproved).text, dcp_term_style(out, DCP_STYLE_OFF));
    dcp_term_put(out, "\n");
}

/* What of it is read, and how. */
struct settings {
    uint64_t rate;
    const char *subset, *state;
};

/* The part that this call verifies, and where the next one goes on. */
struct part {
    double from, to; /* to 0: all */
};

static int print_json(struct dcp_main *m, struct findings *findings, int verdict,
                      const struct dcp_verify_result *r, const struct part *part,
                      double seconds, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("verify");
    int rc = json_object_update(doc, findings->head) ? DCP_E_MEMORY : DCP_OK;
    rc |= dcp_doc_set(doc, "whole", json_boolean(verdict == DCP_OK));
    if (part->to > 0)
        rc |= dcp_doc_set(doc, "subset",
                          json_pack("{s:f, s:f}", "from", part->from, "to", part->to));
    rc |= dcp_doc_set(doc, "n_damages", dcp_doc_u64(r->n_damages));
    rc |= dcp_doc_set(doc, "n_blocks", dcp_doc_u64(r->n_blocks));
    rc |= dcp_doc_set(doc, "n_unproved", dcp_doc_u64(r->n_unproved));
    rc |= dcp_doc_set(doc, "read_bytes", dcp_doc_u64(r->size_bytes));
    rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(seconds));
    rc |= dcp_doc_set(doc, "damages", findings->list);
    findings->list = NULL;
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}

static void print_part(struct dcp_main *m, const char *path, int rc,
                       const struct dcp_verify_result *r, const struct part *part,
                       double seconds)
{
    const struct dcp_term *out = &m->out;
    char shown[512], goes_on[80] = "the whole was read once";
    if (part->to < 1)
        snprintf(goes_on, sizeof goes_on, "the next call goes on at %.4g %%",
                 100 * part->to);
    dcp_term_printf(
        out, "%s%-9s%s %s: %.4g %% from %.4g %% on, %s\n",
        dcp_term_style(out, rc ? DCP_STYLE_BAD : DCP_STYLE_GOOD),
        rc ? "not whole" : "good", dcp_term_style(out, DCP_STYLE_OFF),
        dcp_str_escape(shown, sizeof shown, path), 100 * (part->to - part->from),
        100 * part->from,
        rc ? dcp_human_items(r->n_damages, "damaged place", "damaged places").text
           : "every block as it was written");
    dcp_term_printf(out, "          %s read in %s; %s\n",
                    dcp_human_size(r->size_bytes).text, dcp_human_time(seconds).text,
                    goes_on);
}

static int choose_part(const struct settings *s, const char *path, struct part *part,
                       struct dcp_error *err)
{
    double subset;
    *part = (struct part){ 0 };
    if (!s->subset)
        return DCP_OK;
    int rc = inspect_scrub_parse(s->subset, &subset, err);
    if (!rc)
        rc = inspect_scrub_load(s->state, path, &part->from, err);
    part->to = part->from + subset < 1 ? part->from + subset : 1;
    return rc;
}

/* The answer, whatever it is. */
static int answer(struct dcp_main *m, const struct dcp_place *place,
                  struct findings *findings, int rc,
                  const struct dcp_verify_result *result, const struct part *part,
                  double seconds, struct dcp_error *err)
{
    struct dcp_error printing = { 0 };
    if (m->json && print_json(m, findings, rc, result, part, seconds, &printing)) {
        *err = printing;
        return printing.code;
    }
    print_lost(findings);
    if (!m->json && part->to > 0)
        print_part(m, place->path, rc, result, part, seconds);
    else if (!m->json)
        print_verdict(m, place->path, rc, result, seconds);
    if (rc == DCP_E_CORRUPT) {
        dcp_error_prefix(err, "'%s' is damaged", place->path);
        dcp_damage_hint(place, true, err);
    } else if (rc == DCP_E_IO) {
        dcp_error_prefix(err, "'%s' is not proved", place->path);
    }
    return rc;
}

static int verify(struct dcp_main *m, const struct settings *s,
                  const struct dcp_place *place, struct findings *findings,
                  struct dcp_error *err)
{
    struct dcp_source source = dcp_place_plain(place);
    const char *path = place->path;
    struct dcp_verify_result result = { 0 };
    struct inspect_slow slow;
    struct part part;
    int rc = choose_part(s, path, &part, err);
    if (rc)
        return rc;
    struct dcp_verify_options options = { .begin = on_begin,
                                          .damage = on_damage,
                                          .self = findings,
                                          .progress = dcp_main_progress(m, "verifying"),
                                          .threads = m->threads,
                                          .from = part.from,
                                          .to = part.to };
    inspect_slow_init(&slow, source.store, s->rate ? s->rate : 1);
    if (s->rate)
        source.store = &slow.store;
    double begin = dcp_clock_s();
    rc = dcp_verify(&source, &options, &result, err);
    double seconds = dcp_clock_s() - begin;
    inspect_slow_fini(&slow);
    dcp_main_progress_end(m);
    bool found = result.n_damages && (rc == DCP_E_CORRUPT || rc == DCP_E_IO);
    if (rc && !found) {
        dcp_place_name_error(place, err);
        return rc;
    }
    rc = answer(m, place, findings, rc, &result, &part, seconds, err);
    if (s->subset) {
        struct dcp_error why = { 0 };
        int kept = inspect_scrub_store(s->state, path, part.to < 1 ? part.to : 0, &why);
        if (kept && !rc) {
            *err = why;
            rc = kept;
        }
    }
    return rc;
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    struct dcp_place place;
    int rc = dcp_place_open(m->operands.items[0], &place, err);
    if (rc)
        return rc;
    struct findings findings = { .m = m, .path = place.path };
    if (inspect_is_run(&place))
        dcp_damage_passed_over(&place, &m->log);
    findings.list = m->json ? json_array() : NULL;
    rc = verify(m, settings, &place, &findings, err);
    json_decref(findings.head);
    json_decref(findings.list);
    dcp_buf_fini(&findings.lost);
    dcp_place_close(&place);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    { 0, "rate", "SIZE", "read so many bytes a second at most", "In the background",
      DCP_OPT_SIZE, AT(rate), .min = 65536 },
    { 0, "subset", "PERCENT",
      "so much of a native step, by the digests of its blocks; the next call goes on "
      "from "
      "there",
      NULL, DCP_OPT_TEXT, AT(subset) },
    { 0, "state", "FILE",
      "remembers where that is (default ~/.local/state/libdcp/scrub.json)", NULL,
      DCP_OPT_TEXT, AT(state) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-inspect verify run", "the newest whole step of a run" },
    { "dcp-inspect verify run/step-00001200 --json", "one step; damages as a list" },
    { "dcp-inspect verify run --rate 50M --subset 5%",
      "a part at a time, for a job that runs every hour" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "whole" },
    INSPECT_EXITS_FAILED,
};

const struct dcp_command inspect_verify = {
    .name = "verify",
    .operands = "PATH",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "read everything, check every digest, and name what is damaged",
    .about = INSPECT_ABOUT_PATH "\nChecks every digest of blocks and pieces, the "
                                "fingerprint of every tensor, and that "
                                "there are no holes and no overlaps. It goes on after "
                                "damage, and names the file, the "
                                "tensor and the rows.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = exits,
    .run = run,
};
