/* stats: what the numbers of each tensor are like. */
#include "verbs.h"

#include "base/mem.h"
#include "base/str.h"
#include "checkpoint.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/table.h"
#include "summary.h"
#include "value.h"
#include "work.h"
#include <math.h>
#include <string.h>

#define CURVE_BINS 12 /* of the histogram in a row */
#define DOC_BINS 64   /* in a document */

struct settings {
    struct inspect_selection selection;
    int64_t limit;
    bool no_verify;
};

/* What stays of a tensor's summary once its histogram is small. */
struct stats {
    const struct dcp_tensor *tensor;
    uint64_t n, n_nan, n_inf, n_zero;
    double min, max, mean, deviation, norm;
    double low, width; /* of the bins */
    size_t n_bins;
    uint64_t bins[DOC_BINS];
};

struct job {
    struct inspect_checkpoint *checkpoint;
    struct stats *stats;
    size_t n_bins;
    bool verify;
};

static void take(struct stats *stats, const struct inspect_summary *s, size_t n_bins)
{
    bool any = s->min <= s->max;
    stats->n = s->n;
    stats->n_nan = s->n_nan;
    stats->n_inf = s->n_inf;
    stats->n_zero = s->n_zero;
    stats->min = any ? s->min : NAN;
    stats->max = any ? s->max : NAN;
    stats->mean = any ? inspect_summary_mean(s) : NAN;
    stats->deviation = any ? inspect_summary_deviation(s) : NAN;
    stats->norm = any ? inspect_summary_norm(s) : NAN;
    stats->n_bins = inspect_histogram_view(&s->histogram, n_bins, stats->bins,
                                           &stats->low, &stats->width);
}

/* A reader and room for one chunk, raw and as doubles. */
struct tools {
    struct dcp_reader *reader;
    void *raw;
    double *values;
    struct inspect_summary *summary;
};

static int summarise(const struct job *job, struct tools *tools, struct stats *stats,
                     struct inspect_work *work, struct dcp_error *err)
{
    const struct dcp_tensor *t = stats->tensor;
    int index = (int)(t - job->checkpoint->catalog->tensors);
    int64_t chunk = INSPECT_CHUNK_BYTES / 16; /* elements, of any dtype */
    inspect_summary_init(tools->summary);
    for (int64_t at = 0; at < t->n_elems; at += chunk) {
        int64_t end = t->n_elems - at < chunk ? t->n_elems : at + chunk;
        size_t n = (size_t)(end - at);
        int rc =
            inspect_read(job->checkpoint, tools->reader, index, at, end, tools->raw, err);
        if (rc == DCP_OK)
            rc = inspect_value_read(t->dtype, tools->raw, n, tools->values, err);
        if (rc)
            return rc;
        inspect_summary_add(tools->summary, tools->values,
                            n * inspect_value_parts(t->dtype));
        rc = inspect_work_add(work, n * dcp_dtype_size(t->dtype), err);
        if (rc)
            return rc;
    }
    take(stats, tools->summary, job->n_bins);
    return DCP_OK;
}

static int summarise_share(void *self, size_t first, size_t last,
                           struct inspect_work *work, struct dcp_error *err)
{
    const struct job *job = self;
    struct tools tools = { .raw = dcp_mem_calloc(INSPECT_CHUNK_BYTES, 1),
                           .values = dcp_mem_calloc(INSPECT_CHUNK_BYTES / 8,
                                                    sizeof *tools.values),
                           .summary = dcp_mem_calloc(1, sizeof *tools.summary) };
    int rc = DCP_OK;
    if (!tools.raw || !tools.values || !tools.summary)
        rc = dcp_error_memory(err, "the numbers of a tensor");
    if (rc == DCP_OK)
        rc = dcp_reader_clone(job->checkpoint->reader, INSPECT_READER_BYTES,
                              &tools.reader, err);
    for (size_t i = first; i < last && rc == DCP_OK; i++)
        rc = summarise(job, &tools, &job->stats[i], work, err);
    dcp_reader_free(tools.reader);
    free(tools.raw);
    free(tools.values);
    free(tools.summary);
    return rc;
}

/* "▁▂▅█▅▂▁": each bin against the fullest; what is not empty never looks empty. */
static void format_curve(const struct stats *s, char *out, size_t cap)
{
    static const char *const levels[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    uint64_t most = 1;
    size_t used = 0;
    for (size_t i = 0; i < s->n_bins; i++)
        most = s->bins[i] > most ? s->bins[i] : most;
    out[0] = '\0';
    for (size_t i = 0; i < s->n_bins && used < cap; i++) {
        double part = (double)s->bins[i] / (double)most;
        size_t level = s->bins[i] ? 1 + (size_t)(part * 6.5) : 0;
        used += (size_t)snprintf(out + used, cap - used, "%s", levels[level]);
    }
}

/* "3 nan, 1 inf"; nothing when all is well. */
static void add_odd(struct dcp_table *table, const struct stats *s)
{
    const char *nan = s->n_nan ? " nan" : "", *inf = s->n_inf ? " inf" : "";
    dcp_table_cell(table, "%s%s%s%s%s", s->n_nan ? dcp_human_count(s->n_nan).text : "",
                   nan, s->n_nan && s->n_inf ? ", " : "",
                   s->n_inf ? dcp_human_count(s->n_inf).text : "", inf);
}

static void add_number(struct dcp_table *table, double v)
{
    if (isnan(v))
        dcp_table_cell(table, "-");
    else
        dcp_table_cell(table, "%.3g", v);
}

static int print_text(struct dcp_main *m, const struct job *job, size_t n, size_t n_shown,
                      struct dcp_error *err)
{
    static const struct dcp_column columns[] = {
        { .title = "name", .cut = true },   { .title = "dtype" },
        { .title = "min", .right = true },  { .title = "max", .right = true },
        { .title = "mean", .right = true }, { .title = "norm", .right = true },
        { .title = "histogram" },           { .title = "", .style = DCP_STYLE_BAD },
    };
    struct dcp_table *table = dcp_table_new(columns, DCP_ARRAY_LEN(columns));
    uint64_t n_odd = 0;
    if (!table)
        return dcp_error_memory(err, "the table");
    for (size_t i = 0; i < n; i++) {
        const struct stats *s = &job->stats[i];
        char curve[CURVE_BINS * 3 + 1];
        n_odd += s->n_nan || s->n_inf;
        if (i >= n_shown)
            continue;
        format_curve(s, curve, sizeof curve);
        dcp_table_name(table, s->tensor->name);
        dcp_table_cell(table, "%s", dcp_dtype_name(s->tensor->dtype));
        add_number(table, s->min);
        add_number(table, s->max);
        add_number(table, s->mean);
        add_number(table, s->norm);
        dcp_table_cell(table, "%s", curve);
        add_odd(table, s);
    }
    int rc = dcp_table_print(table, &m->out, 0, err);
    dcp_table_free(table);
    dcp_term_printf(&m->out, "%s%s", dcp_term_style(&m->out, DCP_STYLE_DIM),
                    dcp_human_items(n, "tensor", "tensors").text);
    if (n_shown < n)
        dcp_term_printf(&m->out, ", %s not shown (--limit)",
                        dcp_human_count(n - n_shown).text);
    dcp_term_printf(&m->out, "; %s NaN or infinite numbers%s%s\n",
                    n_odd ? dcp_human_items(n_odd, "has", "have").text : "none has",
                    job->verify ? "" : "; " INSPECT_NOT_VERIFIED,
                    dcp_term_style(&m->out, DCP_STYLE_OFF));
    return rc;
}

static json_t *stats_json(const struct stats *s)
{
    json_t *counts = json_array();
    for (size_t i = 0; i < s->n_bins; i++)
        if (dcp_doc_add(counts, dcp_doc_u64(s->bins[i]))) {
            json_decref(counts);
            counts = NULL;
            break;
        }
    json_t *histogram = json_pack("{s:o, s:o, s:o}", "low", dcp_doc_real(s->low), "width",
                                  dcp_doc_real(s->width), "counts", counts);
    return json_pack(
        "{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
        dcp_doc_text(s->tensor->name), "dtype", dcp_dtype_name(s->tensor->dtype), "shape",
        dcp_doc_shape(s->tensor->ndim, s->tensor->shape), "n", dcp_doc_u64(s->n), "n_nan",
        dcp_doc_u64(s->n_nan), "n_inf", dcp_doc_u64(s->n_inf), "n_zero",
        dcp_doc_u64(s->n_zero), "min", dcp_doc_real(s->min), "max", dcp_doc_real(s->max),
        "mean", dcp_doc_real(s->mean), "deviation", dcp_doc_real(s->deviation), "norm",
        dcp_doc_real(s->norm), "histogram", histogram);
}

static int print_json(struct dcp_main *m, const struct job *job, size_t n, size_t n_shown,
                      struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("stats");
    DCP_CLEANUP_JSON json_t *head = inspect_checkpoint_json(job->checkpoint);
    json_t *list = json_array();
    int rc = json_object_update(doc, head) ? DCP_E_MEMORY : DCP_OK;
    rc |= dcp_doc_set(doc, "verified", json_boolean(job->verify));
    rc |= dcp_doc_set(doc, "n_selected", dcp_doc_u64(n));
    rc |= dcp_doc_set(doc, "tensors", list);
    for (size_t i = 0; i < n_shown && !rc; i++)
        rc = dcp_doc_add(list, stats_json(&job->stats[i]));
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}

static int gather(struct dcp_main *m, struct job *job, const size_t *tensors, size_t n,
                  struct dcp_error *err)
{
    DCP_CLEANUP_FREE uint64_t *sizes = dcp_mem_calloc(n, sizeof *sizes);
    if (!sizes)
        return dcp_error_memory(err, "the list of tensors");
    for (size_t i = 0; i < n; i++) {
        job->stats[i].tensor = &job->checkpoint->catalog->tensors[tensors[i]];
        sizes[i] = dcp_tensor_bytes(job->stats[i].tensor);
    }
    int rc = inspect_reader(job->checkpoint, job->verify, err);
    if (rc == DCP_OK)
        rc = inspect_work_run(m, "reading", sizes, n, summarise_share, job, err);
    return rc ? rc : inspect_check(job->checkpoint, err);
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    const struct settings *settings = given;
    struct inspect_checkpoint checkpoint;
    DCP_CLEANUP_FREE size_t *tensors = NULL;
    size_t n = 0;
    DCP_TRY(inspect_open(m, m->operands.items[0], &checkpoint, err));
    int rc = inspect_select(&checkpoint, &settings->selection, &tensors, &n, err);
    if (rc == DCP_OK) {
        DCP_CLEANUP_FREE struct stats *stats = dcp_mem_calloc(n, sizeof *stats);
        struct job job = { &checkpoint, stats, m->json ? DOC_BINS : CURVE_BINS,
                           !settings->no_verify };
        bool limited = settings->limit > 0 && (uint64_t)settings->limit < n;
        size_t n_shown = limited ? (size_t)settings->limit : n;
        rc = stats ? gather(m, &job, tensors, n, err)
                   : dcp_error_memory(err, "the statistics");
        if (rc == DCP_OK)
            rc = m->json ? print_json(m, &job, n, n_shown, err)
                         : print_text(m, &job, n, n_shown, err);
    }
    inspect_close(&checkpoint);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    INSPECT_OPTS_SELECTION,
    INSPECT_OPT_NO_VERIFY,
    { 'n', "limit", "N", "show the first N; 0 shows all", "Output", DCP_OPT_INT,
      AT(limit), .max = INT64_MAX },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-inspect stats run --only model", "all weights of the newest step" },
    { "dcp-inspect stats model.bin -t '*.mlp.*' --json",
      "with finer histograms, zeros and deviations, for a script" },
    { 0 },
};

const struct dcp_command inspect_stats = {
    .name = "stats",
    .operands = "PATH",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "min, max, mean, norm, NaN and Inf counts, histogram per tensor",
    .about = INSPECT_ABOUT_PATH
    "\nReads every number once, in constant memory, and checks digests on the way. "
    "Minimum, "
    "maximum, mean and norm are those of the finite numbers; a histogram runs from the "
    "minimum to the maximum.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = inspect_exits,
    .run = run,
};
