/* diff: are two checkpoints the same, whatever their formats, shardings and world sizes.
 */
#include "diff.h"

#include "base/clock.h"
#include "base/mem.h"
#include "verbs.h"

struct settings {
    struct inspect_selection selection;
    struct inspect_tolerance tolerance;
    int64_t limit;
    bool read, no_verify;
};

static int check_tolerance(const struct inspect_tolerance *t, struct dcp_error *err)
{
    if (t->atol < 0 || t->rtol < 0)
        return dcp_error_set(err, DCP_E_USAGE, "a tolerance is not negative");
    return DCP_OK;
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    const struct settings *settings = given;
    struct inspect_diff_result diff = { .tolerance = settings->tolerance,
                                        .verified = !settings->no_verify };
    DCP_TRY(check_tolerance(&settings->tolerance, err));
    double begin = dcp_clock_s();
    int rc = inspect_open(m, m->operands.items[0], &diff.a, err);
    if (rc == DCP_OK)
        rc = inspect_open(m, m->operands.items[1], &diff.b, err);
    if (rc == DCP_OK)
        rc = inspect_diff_pair(&diff, &settings->selection, err);
    if (rc == DCP_OK)
        rc = inspect_diff_compare(m, &diff, settings->read, err);
    diff.seconds = dcp_clock_s() - begin;
    if (rc == DCP_OK && m->json)
        rc = inspect_diff_json(m, &diff, err);
    else if (rc == DCP_OK)
        inspect_diff_text(m, &diff, settings->limit);
    if (rc == DCP_OK && (diff.n_same < diff.n_pairs || diff.n_objects))
        rc = DCP_E_DIFFERS;
    inspect_diff_fini(&diff);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    { 't', "tensors", "GLOB",
      "only tensors whose name matches, no objects; may be given again", "Selection",
      DCP_OPT_LIST, AT(selection.globs), .values = DCP_VALUES_TENSORS },
    { 0, "only", "all|model|optim", INSPECT_HELP_ONLY, NULL, DCP_OPT_CHOICE,
      AT(selection.only) },
    { 0, "atol", "X", "numbers may differ by X", "Tolerance (none: bit for bit)",
      DCP_OPT_REAL, AT(tolerance.atol) },
    { 0, "rtol", "X", "relative tolerance, times the number in B (both: their sum)", NULL,
      DCP_OPT_REAL, AT(tolerance.rtol) },
    { 0, "ulp", "N", "tolerance in units of the last place of the coarser dtype", NULL,
      DCP_OPT_INT, AT(tolerance.ulp), .max = INT64_MAX },
    { 'n', "limit", "N", "name the first N differing tensors (default 20); 0 names all",
      "Output", DCP_OPT_INT, AT(limit), .max = INT64_MAX },
    { 0, "read", NULL, "read and compare also where stored fingerprints are equal", NULL,
      DCP_OPT_FLAG, AT(read) },
    INSPECT_OPT_NO_VERIFY,
    { 0 },
};

static const struct settings defaults = { .limit = 20 };

static const struct dcp_example examples[] = {
    { "dcp-inspect diff run/step-00001200 out",
      "after a reshard: the same, at another number of ranks" },
    { "dcp-inspect diff run model.bin --only model",
      "after an export: the same weights" },
    { "dcp-inspect diff a b --rtol 1e-5 --atol 1e-8", "two runs, about the same" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "the same" },
    { 1, "they differ" },
    INSPECT_EXITS_FAILED,
};

const struct dcp_command inspect_diff = {
    .name = "diff",
    .operands = "A B",
    .min_operands = 2,
    .max_operands = 2,
    .purpose = "are two checkpoints the same: any formats, any world sizes",
    .about = "A and B are run folders (their newest complete steps), steps, or files or "
             "folders of known formats. Tensors are matched by name, else by what they "
             "are (weight, master, moment) and the parameter they belong to, but for a "
             "prefix 'transformer.', 'model.' or 'module.' of wrappers, and compared by "
             "their fingerprints where both have them, else read. Numbers of different "
             "dtypes are compared by value. Objects (scheduler, random numbers, data "
             "cursor) are compared where both formats hold them; between two formats not "
             "how one of them spells names.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .defaults = &defaults,
    .examples = examples,
    .exits = exits,
    .run = run,
};
