#include "diff.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "value.h"
#include <string.h>

/* "[12, 5]" from a place in the flattened tensor. */
static struct dcp_human format_index(const struct dcp_tensor *t, int64_t flat)
{
    int64_t index[DCP_MAX_NDIM] = { 0 };
    for (int d = t->ndim - 1; d >= 0; d--) {
        index[d] = flat % t->shape[d];
        flat /= t->shape[d];
    }
    return dcp_human_shape(t->ndim, index);
}

/* Text that names and rights a line: "differs   name". */
static void put_head(struct dcp_main *m, const char *word, const char *name,
                     enum dcp_style style)
{
    char shown[512];
    dcp_term_printf(&m->out, "%s%-9s%s %s", dcp_term_style(&m->out, style), word,
                    dcp_term_style(&m->out, DCP_STYLE_OFF),
                    dcp_str_escape(shown, sizeof shown, name));
}

static void put_values(struct dcp_main *m, const struct inspect_pair *pair)
{
    enum dcp_dtype p = pair->a->dtype, q = pair->b->dtype;
    dcp_term_printf(
        &m->out, "\n          %s of %s (%.3g %%)", dcp_human_count(pair->n_differ).text,
        dcp_human_items((uint64_t)pair->a->n_elems, "element", "elements").text,
        100 * (double)pair->n_differ / (double)pair->a->n_elems);
    if (pair->most_at >= 0)
        dcp_term_printf(&m->out, ", by at most %.3g at %s", pair->most,
                        format_index(pair->a, pair->most_at).text);
    if (pair->n_nan)
        dcp_term_printf(&m->out, ", %s NaN on one side",
                        dcp_human_count(pair->n_nan).text);
    dcp_term_printf(&m->out, "\n          first at %s: %s ↔ %s\n",
                    format_index(pair->a, pair->first).text,
                    inspect_value_format(p, pair->first_a, 0).text,
                    inspect_value_format(q, pair->first_b, 0).text);
}

static void put_pair(struct dcp_main *m, const struct inspect_pair *pair)
{
    const struct dcp_tensor *t = pair->a ? pair->a : pair->b;
    switch (pair->verdict) {
    case INSPECT_ONLY_A:
    case INSPECT_ONLY_B:
        put_head(m, pair->a ? "only in A" : "only in B", t->name, DCP_STYLE_NOTE);
        dcp_term_printf(&m->out, "  %s %s\n", dcp_dtype_name(t->dtype),
                        dcp_human_shape(t->ndim, t->shape).text);
        return;
    case INSPECT_OTHER_SHAPE:
        put_head(m, "shape", t->name, DCP_STYLE_BAD);
        dcp_term_printf(&m->out, "  %s ↔ %s\n",
                        dcp_human_shape(pair->a->ndim, pair->a->shape).text,
                        dcp_human_shape(pair->b->ndim, pair->b->shape).text);
        return;
    case INSPECT_OTHER_KIND:
        put_head(m, "dtype", t->name, DCP_STYLE_BAD);
        dcp_term_printf(&m->out, "  %s ↔ %s\n", dcp_dtype_name(pair->a->dtype),
                        dcp_dtype_name(pair->b->dtype));
        return;
    case INSPECT_OTHER_VALUES:
        put_head(m, "differs", t->name, DCP_STYLE_BAD);
        if (pair->a->dtype != pair->b->dtype)
            dcp_term_printf(&m->out, "  %s ↔ %s", dcp_dtype_name(pair->a->dtype),
                            dcp_dtype_name(pair->b->dtype));
        put_values(m, pair);
        return;
    case INSPECT_SAME_BITS:
    case INSPECT_SAME_VALUES:
    case INSPECT_WITHIN_TOLERANCE:
        return;
    }
}

static void put_object(struct dcp_main *m, const struct inspect_object_diff *object)
{
    const char *word = !object->in_b   ? "only in A"
                       : !object->in_a ? "only in B"
                                       : "differs";
    put_head(m, word, object->name,
             object->in_a && object->in_b ? DCP_STYLE_BAD : DCP_STYLE_NOTE);
    dcp_term_put(&m->out, "  (object)\n");
}

/* "8 ranks ↔ 4 ranks", or formats where they say more. */
static void add_sides(struct dcp_buf *text, const struct inspect_diff_result *diff)
{
    const struct dcp_catalog *a = diff->a.catalog, *b = diff->b.catalog;
    if (strcmp(a->format, b->format) == 0 && (a->world_size > 1 || b->world_size > 1))
        dcp_buf_add_fmt(text, "%s ↔ %s",
                        dcp_human_items((uint64_t)a->world_size, "rank", "ranks").text,
                        dcp_human_items((uint64_t)b->world_size, "rank", "ranks").text);
    else
        dcp_buf_add_fmt(text, "%s ↔ %s", a->format, b->format);
}

/* How the tensors are the same: "bit for bit", "within the tolerance"… */
static const char *kind_of_same(const struct inspect_diff_result *diff)
{
    if (diff->n_near)
        return "within the tolerance";
    return diff->n_by_value ? "in value; dtypes differ" : "bit for bit";
}

/* How much changed, and what that is as a delta, of tensors that both have in one dtype.
 */
static struct changes {
    uint64_t n_elems, n_changed, size_bytes, delta_bytes;
} count_changes(const struct inspect_diff_result *diff)
{
    struct changes sum = { 0 };
    for (size_t i = 0; i < diff->n_pairs; i++) {
        const struct inspect_pair *pair = &diff->pairs[i];
        if (!pair->a || !pair->b || pair->a->dtype != pair->b->dtype ||
            pair->verdict == INSPECT_OTHER_SHAPE || pair->a->tied_to)
            continue;
        sum.n_elems += (uint64_t)pair->a->n_elems;
        sum.size_bytes += dcp_tensor_bytes(pair->a);
        sum.n_changed += pair->n_changed;
        sum.delta_bytes += pair->delta_bytes;
    }
    return sum;
}

static void put_changes(struct dcp_main *m, const struct inspect_diff_result *diff)
{
    const struct changes sum = count_changes(diff);
    if (sum.n_changed)
        dcp_term_printf(
            &m->out, "          %.3g %% of %s changed: about %s as a delta, of %s\n",
            100 * (double)sum.n_changed / (double)sum.n_elems,
            dcp_human_items(sum.n_elems, "element", "elements").text,
            dcp_human_size(sum.delta_bytes).text, dcp_human_size(sum.size_bytes).text);
}

static void put_summary(struct dcp_main *m, const struct inspect_diff_result *diff)
{
    const struct dcp_term *out = &m->out;
    DCP_CLEANUP_BUF struct dcp_buf sides = { 0 };
    size_t n_other = diff->n_pairs - diff->n_same;
    bool same = !n_other && !diff->n_objects;
    const char *off = dcp_term_style(out, DCP_STYLE_OFF);
    add_sides(&sides, diff);
    if (same)
        dcp_term_printf(out, "%ssame%s      %s, %s", dcp_term_style(out, DCP_STYLE_GOOD),
                        off, dcp_human_items(diff->n_pairs, "tensor", "tensors").text,
                        kind_of_same(diff));
    else
        dcp_term_printf(out, "%snot same%s  %s of %s", dcp_term_style(out, DCP_STYLE_BAD),
                        off, dcp_human_count(n_other).text,
                        dcp_human_items(diff->n_pairs, "tensor", "tensors").text);
    if (!same && diff->objects_compared) {
        size_t all = diff->n_objects + diff->n_objects_same;
        dcp_term_printf(out, ", %s of %s", dcp_human_count(diff->n_objects).text,
                        dcp_human_items(all, "object", "objects").text);
    }
    dcp_term_printf(out, "%s          (%s)\n",
                    diff->verified ? "" : ", " INSPECT_NOT_VERIFIED,
                    sides.failed ? "" : (const char *)sides.data);
    put_changes(m, diff);
    if (m->verbose > 0)
        dcp_term_printf(out, "          %s by fingerprint, %s read, %s\n",
                        dcp_human_count(diff->n_by_fingerprint).text,
                        dcp_human_count(diff->n_pairs - diff->n_by_fingerprint).text,
                        dcp_human_time(diff->seconds).text);
}

void inspect_diff_text(struct dcp_main *m, const struct inspect_diff_result *diff,
                       int64_t limit)
{
    uint64_t shown = 0, hidden = 0;
    for (size_t i = 0; i < diff->n_pairs && dcp_main_is_read(m); i++) {
        if (inspect_diff_is_same(&diff->pairs[i]))
            continue;
        if (limit == 0 || shown < (uint64_t)limit) {
            put_pair(m, &diff->pairs[i]);
            shown++;
        } else {
            hidden++;
        }
    }
    if (hidden)
        dcp_term_printf(&m->out, "          and %s (--limit)\n",
                        dcp_human_items(hidden, "more tensor", "more tensors").text);
    for (size_t i = 0; i < diff->n_objects; i++)
        put_object(m, &diff->objects[i]);
    put_summary(m, diff);
}

static json_t *pair_json(const struct inspect_pair *pair)
{
    static const char *const kinds[] = {
        [INSPECT_SAME_BITS] = "same",        [INSPECT_SAME_VALUES] = "same_values",
        [INSPECT_WITHIN_TOLERANCE] = "near", [INSPECT_OTHER_VALUES] = "values",
        [INSPECT_OTHER_SHAPE] = "shape",     [INSPECT_OTHER_KIND] = "dtype",
        [INSPECT_ONLY_A] = "only_a",         [INSPECT_ONLY_B] = "only_b",
    };
    const struct dcp_tensor *t = pair->a ? pair->a : pair->b;
    json_t *item = json_pack("{s:s, s:o}", "kind", kinds[pair->verdict], "tensor",
                             dcp_doc_text(t->name));
    int rc = 0;
    const struct dcp_tensor *sides[] = { pair->a, pair->b };
    for (size_t i = 0; i < 2; i++)
        rc |= dcp_doc_set(
            item, i ? "b" : "a",
            sides[i] ? json_pack("{s:s, s:o}", "dtype", dcp_dtype_name(sides[i]->dtype),
                                 "shape", dcp_doc_shape(sides[i]->ndim, sides[i]->shape))
                     : json_null());
    if (pair->verdict == INSPECT_OTHER_VALUES) {
        rc |= dcp_doc_set(item, "n_differ", dcp_doc_u64(pair->n_differ));
        rc |= dcp_doc_set(item, "n_nan", dcp_doc_u64(pair->n_nan));
        rc |= dcp_doc_set(item, "first", json_integer(pair->first));
        rc |= dcp_doc_set(item, "first_a",
                          inspect_value_json(pair->a->dtype, pair->first_a));
        rc |= dcp_doc_set(item, "first_b",
                          inspect_value_json(pair->b->dtype, pair->first_b));
        rc |= dcp_doc_set(item, "max_abs_diff", dcp_doc_real(pair->most));
        rc |= dcp_doc_set(item, "n_elements", dcp_doc_u64((uint64_t)pair->a->n_elems));
        rc |= dcp_doc_set(item, "n_changed", dcp_doc_u64(pair->n_changed));
        rc |= dcp_doc_set(item, "delta_bytes", dcp_doc_u64(pair->delta_bytes));
    }
    if (rc) {
        json_decref(item);
        return NULL;
    }
    return item;
}

int inspect_diff_json(struct dcp_main *m, const struct inspect_diff_result *diff,
                      struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("diff");
    json_t *list = json_array(), *objects = json_array();
    bool same = diff->n_same == diff->n_pairs && !diff->n_objects;
    const struct changes sum = count_changes(diff);
    int rc = dcp_doc_set(doc, "same", json_boolean(same));
    rc |= dcp_doc_set(doc, "verified", json_boolean(diff->verified));
    rc |= dcp_doc_set(doc, "a", inspect_checkpoint_json(&diff->a));
    rc |= dcp_doc_set(doc, "b", inspect_checkpoint_json(&diff->b));
    rc |= dcp_doc_set(doc, "n_tensors", dcp_doc_u64(diff->n_pairs));
    rc |= dcp_doc_set(doc, "n_same", dcp_doc_u64(diff->n_same));
    rc |= dcp_doc_set(doc, "n_by_fingerprint", dcp_doc_u64(diff->n_by_fingerprint));
    rc |= dcp_doc_set(doc, "n_by_value", dcp_doc_u64(diff->n_by_value));
    rc |= dcp_doc_set(doc, "n_within_tolerance", dcp_doc_u64(diff->n_near));
    rc |= dcp_doc_set(doc, "n_elements", dcp_doc_u64(sum.n_elems));
    rc |= dcp_doc_set(doc, "n_changed", dcp_doc_u64(sum.n_changed));
    rc |= dcp_doc_set(doc, "size_bytes", dcp_doc_u64(sum.size_bytes));
    rc |= dcp_doc_set(doc, "delta_bytes", dcp_doc_u64(sum.delta_bytes));
    rc |= dcp_doc_set(doc, "seconds", dcp_doc_real(diff->seconds));
    rc |= dcp_doc_set(doc, "differences", list);
    rc |= dcp_doc_set(doc, "objects_compared", json_boolean(diff->objects_compared));
    rc |= dcp_doc_set(doc, "objects", objects);
    for (size_t i = 0; i < diff->n_pairs && !rc; i++)
        if (!inspect_diff_is_same(&diff->pairs[i]))
            rc = dcp_doc_add(list, pair_json(&diff->pairs[i]));
    for (size_t i = 0; i < diff->n_objects && !rc; i++) {
        const struct inspect_object_diff *o = &diff->objects[i];
        rc = dcp_doc_add(objects,
                         json_pack("{s:o, s:b, s:b}", "name", dcp_doc_text(o->name),
                                   "in_a", (int)o->in_a, "in_b", (int)o->in_b));
    }
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}
