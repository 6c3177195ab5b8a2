#include "summary.h"

#include <math.h>

#define RUN 1024 /* numbers added up in double before they go to the long sum */

void inspect_summary_init(struct inspect_summary *summary)
{
    *summary = (struct inspect_summary){ .min = INFINITY, .max = -INFINITY };
}

/* A run without NaNs and infinities: four sums at once, so that the CPU can keep up. */
static bool add_finite(struct inspect_summary *s, const double *v, size_t n)
{
    double sum[4] = { 0 }, squares[4] = { 0 };
    double min = s->min, max = s->max;
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (size_t k = 0; k < 4; k++) {
            sum[k] += v[i + k];
            squares[k] += v[i + k] * v[i + k];
        }
    for (; i < n; i++) {
        sum[0] += v[i];
        squares[0] += v[i] * v[i];
    }
    double all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double all_squares = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    if (!isfinite(all) || !isfinite(all_squares))
        return false;
    for (i = 0; i < n; i++) {
        min = v[i] < min ? v[i] : min;
        max = v[i] > max ? v[i] : max;
    }
    s->min = min;
    s->max = max;
    s->sum += all;
    s->sum_squares += all_squares;
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
    for (size_t i = 0; i < n; i++) {
        summary->n_zero += values[i] == 0;
        if (isfinite(values[i]))
            inspect_histogram_add(&summary->histogram, values[i]);
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
