/* show_lineage: the run that a step belongs to, and the steps it came from. */
#include "cli/doc.h"
#include "show.h"
#include <inttypes.h>

#define LINKS_MOST 8 /* that are drawn */

/* The step of a number, or NULL. */
static const struct dcp_step *find(const struct inspect_shown *shown, int64_t step)
{
    for (size_t i = 0; i < shown->n_steps; i++)
        if (shown->steps[i].step == step)
            return &shown->steps[i];
    return NULL;
}

/* "20 ← 15 ← 10 (not here)   run 5c1f…". Of a step that is shown alone it is not known
 * which others are there. */
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
        if (!parent && shown->n_steps)
            dcp_buf_add_text(text, " (not here)");
        else if (parent && !parent->complete)
            dcp_buf_add_text(text, " (incomplete)");
        if (!parent || !parent->complete)
            break;
        /* One that lost its optimizer state has another number than it had. */
        if (parent->fingerprint != lineage.fingerprint && !parent->weights_only) {
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
    dcp_lineage_read(shown->checkpoint.catalog, &lineage);
    if (!lineage.run)
        return json_null();
    return json_pack(
        "{s:o, s:o, s:o}", "run", dcp_doc_hex(lineage.run), "parent",
        lineage.parent < 0 ? json_null() : json_integer(lineage.parent), "fingerprint",
        lineage.fingerprint ? dcp_doc_hex(lineage.fingerprint) : json_null());
}
