#include "show.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/human.h"
#include "cli/text.h"
#include "globals.h"
#include <dcp/delta.h>
#include <stdio.h>
#include <string.h>

#define INDENT 15      /* where the facts begin */
#define STEPS_MOST 12  /* that are named */
#define OBJECTS_MOST 8 /* likewise */

static bool fits(const struct dcp_main *m, const struct dcp_buf *text)
{
    return !m->out.width || text->failed || !text->size_bytes ||
           INDENT + dcp_text_width((const char *)text->data) < m->out.width;
}

/* "  size         1.62 GiB in …", wrapped where the terminal is too narrow. */
static int put_fact(struct dcp_main *m, const char *label, const struct dcp_buf *text,
                    enum dcp_style style, struct dcp_error *err)
{
    const struct dcp_term *out = &m->out;
    const char *fact = text->size_bytes ? (const char *)text->data : "";
    DCP_CLEANUP_BUF struct dcp_buf line = { 0 };
    if (fits(m, text))
        dcp_buf_add_text(&line, fact);
    else
        dcp_text_add_wrapped(&line, fact, INDENT, INDENT, out->width);
    int rc = dcp_buf_check(text, err);
    if (rc == DCP_OK)
        rc = dcp_buf_check(&line, err);
    if (rc == DCP_OK)
        dcp_term_printf(out, "  %s%-12s%s %s%s%s\n", dcp_term_style(out, DCP_STYLE_DIM),
                        label, dcp_term_style(out, DCP_STYLE_OFF),
                        style ? dcp_term_style(out, style) : "",
                        line.size_bytes ? (const char *)line.data : "",
                        style ? dcp_term_style(out, DCP_STYLE_OFF) : "");
    return rc;
}

static void put_title(struct dcp_main *m, const struct inspect_shown *shown)
{
    const struct dcp_catalog *catalog = shown->checkpoint.catalog;
    char path[512], version[64], producer[128];
    dcp_term_printf(&m->out, "%s%s%s", dcp_term_style(&m->out, DCP_STYLE_BOLD),
                    dcp_str_escape(path, sizeof path, shown->path),
                    dcp_term_style(&m->out, DCP_STYLE_OFF));
    if (!catalog) {
        dcp_term_put(&m->out, "   run folder without a complete step\n");
        return;
    }
    dcp_str_escape(version, sizeof version, catalog->version ? catalog->version : "");
    dcp_str_escape(producer, sizeof producer, catalog->producer ? catalog->producer : "");
    /* "torch", "torch zip" is said once */
    if (dcp_str_starts(version, catalog->format))
        dcp_term_printf(&m->out, "   %s", version);
    else
        dcp_term_printf(&m->out, "   %s%s%s", catalog->format, version[0] ? " " : "",
                        version);
    if (catalog->world_size > 1)
        dcp_term_printf(&m->out, ", saved by %d ranks", catalog->world_size);
    else if (producer[0])
        dcp_term_printf(&m->out, ", written by %s", producer);
    dcp_term_put(&m->out, "\n");
}

static int put_model(struct dcp_main *m, const struct inspect_shown *shown,
                     struct dcp_error *err)
{
    const struct inspect_facts *f = &shown->facts;
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (!f->n_params)
        return DCP_OK;
    if (f->family.name[0])
        dcp_buf_add_fmt(&text, "%s  ", f->family.name);
    dcp_buf_add_text(&text, dcp_human_items(f->n_params, "parameter", "parameters").text);
    if (f->family.n_layers > 0)
        dcp_buf_add_fmt(
            &text, "  %s",
            dcp_human_items((uint64_t)f->family.n_layers, "layer", "layers").text);
    if (f->family.n_vocab > 0)
        dcp_buf_add_fmt(&text, "  vocab %s",
                        dcp_human_count((uint64_t)f->family.n_vocab).text);
    if (f->n_tied)
        dcp_buf_add_fmt(&text, "  %s tied", dcp_human_count(f->n_tied).text);
    return put_fact(m, "model", &text, DCP_STYLE_OFF, err);
}

/* "bf16", as people say it. */
static void add_dtype(struct dcp_buf *text, const struct inspect_group *group)
{
    const char *name = group->quantized ? "quantized" : dcp_dtype_name(group->dtype);
    for (const char *c = name; *c; c++)
        dcp_buf_add_u8(text, (uint8_t)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c));
}

static void add_separator(struct dcp_buf *text)
{
    if (text->size_bytes)
        dcp_buf_add_text(text, " · ");
}

/* Groups of one role follow each other: the index behind the last of those that begin at
 * `first`. */
static size_t end_of_role(const struct inspect_facts *facts, size_t first)
{
    size_t end = first;
    while (end < facts->n_groups && facts->groups[end].role == facts->groups[first].role)
        end++;
    return end;
}

/* Whether the role at `first` and the one behind it, of the optimizer both, have one
 * dtype and the same. */
static bool shares_dtype(const struct inspect_facts *facts, size_t first, size_t next)
{
    const struct inspect_group *g = facts->groups;
    return next < facts->n_groups && next == first + 1 &&
           end_of_role(facts, next) == next + 1 && g[first].dtype == g[next].dtype &&
           dcp_role_is_optim(g[first].role) && dcp_role_is_optim(g[next].role);
}

/* "weights bf16 · master, adam m, v f32": roles that share a dtype share its name. */
static void add_roles(struct dcp_buf *text, const struct inspect_facts *facts)
{
    static const char *const words[DCP_N_ROLES] = {
        [DCP_ROLE_MODEL] = "weights",     [DCP_ROLE_BUFFER] = "buffers",
        [DCP_ROLE_MASTER] = "master",     [DCP_ROLE_EXP_AVG] = "adam m",
        [DCP_ROLE_EXP_AVG_SQ] = "adam v", [DCP_ROLE_OPTIM] = "optimizer",
        [DCP_ROLE_OTHER] = "tensors",
    };
    bool shared = false; /* with the role before */
    for (size_t first = 0, end; first < facts->n_groups; first = end) {
        enum dcp_role role = facts->groups[first].role;
        bool pair = shared && facts->groups[first - 1].role == DCP_ROLE_EXP_AVG;
        end = end_of_role(facts, first);
        if (shared)
            dcp_buf_add_text(text, ", ");
        else
            add_separator(text);
        dcp_buf_add_text(text, pair ? "v" : words[role]);
        shared = shares_dtype(facts, first, end);
        for (size_t i = first; i < end && !shared; i++) {
            dcp_buf_add_text(text, i > first ? ", " : " ");
            add_dtype(text, &facts->groups[i]);
        }
    }
}

static void add_objects(struct dcp_buf *text, const struct dcp_catalog *catalog)
{
    size_t named = 0, others = 0;
    for (size_t i = 0; i < catalog->n_objects; i++) {
        const char *name = catalog->objects[i].name, *file = dcp_object_file(name);
        if (dcp_family_is_config(name) || strcmp(name, DCP_LINEAGE) == 0)
            continue; /* are the lines "model" and "lineage" */
        if (named == OBJECTS_MOST) {
            others++;
            continue;
        }
        named++;
        char shown[64];
        dcp_str_escape(shown, sizeof shown, file ? file : name);
        add_separator(text);
        dcp_buf_add_text(text, strcmp(name, DCP_TRAINING_DATA) == 0 ? "data cursor"
                               : strcmp(name, DCP_TRAINING_LOSS_SCALER) == 0
                                   ? "loss scaler"
                                   : shown);
    }
    if (others)
        dcp_buf_add_fmt(text, " · %s",
                        dcp_human_items(others, "more object", "more objects").text);
}

static int put_holds(struct dcp_main *m, const struct inspect_shown *shown,
                     struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    add_roles(&text, &shown->facts);
    add_objects(&text, shown->checkpoint.catalog);
    if (!text.size_bytes)
        dcp_buf_add_text(&text, "nothing");
    return put_fact(m, "holds", &text, DCP_STYLE_OFF, err);
}

static int put_size(struct dcp_main *m, const struct inspect_shown *shown,
                    struct dcp_error *err)
{
    const struct inspect_facts *f = &shown->facts;
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    dcp_buf_add_text(&text, dcp_human_size(f->shard_bytes).text);
    if (f->n_shards > 1) {
        double mean = (double)f->shard_bytes / (double)f->n_shards;
        dcp_buf_add_fmt(
            &text, " in %s shards (%s each, spread %.1f %%)",
            dcp_human_count(f->n_shards).text, dcp_human_size((uint64_t)mean).text,
            mean > 0 ? 100 * (double)(f->shard_most - f->shard_least) / mean : 0.0);
    } else if (f->n_shards == 1) {
        dcp_buf_add_text(&text, " in one file");
    }
    /* A codec, or tensors with two names, make the files smaller than the tensors. */
    if ((double)f->shard_bytes < 0.98 * (double)f->tensor_bytes)
        dcp_buf_add_fmt(&text, ", for %s of tensors",
                        dcp_human_size(f->tensor_bytes).text);
    return put_fact(m, "size", &text, DCP_STYLE_OFF, err);
}

/* Of what is stored as a delta: against what. */
static int put_delta(struct dcp_main *m, const struct inspect_shown *shown,
                     struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    DCP_CLEANUP_FREE char *base = NULL;
    const struct dcp_source *source = &shown->checkpoint.location.source;
    char line[512];
    uint64_t full, stored;
    int chain;
    if (!source->is_dir ||
        dcp_delta_base(source->store, source->name, &base, &chain, NULL) ||
        dcp_delta_sizes(source->store, source->name, &full, &stored, NULL))
        return DCP_OK;
    dcp_buf_add_fmt(&text, "on %s, number %d of its chain: %s for %s",
                    dcp_str_escape(line, sizeof line, base), chain,
                    dcp_human_size(stored).text, dcp_human_size(full).text);
    return put_fact(m, "delta", &text, DCP_STYLE_OFF, err);
}

static int put_layout(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    const struct dcp_catalog *catalog = shown->checkpoint.catalog;
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    char layout[64];
    if (!catalog->layout || !catalog->layout[0])
        return DCP_OK;
    dcp_buf_add_text(&text, dcp_str_escape(layout, sizeof layout, catalog->layout));
    if (catalog->mesh.tp > 1 || catalog->mesh.pp > 1)
        dcp_buf_add_fmt(&text, ", dp %d × tp %d × pp %d", catalog->mesh.dp,
                        catalog->mesh.tp, catalog->mesh.pp);
    return put_fact(m, "layout", &text, DCP_STYLE_OFF, err);
}

/* "148 tensors × 4" where each role has as many, else "592 tensors". */
static void add_tensor_count(struct dcp_buf *text, const struct inspect_shown *shown)
{
    uint64_t each = 0, n_roles = 0, all = 0;
    bool even = true;
    for (int role = 0; role < DCP_N_ROLES; role++) {
        uint64_t n = shown->facts.role_tensors[role];
        all += n;
        if (n) {
            even = even && (n_roles == 0 || n == each);
            each = n;
            n_roles++;
        }
    }
    if (even && n_roles > 1)
        dcp_buf_add_fmt(text, "%s × %d", dcp_human_items(each, "tensor", "tensors").text,
                        (int)n_roles);
    else
        dcp_buf_add_text(text, dcp_human_items(all, "tensor", "tensors").text);
}

static int put_parity(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    struct dcp_parity_facts parity;
    int rc = dcp_parity_facts(shown->checkpoint.catalog, &parity, err);
    if (rc || !parity.rows)
        return rc;
    dcp_buf_add_fmt(
        &text, "any %s of %s%s can be lost (%s more)",
        dcp_human_items((uint64_t)parity.rows, "shard", "shards").text,
        parity.n_groups > 1 ? "each of " : "",
        parity.n_groups > 1
            ? dcp_human_items((uint64_t)parity.n_groups, "group", "groups").text
            : dcp_human_count((uint64_t)shown->checkpoint.catalog->world_size).text,
        dcp_human_size(parity.size_bytes).text);
    return put_fact(m, "parity", &text, DCP_STYLE_OFF, err);
}

/* Of steps alone; only 'verify' of dcp-reshard, and --trusted-keys, read what is signed.
 */
static int put_signed(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    const struct dcp_source *source = &shown->checkpoint.location.source;
    DCP_CLEANUP_FREE char *keys = dcp_signers(source);
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (!keys)
        return DCP_OK;
    dcp_buf_add_text(&text, "by key ");
    for (const char *c = keys; *c; c++)
        dcp_buf_add_text(&text, *c == '\n' ? ", " : (char[]){ *c, '\0' });
    dcp_buf_add_text(&text, m->trusted ? "  (checked)"
                                       : "  (not checked; see dcp-reshard verify)");
    return put_fact(m, "signed", &text, DCP_STYLE_OFF, err);
}

static int put_whole(struct dcp_main *m, const struct inspect_shown *shown,
                     struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (shown->hole.code) {
        dcp_buf_add_fmt(&text, "no: %s", shown->hole.message);
        return put_fact(m, "complete", &text, DCP_STYLE_BAD, err);
    }
    if (shown->checkpoint.location.corruption.code) {
        dcp_buf_add_fmt(&text, "no: %s; its parity gives what is lost",
                        shown->checkpoint.location.corruption.message);
        return put_fact(m, "complete", &text, DCP_STYLE_BAD, err);
    }
    dcp_buf_add_text(&text, "yes: ");
    add_tensor_count(&text, shown);
    dcp_buf_add_text(&text, shown->checkpoint.catalog->head
                                ? ", all files are there  (digests not read; see verify)"
                            : shown->facts.has_digests
                                ? ", no gaps, no overlaps  (digests not read; see verify)"
                                : ", no gaps, no overlaps  (it holds no digests)");
    return put_fact(m, "complete", &text, DCP_STYLE_OFF, err);
}

/* What its objects name that is not known to be safe, if anything. */
static int put_unsafe(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    struct inspect_globals globals;
    char found[320];
    int rc = inspect_globals_of_catalog(shown->checkpoint.catalog, &globals, err);
    inspect_globals_text(&globals, found, sizeof found);
    inspect_globals_fini(&globals);
    if (rc || !found[0])
        return rc;
    dcp_buf_add_fmt(&text, "%s: see 'dcp-inspect scan'", found);
    return put_fact(m, "objects", &text, DCP_STYLE_BAD, err);
}

static int put_finite(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (!shown->checkpoint.catalog->diverged)
        return DCP_OK;
    dcp_buf_add_text(&text, "no: its weights or its loss are infinite or NaN");
    return put_fact(m, "finite", &text, DCP_STYLE_BAD, err);
}

static int put_resume(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    const struct dcp_catalog *catalog = shown->checkpoint.catalog;
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (!shown->facts.n_params)
        return DCP_OK;
    if (shown->facts.weight[0])
        dcp_buf_add_fmt(&text, "no: " DCP_FAMILY_LACKS, shown->facts.weight);
    else if (shown->facts.missing[0] && !shown->facts.has_optimizer)
        dcp_buf_add_fmt(&text, "no: it holds %s; its weights can begin a run",
                        shown->facts.role_tensors[DCP_ROLE_EXP_AVG]
                            ? "a part of its optimizer"
                            : "no optimizer");
    else if (shown->facts.missing[0])
        dcp_buf_add_fmt(&text, "no: without %s; its weights can begin a run",
                        shown->facts.missing);
    else if (shown->hole.code)
        dcp_buf_add_text(&text, "no: it is incomplete");
    else if (catalog->step >= 0)
        dcp_buf_add_fmt(&text, "yes: at step %s, with any number of ranks",
                        dcp_human_count((uint64_t)catalog->step).text);
    else
        dcp_buf_add_text(&text, "yes: with any number of ranks");
    return put_fact(m, "resume", &text, DCP_STYLE_OFF, err);
}

static int put_lineage(struct dcp_main *m, const struct inspect_shown *shown,
                       struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    inspect_lineage_text(shown, &text);
    if (!text.size_bytes)
        return dcp_buf_check(&text, err);
    return put_fact(m, "lineage", &text, DCP_STYLE_OFF, err);
}

static void add_older(struct dcp_buf *text, const struct inspect_shown *shown)
{
    const struct dcp_catalog *catalog = shown->checkpoint.catalog;
    size_t named = 0, others = 0;
    for (size_t i = 0; i < shown->n_steps; i++) {
        const struct dcp_step *s = &shown->steps[i];
        if (!s->complete || (catalog && s->step == catalog->step))
            continue;
        if (named++ < STEPS_MOST)
            dcp_buf_add_fmt(text, "%s%lld", text->size_bytes ? " " : "",
                            (long long)s->step);
        else
            others++;
    }
    if (others)
        dcp_buf_add_fmt(text, " and %s more", dcp_human_count(others).text);
    if (!named)
        dcp_buf_add_text(text, "none");
}

static const char *unfinished_text(size_t n)
{
    return n == 1 ? "one temporary folder (safe; the next save removes it)"
                  : "temporary folders (safe; the next save removes them)";
}

/* The steps before the one that is shown, and what is unfinished: in one line if it has
 * room for both. */
static int put_older(struct dcp_main *m, const struct inspect_shown *shown,
                     struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf older = { 0 }, unfinished = { 0 }, both = { 0 };
    size_t n = shown->n_unfinished;
    add_older(&older, shown);
    add_older(&both, shown);
    if (n > 1)
        dcp_buf_add_fmt(&unfinished, "%s ", dcp_human_count(n).text);
    if (n)
        dcp_buf_add_text(&unfinished, unfinished_text(n));
    if (n && !unfinished.failed)
        dcp_buf_add_fmt(&both, "   unfinished: %s", (const char *)unfinished.data);
    if (fits(m, &both))
        return put_fact(m, "older steps", &both, DCP_STYLE_OFF, err);
    int rc = put_fact(m, "older steps", &older, DCP_STYLE_OFF, err);
    return rc || !n ? rc : put_fact(m, "unfinished", &unfinished, DCP_STYLE_OFF, err);
}

static int put_corrupt(struct dcp_main *m, const struct inspect_shown *shown,
                       struct dcp_error *err)
{
    int rc = DCP_OK;
    for (size_t i = 0; i < shown->n_steps && rc == DCP_OK; i++) {
        DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
        if (shown->steps[i].complete)
            continue;
        dcp_buf_add_fmt(&text, "%s: %s", shown->steps[i].name,
                        shown->steps[i].why.message);
        rc = put_fact(m, "incomplete", &text, DCP_STYLE_BAD, err);
    }
    return rc;
}

int inspect_show_text(struct dcp_main *m, const struct inspect_shown *shown,
                      struct dcp_error *err)
{
    static int (*const lines[])(struct dcp_main *, const struct inspect_shown *,
                                struct dcp_error *) = {
        put_model,  put_holds, put_layout, put_size,   put_delta,  put_parity,
        put_signed, put_whole, put_finite, put_unsafe, put_resume, put_lineage,
    };
    int rc = DCP_OK;
    put_title(m, shown);
    for (size_t i = 0;
         shown->checkpoint.catalog && rc == DCP_OK && i < sizeof lines / sizeof lines[0];
         i++)
        rc = lines[i](m, shown, err);
    bool is_run = shown->n_steps > 0 || shown->n_unfinished > 0;
    if (rc == DCP_OK && is_run)
        rc = put_corrupt(m, shown, err);
    if (rc == DCP_OK && is_run)
        rc = put_older(m, shown, err);
    return rc;
}
