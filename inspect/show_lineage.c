/* show_lineage: the run that a step belongs to, and the steps it came from. */
#include "cli/doc.h"
#include "show.h"
#include <inttypes.h>
#include <stdio.h>

#define LINKS_MOST 8 /* that are drawn */

/* The whole step of a number, or NULL. */
static const struct dcp_step *find(const struct inspect_shown *shown, int64_t step)
{
    for (size_t i = 0; i < shown->n_steps; i++)
        if (shown->steps[i].step == step && shown->steps[i].whole)
            return &shown->steps[i];
    return NULL;
}

/* "20 ← 15 ← 10 (not here)   run 5c1f…" */
void inspect_lineage_text(const struct inspect_shown *shown, struct dcp_buf *text)
{
    struct dcp_lineage lineage, first;
    dcp_lineage_read(shown->checkpoint.catalog, &lineage);
    first = lineage;
    if (!first.run)
        return;
    dcp_buf_add_fmt(text, "%" PRId64, shown->checkpoint.catalog->step);
    for (int n = 0; lineage.parent >= 0; n++) {
        const struct dcp_step *parent = find(shown, lineage.parent);
        if (n == LINKS_MOST) {
            dcp_buf_add_text(text, " ← …");
            break;
        }
        dcp_buf_add_fmt(text, " ← %" PRId64, lineage.parent);
        if (!parent)
            break;
        if (parent->fingerprint != lineage.fingerprint) {
            dcp_buf_add_text(text, " (another one than is here)");
            break;
        }
        lineage = parent->lineage;
    }
    dcp_buf_add_fmt(text, "   run %016" PRIx64, first.run);
}

json_t *inspect_lineage_json(const struct inspect_shown *shown)
{
    struct dcp_lineage lineage;
    char run[17], fingerprint[17];
    dcp_lineage_read(shown->checkpoint.catalog, &lineage);
    if (!lineage.run)
        return json_null();
    snprintf(run, sizeof run, "%016" PRIx64, lineage.run);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, lineage.fingerprint);
    return json_pack("{s:s, s:o, s:o}", "run", run, "parent",
                     lineage.parent < 0 ? json_null() : json_integer(lineage.parent),
                     "fingerprint",
                     lineage.fingerprint ? json_string(fingerprint) : json_null());
}
