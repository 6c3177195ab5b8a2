#include "summary.h"

#include <math.h>

#define RUN 1024 /* numbers added up in double before they go to the long sum */

void inspect_summary_init(struct inspect_summary *summary)
{
    *summary = (struct inspect_summary){ .min = INFINITY, .max = -INFINITY };
}

#define LANES 4 /* sums at once, so that the CPU can keep up */

/* A run without NaNs and infinities. */
static bool add_finite(struct inspect_summary *s, const double *v, size_t n)
{
    double sum[LANES] = { 0 }, squares[LANES] = { 0 };
    double min[LANES] = { v[0], v[0], v[0], v[0] };
    double max[LANES] = { v[0], v[0], v[0], v[0] };
    uint64_t zeros = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            double x = v[i + k];
            sum[k] += x;
            squares[k] += x * x;
            min[k] = x < min[k] ? x : min[k];
            max[k] = x > max[k] ? x : max[k];
        }
    for (; i < n; i++) {
        sum[0] += v[i];
        squares[0] += v[i] * v[i];
        min[0] = v[i] < min[0] ? v[i] : min[0];
        max[0] = v[i] > max[0] ? v[i] : max[0];
    }
    double all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double all_squares = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    if (!isfinite(all) || !isfinite(all_squares))
        return false;
    for (i = 0; i < n; i++)
        zeros += v[i] == 0;
    for (size_t k = 1; k < LANES; k++) {
        min[0] = min[k] < min[0] ? min[k] : min[0];
        max[0] = max[k] > max[0] ? max[k] : max[0];
    }
    s->min = min[0] < s->min ? min[0] : s->min;
    s->max = max[0] > s->max ? max[0] : s->max;
    s->sum += all;
    s->sum_squares += all_squares;
    s->n_zero += zeros;
    inspect_histogram_add(&s->histogram, v, n, fmax(-min[0], max[0]));
    return true;
}

/* A run with NaNs, infinities, or numbers whose squares leave the range of double. */
static void add_odd(struct inspect_summary *s, const double *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(v[i])) {
            s->n_nan++;
        } else if (isinf(v[i])) {
            s->n_inf++;
        } else {
            s->min = v[i] < s->min ? v[i] : s->min;
            s->max = v[i] > s->max ? v[i] : s->max;
            s->sum += v[i];
            s->sum_squares += (long double)v[i] * v[i];
            s->n_zero += v[i] == 0;
            inspect_histogram_add(&s->histogram, &v[i], 1, fabs(v[i]));
        }
    }
}

void inspect_summary_add(struct inspect_summary *summary, const double *values, size_t n)
{
    for (size_t at = 0; at < n; at += RUN) {
        size_t run = n - at < RUN ? n - at : RUN;
        if (!add_finite(summary, values + at, run))
            add_odd(summary, values + at, run);
    }
    summary->n += n;
}

static long double count_finite(const struct inspect_summary *summary)
{
    return (long double)(summary->n - summary->n_nan - summary->n_inf);
}

double inspect_summary_mean(const struct inspect_summary *summary)
{
    return (double)(summary->sum / count_finite(summary));
}

double inspect_summary_deviation(const struct inspect_summary *summary)
{
    long double n = count_finite(summary), mean = summary->sum / n;
    long double variance = summary->sum_squares / n - mean * mean;
    return variance < 0 ? 0 : (double)sqrtl(variance);
}

double inspect_summary_norm(const struct inspect_summary *summary)
{
    return (double)sqrtl(summary->sum_squares);
}
