#include "dump_array.h"

#include "base/mem.h"
#include "value.h"
#include <string.h>

#define EDGE 3 /* elements at either end of a dimension that is too long */

/* The i-th index shown of dimension d. */
static int64_t index_of(const struct inspect_array *a, int d, int64_t i)
{
    const struct inspect_range *r = &a->slice.ranges[d];
    if (a->edge && r->n > 2 * a->edge && i >= a->edge)
        i += r->n - 2 * a->edge;
    return r->first + i * r->step;
}

/* Elements below one index of dimension d. */
static int64_t elems_below(const struct inspect_array *a, int d)
{
    int64_t n = 1;
    for (int k = d + 1; k < a->tensor->ndim; k++)
        n *= a->shown[k];
    return n;
}

/* Whether the dimensions from d on are shown whole: they are one run of the tensor. */
static bool is_run(const struct inspect_array *a, int d)
{
    for (int k = d; k < a->tensor->ndim; k++)
        if (a->shown[k] != a->tensor->shape[k] || a->slice.ranges[k].step != 1)
            return false;
    return true;
}

/* Where the elements come from. */
struct source {
    const struct inspect_checkpoint *checkpoint;
    struct dcp_reader *reader;
    int tensor;
};

static int read_run(const struct source *source, size_t elem_bytes, int64_t begin,
                    int64_t end, unsigned char **to, struct dcp_error *err)
{
    int rc = inspect_read(source->checkpoint, source->reader, source->tensor, begin, end,
                          *to, err);
    *to += (size_t)(end - begin) * elem_bytes;
    return rc;
}

/* Reads what is shown below a prefix of indices, whose element is number `base` when the
 * dimensions before d are flattened. Runs are read at once. */
static int read_below(const struct source *source, const struct inspect_array *a, int d,
                      int64_t base, unsigned char **to, struct dcp_error *err)
{
    size_t size = dcp_dtype_size(a->tensor->dtype);
    int64_t n = d < a->tensor->ndim ? a->shown[d] : 1;
    if (d == a->tensor->ndim || is_run(a, d)) {
        int64_t run = 1;
        for (int k = d; k < a->tensor->ndim; k++)
            run *= a->tensor->shape[k];
        return read_run(source, size, base * run, (base + 1) * run, to, err);
    }
    bool inner = d + 1 == a->tensor->ndim || is_run(a, d + 1);
    int64_t below = inner ? elems_below(a, d) : 0;
    for (int64_t i = 0; i < n;) {
        int64_t first = index_of(a, d, i), count = 1;
        /* neighbours whose insides are runs make one run */
        while (inner && i + count < n && index_of(a, d, i + count) == first + count)
            count++;
        int64_t row = base * a->tensor->shape[d] + first;
        if (inner)
            DCP_TRY(read_run(source, size, row * below, (row + count) * below, to, err));
        else
            DCP_TRY(read_below(source, a, d + 1, row, to, err));
        i += count;
    }
    return DCP_OK;
}

int inspect_array_read(const struct inspect_checkpoint *checkpoint, int tensor,
                       const struct inspect_slice *slice, int64_t most,
                       struct inspect_array *out, struct dcp_error *err)
{
    const struct dcp_tensor *t = &checkpoint->catalog->tensors[tensor];
    const struct source source = { checkpoint, checkpoint->reader, tensor };
    *out = (struct inspect_array){ .tensor = t, .slice = *slice };
    out->edge = most && inspect_slice_elems(slice) > most ? EDGE : 0;
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++) {
        bool cut = out->edge && slice->ranges[d].n > 2 * out->edge;
        out->shown[d] = cut ? 2 * out->edge : slice->ranges[d].n;
        n *= out->shown[d];
    }
    out->data = dcp_mem_calloc((size_t)n, dcp_dtype_size(t->dtype));
    if (!out->data)
        return dcp_error_memory(err, "the elements of a slice");
    unsigned char *to = out->data;
    int rc = n > 0 ? read_below(&source, out, 0, 0, &to, err) : DCP_OK;
    if (rc == DCP_OK)
        rc = inspect_check(checkpoint, err);
    if (rc)
        inspect_array_fini(out);
    return rc;
}

void inspect_array_fini(struct inspect_array *array)
{
    free(array->data);
    array->data = NULL;
}

/* Printing: the state that a walk over nested brackets carries along. */
struct printer {
    const struct inspect_array *array;
    struct dcp_buf *line;
    const unsigned char *at; /* the next element */
    int digits, width;       /* of an element's text */
    int columns;             /* of a line */
    int used;                /* of the line so far */
};

#define LINE_COLUMNS 79

static int widest(const struct inspect_array *a, int64_t n, int digits)
{
    size_t size = dcp_dtype_size(a->tensor->dtype);
    int most = 1;
    for (int64_t i = 0; i < n; i++) {
        struct inspect_value v =
            inspect_value_format(a->tensor->dtype, a->data + (size_t)i * size, digits);
        int width = (int)strlen(v.text);
        most = width > most ? width : most;
    }
    return most;
}

static void begin_line(struct printer *p, int depth)
{
    dcp_buf_add_text(p->line, "\n");
    dcp_buf_add_fill(p->line, ' ', (size_t)depth);
    p->used = depth;
}

static void add_element(struct printer *p)
{
    struct inspect_value v =
        inspect_value_format(p->array->tensor->dtype, p->at, p->digits);
    dcp_buf_add_fmt(p->line, "%*s", p->width, v.text);
    p->at += dcp_dtype_size(p->array->tensor->dtype);
    p->used += p->width;
}

/* The innermost dimension: "[1 2 3 ... 9]", broken into lines where it is long. */
static void add_row(struct printer *p, int d, int depth)
{
    const struct inspect_array *a = p->array;
    bool cut = a->edge && a->slice.ranges[d].n > 2 * a->edge;
    for (int64_t i = 0; i < a->shown[d]; i++) {
        if (cut && i == a->edge) {
            dcp_buf_add_text(p->line, " ...");
            p->used += 4;
        }
        if (i && p->used + 1 + p->width >= p->columns)
            begin_line(p, depth);
        else if (i) {
            dcp_buf_add_text(p->line, " ");
            p->used++;
        }
        add_element(p);
    }
}

/* The next dimension that the answer keeps, from d on; ndim when there is none. */
static int next_kept(const struct inspect_array *a, int d)
{
    while (d < a->tensor->ndim && a->slice.ranges[d].single)
        d++;
    return d;
}

static void add_nested(struct printer *p, int d, int depth)
{
    const struct inspect_array *a = p->array;
    d = next_kept(a, d);
    if (d == a->tensor->ndim) {
        add_element(p);
        return;
    }
    int inner = next_kept(a, d + 1);
    dcp_buf_add_text(p->line, "[");
    p->used++;
    if (inner == a->tensor->ndim) {
        add_row(p, d, depth + 1);
    } else {
        bool cut = a->edge && a->slice.ranges[d].n > 2 * a->edge;
        for (int64_t i = 0; i < a->shown[d]; i++) {
            if (i)
                begin_line(p, depth + 1);
            if (cut && i == a->edge) {
                dcp_buf_add_text(p->line, "...");
                begin_line(p, depth + 1);
            }
            add_nested(p, inner, depth + 1);
        }
    }
    dcp_buf_add_text(p->line, "]");
    p->used++;
}

int inspect_array_print(const struct dcp_main *m, const struct inspect_array *array,
                        int digits, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    int64_t n = 1;
    for (int d = 0; d < array->tensor->ndim; d++)
        n *= array->shown[d];
    struct printer p = {
        .array = array,
        .line = &text,
        .at = array->data,
        .digits = digits,
        .columns = m->out.width ? m->out.width : LINE_COLUMNS,
    };
    if (n == 0) {
        dcp_buf_add_text(&text, "[]");
    } else {
        p.width = widest(array, n, digits);
        add_nested(&p, 0, 0);
    }
    dcp_buf_add_text(&text, "\n");
    int rc = dcp_buf_check(&text, err);
    if (rc == DCP_OK)
        dcp_term_put(&m->out, (const char *)text.data);
    return rc;
}

static json_t *nested_json(const struct inspect_array *a, int d, const unsigned char **at)
{
    d = next_kept(a, d);
    if (d == a->tensor->ndim) {
        json_t *value = inspect_value_json(a->tensor->dtype, *at);
        *at += dcp_dtype_size(a->tensor->dtype);
        return value;
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < a->shown[d] && list; i++)
        if (json_array_append_new(list, nested_json(a, d + 1, at))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

json_t *inspect_array_json(const struct inspect_array *array)
{
    const unsigned char *at = array->data;
    return nested_json(array, 0, &at);
}
