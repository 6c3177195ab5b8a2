#include "newton_schulz.h"
#include "base/mem.h"
#include "base/part.h"
#include "norm.h"
#include "ops.h"
#include <math.h>

#define ALIGN 16 /* floats */

/* Of the kernels. */
struct measure {
    double digits[NORM_DIGITS];
    float peak;
};

/* A matrix on its way. */
struct work {
    const struct kernels *kernels;
    const struct newton_schulz *how;
    int64_t rows, columns, least; /* least: the smaller of both */
    float *x, *next;              /* rows × columns */
    float *gram, *square;         /* least × least */
    struct measure *measure;
};

static int64_t aligned(int64_t n)
{
    return dcp_part_align(n, ALIGN);
}

int64_t newton_schulz_room(int64_t rows, int64_t columns)
{
    int64_t least = rows < columns ? rows : columns;
    return aligned(rows * columns) + 2 * aligned(least * least) +
           aligned(sizeof(struct measure) / sizeof(float) + 1);
}

static void blend(const struct work *w, int64_t n, double a, const float *x, double b,
                  const float *y, float *out)
{
    w->kernels->ops->blend(w->kernels->ctx, n, (float)a, x, (float)b, y, out);
}

/* The norm is a sum of integers: the same bits in every table. */
static int normalize(const struct work *w, struct dcp_error *err)
{
    const struct ops *ops = w->kernels->ops;
    void *ctx = w->kernels->ctx;
    int64_t n = w->rows * w->columns;
    struct measure got;
    struct norm norm;
    ops->zero(ctx, w->measure, sizeof *w->measure);
    ops->norm_peak(ctx, DCP_F32, n, w->x, &w->measure->peak);
    DCP_TRY(ops->get(ctx, &got.peak, &w->measure->peak, sizeof got.peak, err));
    double size = (double)NAN;
    if (isfinite(got.peak)) {
        ops->norm_add(ctx, DCP_F32, n, w->x, got.peak, w->measure->digits);
        DCP_TRY(ops->get(ctx, norm.digits, w->measure->digits, sizeof norm.digits, err));
        size = fmax(norm_value(&norm, got.peak), w->how->eps);
    }
    blend(w, n, 1 / size, w->x, 0, w->x, w->x);
    return DCP_OK;
}

/* c = a b, or that added to what c has; `gram` where it is square. */
static int product(const struct work *w, struct ops_matmul shape, const float *a,
                   const float *b, const float *add, float *c, struct dcp_error *err)
{
    shape.dtype = DCP_F32;
    return w->kernels->ops->matmul(w->kernels->ctx, &shape, a, b, NULL, add, c, err);
}

static int step(struct work *w, struct dcp_error *err)
{
    const double *k = w->how->coefficients;
    int64_t m = w->least, n = w->rows * w->columns;
    bool tall = w->rows > w->columns;
    const struct ops_matmul gram = { .m = m,
                                     .n = m,
                                     .k = n / m,
                                     .trans_a = tall,
                                     .trans_b = !tall },
                            square = { .m = m, .n = m, .k = m },
                            onto = { .m = w->rows, .n = w->columns, .k = m };
    DCP_TRY(product(w, gram, w->x, w->x, NULL, w->gram, err));
    DCP_TRY(product(w, square, w->gram, w->gram, NULL, w->square, err));
    blend(w, m * m, k[1], w->gram, k[2], w->square, w->gram);
    blend(w, n, k[0], w->x, 0, w->x, w->next);
    DCP_TRY(product(w, onto, tall ? w->x : w->gram, tall ? w->gram : w->x, w->next,
                    w->next, err));
    float *was = w->x;
    w->x = w->next;
    w->next = was;
    return DCP_OK;
}

int newton_schulz(const struct kernels *kernels, const struct newton_schulz *how,
                  int64_t rows, int64_t columns, float *x, float *room,
                  struct dcp_error *err)
{
    int64_t least = rows < columns ? rows : columns, n = aligned(rows * columns);
    struct work w = {
        .kernels = kernels,
        .how = how,
        .rows = rows,
        .columns = columns,
        .least = least,
        .x = x,
        .next = room,
        .gram = room + n,
        .square = room + n + aligned(least * least),
        .measure = (void *)(room + n + 2 * aligned(least * least)),
    };
    int rc = normalize(&w, err);
    for (int i = 0; !rc && i < how->steps; i++)
        rc = step(&w, err);
    if (!rc && w.x != x)
        kernels->ops->copy(kernels->ctx, x, w.x, (uint64_t)(rows * columns) * sizeof *x);
    return rc;
}
