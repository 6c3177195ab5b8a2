/* host_factor: the kernels on rows and columns of matrices. */
#include "factor.h"
#include "host.h"
#include "optim_element.h"
#include "simd.h"
#include "value.h"

#define ENOUGH (1 << 16) /* elements that are worth waking threads */
#define STRIP 64         /* columns that a thread takes at a time */

/* Elements of a part that are in columns begin .. end of a row. */
struct row {
    int64_t begin, end; /* columns */
    int64_t at;         /* of the first, in the part */
};

static struct row row_of(const struct ops_matrix_part *p, int64_t row, int64_t begin,
                         int64_t end)
{
    int64_t first = p->first - row * p->columns, last = first + p->n;
    begin = begin > first ? begin : first;
    end = end < last ? end : last;
    return (struct row){ begin, end < begin ? begin : end, begin - first };
}

static struct factor_sum count(enum dcp_dtype dtype, const void *x, int64_t i,
                               float grad_scale, struct factor_units units)
{
    return factor_count(value_get(dtype, x, i) * grad_scale, units);
}

static void add_row(enum dcp_dtype dtype, const struct ops_matrix_part *part,
                    const void *x, float grad_scale, struct factor_units units,
                    int64_t row, struct factor_sum *sum)
{
    struct row r = row_of(part, row, 0, part->columns);
    for (int64_t c = r.begin; c < r.end; c++) {
        struct factor_sum one = count(dtype, x, r.at + c - r.begin, grad_scale, units);
        sum->high += one.high;
        sum->low += one.low;
    }
}

static void add_strip(enum dcp_dtype dtype, const struct ops_matrix_part *part,
                      const void *x, float grad_scale, struct factor_units units,
                      int64_t begin, struct factor_sum *columns)
{
    int64_t end = begin + STRIP < part->columns ? begin + STRIP : part->columns;
    int64_t last = part->first + part->n;
    for (int64_t row = part->first / part->columns; row * part->columns < last; row++) {
        struct row r = row_of(part, row, begin, end);
        for (int64_t c = r.begin; c < r.end; c++) {
            struct factor_sum one =
                count(dtype, x, r.at + c - r.begin, grad_scale, units);
            columns[c].high += one.high;
            columns[c].low += one.low;
        }
    }
}

void ops_host_factor_add(void *ctx, enum dcp_dtype dtype,
                         const struct ops_matrix_part *part, const void *x,
                         float grad_scale, const struct factor_units *units,
                         struct factor_sum *rows, struct factor_sum *columns)
{
    (void)ctx;
    if (!part->n)
        return;
    int64_t first = part->first / part->columns,
            last = (part->first + part->n - 1) / part->columns;
    OPS_PARALLEL_FOR(part->n > ENOUGH)
    for (int64_t row = first; row <= last; row++)
        add_row(dtype, part, x, grad_scale, *units, row, &rows[row]);
    OPS_PARALLEL_FOR(part->n > ENOUGH)
    for (int64_t begin = 0; begin < part->columns; begin += STRIP)
        add_strip(dtype, part, x, grad_scale, *units, begin, columns);
}

static void factored_row(const struct ops_matrix_part *part, int64_t row, float of_row,
                         const float *columns, float mean, float *out)
{
    struct row r = row_of(part, row, 0, part->columns);
    for (int64_t c = r.begin; c < r.end; c++)
        out[r.at + c - r.begin] = optim_factored(of_row, columns[c], mean);
}

void ops_host_factored(void *ctx, const struct ops_matrix_part *part, const float *rows,
                       const float *columns, float mean, float *out)
{
    (void)ctx;
    if (!part->n)
        return;
    int64_t first = part->first / part->columns,
            last = (part->first + part->n - 1) / part->columns;
    OPS_PARALLEL_FOR(part->n > ENOUGH)
    for (int64_t row = first; row <= last; row++)
        factored_row(part, row, rows[row], columns, mean, out);
}
