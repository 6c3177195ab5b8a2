#include "compare.h"

#include "base/mem.h"
#include "value.h"
#include <dcp/delta.h>
#include <math.h>
#include <string.h>

#define CHUNK_ELEMS (INSPECT_CHUNK_BYTES / 16)

struct inspect_comparer {
    const struct inspect_checkpoint *a, *b;
    struct inspect_tolerance tolerance;
    struct dcp_reader *reader_a, *reader_b;
    unsigned char *raw_a, *raw_b;
    double *values_a, *values_b;
    struct dcp_delta_meter *meter;
};

int inspect_comparer_new(const struct inspect_checkpoint *a,
                         const struct inspect_checkpoint *b,
                         const struct inspect_tolerance *tolerance,
                         struct inspect_comparer **out, struct dcp_error *err)
{
    struct inspect_comparer *c = dcp_mem_calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return dcp_error_memory(err, "a comparison");
    c->a = a;
    c->b = b;
    c->tolerance = *tolerance;
    c->raw_a = dcp_mem_calloc(CHUNK_ELEMS, 16);
    c->raw_b = dcp_mem_calloc(CHUNK_ELEMS, 16);
    c->values_a = dcp_mem_calloc(CHUNK_ELEMS, 2 * sizeof *c->values_a);
    c->values_b = dcp_mem_calloc(CHUNK_ELEMS, 2 * sizeof *c->values_b);
    int rc = DCP_OK;
    if (!c->raw_a || !c->raw_b || !c->values_a || !c->values_b)
        rc = dcp_error_memory(err, "a comparison");
    if (rc == DCP_OK)
        rc = dcp_delta_meter_new(&c->meter, err);
    if (rc == DCP_OK)
        rc = dcp_reader_clone(a->reader, INSPECT_READER_BYTES, &c->reader_a, err);
    if (rc == DCP_OK)
        rc = dcp_reader_clone(b->reader, INSPECT_READER_BYTES, &c->reader_b, err);
    if (rc) {
        inspect_comparer_free(c);
        return rc;
    }
    *out = c;
    return DCP_OK;
}

void inspect_comparer_free(struct inspect_comparer *c)
{
    if (!c)
        return;
    dcp_delta_meter_free(c->meter);
    dcp_reader_free(c->reader_a);
    dcp_reader_free(c->reader_b);
    free(c->raw_a);
    free(c->raw_b);
    free(c->values_a);
    free(c->values_b);
    free(c);
}

/* Two numbers, of dtypes p and q. */
static bool is_near(const struct inspect_tolerance *t, enum dcp_dtype p, enum dcp_dtype q,
                    double a, double b)
{
    if (isnan(a) && isnan(b))
        return true;
    if (a == b)
        return true;
    double distance = fabs(a - b);
    if (!isfinite(distance))
        return false;
    if (distance <= t->atol + t->rtol * fabs(b))
        return true;
    double larger = fabs(a) > fabs(b) ? a : b;
    double step_p = inspect_value_ulp(p, larger), step_q = inspect_value_ulp(q, larger);
    double step = step_p > step_q ? step_p : step_q;
    return t->ulp > 0 && step > 0 && distance <= (double)t->ulp * step;
}

static void note_distance(struct inspect_pair *pair, double a, double b, int64_t at)
{
    double distance = a == b ? 0 : fabs(a - b);
    if (distance > pair->most) {
        pair->most = distance;
        pair->most_at = at;
    }
}

static void note_difference(struct inspect_pair *pair, const unsigned char *a,
                            const unsigned char *b, int64_t at)
{
    if (pair->n_differ++)
        return;
    pair->first = at;
    memcpy(pair->first_a, a, dcp_dtype_size(pair->a->dtype));
    memcpy(pair->first_b, b, dcp_dtype_size(pair->b->dtype));
}

/* The chunk's elements one by one; they stand at `begin` of the flattened tensor. */
static void compare_values(const struct inspect_comparer *c, struct inspect_pair *pair,
                           int64_t begin, size_t n)
{
    enum dcp_dtype p = pair->a->dtype, q = pair->b->dtype;
    size_t parts = inspect_value_parts(p);
    size_t size_a = dcp_dtype_size(p), size_b = dcp_dtype_size(q);
    const struct inspect_tolerance *t = &c->tolerance;
    bool strict = p == q && t->atol <= 0 && t->rtol <= 0 && t->ulp <= 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char *raw_a = c->raw_a + i * size_a,
                            *raw_b = c->raw_b + i * size_b;
        if (p == q && memcmp(raw_a, raw_b, size_a) == 0)
            continue;
        pair->n_changed += p == q;
        bool near = true, nan = false;
        for (size_t k = 0; k < parts; k++) {
            double a = c->values_a[i * parts + k], b = c->values_b[i * parts + k];
            near = near && is_near(t, p, q, a, b);
            nan = nan || isnan(a) != isnan(b);
            note_distance(pair, a, b, begin + (int64_t)i);
        }
        if (!strict && near)
            continue;
        pair->n_nan += nan;
        note_difference(pair, raw_a, raw_b, begin + (int64_t)i);
    }
}

/* What the chunk would take in a delta. */
static int measure(struct inspect_comparer *c, struct inspect_pair *pair, size_t size,
                   struct dcp_error *err)
{
    size_t width = dcp_dtype_size(pair->a->dtype);
    uint64_t bytes = 0;
    int rc = dcp_delta_measure(c->meter, c->raw_a, c->raw_b, size,
                               width <= 8 ? (int)width : 0, &bytes, err);
    pair->delta_bytes += bytes;
    return rc;
}

int inspect_compare(struct inspect_comparer *c, struct inspect_pair *pair,
                    struct inspect_work *work, struct dcp_error *err)
{
    enum dcp_dtype p = pair->a->dtype, q = pair->b->dtype;
    int index_a = (int)(pair->a - c->a->catalog->tensors);
    int index_b = (int)(pair->b - c->b->catalog->tensors);
    bool same_bits = p == q;
    pair->most_at = -1;
    if (inspect_value_parts(p) != inspect_value_parts(q)) {
        pair->verdict = INSPECT_OTHER_KIND;
        return DCP_OK;
    }
    for (int64_t at = 0; at < pair->a->n_elems; at += CHUNK_ELEMS) {
        int64_t left = pair->a->n_elems - at,
                end = left < CHUNK_ELEMS ? at + left : at + CHUNK_ELEMS;
        size_t n = (size_t)(end - at), size = n * dcp_dtype_size(p);
        int rc = inspect_read(c->a, c->reader_a, index_a, at, end, c->raw_a, err);
        if (rc == DCP_OK)
            rc = inspect_read(c->b, c->reader_b, index_b, at, end, c->raw_b, err);
        if (rc == DCP_OK && (p != q || memcmp(c->raw_a, c->raw_b, size) != 0)) {
            same_bits = false;
            rc = inspect_value_read(p, c->raw_a, n, c->values_a, err);
            rc = rc ? rc : inspect_value_read(q, c->raw_b, n, c->values_b, err);
            if (rc == DCP_OK)
                compare_values(c, pair, at, n);
            if (rc == DCP_OK && p == q)
                rc = measure(c, pair, size, err);
        }
        if (rc == DCP_OK)
            rc = inspect_work_add(work, size + n * dcp_dtype_size(q), err);
        if (rc)
            return rc;
    }
    pair->verdict = pair->n_differ       ? INSPECT_OTHER_VALUES
                    : same_bits          ? INSPECT_SAME_BITS
                    : pair->most_at >= 0 ? INSPECT_WITHIN_TOLERANCE
                                         : INSPECT_SAME_VALUES;
    return DCP_OK;
}
