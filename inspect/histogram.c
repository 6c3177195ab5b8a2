#include "histogram.h"

#include <math.h>
#include <string.h>

enum { HALF = INSPECT_FINE_BINS / 2 };

/* Doubles the reach: the bins of either half move together towards the middle. */
static void widen(struct inspect_histogram *h)
{
    uint64_t *bins = h->bins;
    for (size_t i = 0; i < HALF / 2; i++) { /* from the middle outwards, in place */
        bins[HALF + i] = bins[HALF + 2 * i] + bins[HALF + 2 * i + 1];
        bins[HALF - 1 - i] = bins[HALF - 1 - 2 * i] + bins[HALF - 2 - 2 * i];
    }
    memset(bins, 0, HALF / 2 * sizeof *bins);
    memset(bins + HALF + HALF / 2, 0, HALF / 2 * sizeof *bins);
    h->reach *= 2;
    h->scale /= 2;
}

/* The reach that the first number asks for. Numbers below 2^-1000 share the middle bins:
 * so the scale stays a number. */
static void begin(struct inspect_histogram *h, double v)
{
    int exponent = ilogb(v) + 1;
    h->reach = ldexp(1, exponent < -1000 ? -1000 : exponent);
    h->scale = HALF / h->reach;
    h->bins[HALF] = h->zeros;
}

void inspect_histogram_add(struct inspect_histogram *h, const double *v, size_t n,
                           double most)
{
    if (h->reach == 0 && most == 0) {
        h->zeros += n;
        return;
    }
    if (h->reach == 0)
        begin(h, most);
    while (most >= h->reach)
        widen(h);
    for (size_t i = 0; i < n; i++) {
        double place = v[i] * h->scale;
        int bin = (int)place; /* towards zero, */
        bin -= place < bin;   /* and now down: floor() would be a call */
        h->bins[HALF + bin]++;
    }
}

size_t inspect_histogram_view(const struct inspect_histogram *h, size_t n_most,
                              uint64_t *out_counts, double *out_low, double *out_width)
{
    if (h->reach == 0) {
        out_counts[0] = h->zeros;
        *out_low = 0;
        *out_width = 0;
        return h->zeros ? 1 : 0;
    }
    size_t first = 0, last = INSPECT_FINE_BINS - 1;
    while (!h->bins[first])
        first++;
    while (!h->bins[last])
        last--;
    size_t each = (last - first) / n_most + 1, n = (last - first) / each + 1;
    memset(out_counts, 0, n * sizeof *out_counts);
    for (size_t i = first; i <= last; i++)
        out_counts[(i - first) / each] += h->bins[i];
    *out_low = ((double)first - HALF) / h->scale;
    *out_width = (double)each / h->scale;
    return n;
}
