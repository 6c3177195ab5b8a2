#include "human.h"

#include "base/mem.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* v with so many digits in all, but never fewer than stand before the point. */
static void format_digits(char *out, size_t cap, double v, int digits)
{
    int before = v >= 999.5 ? 4 : v >= 99.95 ? 3 : v >= 9.995 ? 2 : 1;
    if (digits == 2)
        before = v >= 99.5 ? 3 : v >= 9.95 ? 2 : 1;
    snprintf(out, cap, "%.*f", before >= digits ? 0 : digits - before, v);
}

static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };

/* Divides v down to its unit; 1023.6 KiB, which would print as 1024, is 1 MiB. */
static size_t unit_of(double *v)
{
    size_t unit = 0;
    while (*v >= 1023.5 && unit + 1 < DCP_ARRAY_LEN(units)) {
        *v /= 1024;
        unit++;
    }
    return unit;
}

struct dcp_human dcp_human_size(uint64_t bytes)
{
    struct dcp_human out;
    double v = (double)bytes;
    size_t unit = unit_of(&v);
    char number[32];
    bool exact = !unit || (bytes & ((UINT64_C(1) << (10 * unit)) - 1)) == 0;
    if (exact)
        snprintf(number, sizeof number, "%.0f", v);
    else
        format_digits(number, sizeof number, v, 3);
    snprintf(out.text, sizeof out.text, "%s %s", number, units[unit]);
    return out;
}

struct dcp_human dcp_human_rate(double bytes_per_s)
{
    struct dcp_human out;
    double v = bytes_per_s > 0 && isfinite(bytes_per_s) ? bytes_per_s : 0;
    size_t unit = unit_of(&v);
    char number[32];
    if (unit)
        format_digits(number, sizeof number, v, 2);
    else
        snprintf(number, sizeof number, "%.0f", v);
    snprintf(out.text, sizeof out.text, "%s %s/s", number, units[unit]);
    return out;
}

struct dcp_human dcp_human_count(uint64_t n)
{
    struct dcp_human out;
    char digits[24];
    size_t len = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    size_t to = 0;
    for (size_t i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            out.text[to++] = ',';
        out.text[to++] = digits[i];
    }
    out.text[to] = '\0';
    return out;
}

struct dcp_human dcp_human_items(uint64_t n, const char *one, const char *many)
{
    struct dcp_human out;
    snprintf(out.text, sizeof out.text, "%.30s %.32s", dcp_human_count(n).text,
             n == 1 ? one : many);
    return out;
}

struct dcp_human dcp_human_time(double seconds)
{
    struct dcp_human out;
    double s = seconds > 0 && isfinite(seconds) ? seconds : 0;
    if (s < 0.0995)
        snprintf(out.text, sizeof out.text, "%.0f ms", s * 1000);
    else if (s < 99.95)
        snprintf(out.text, sizeof out.text, "%.1f s", s);
    else if (s < 3599.5)
        snprintf(out.text, sizeof out.text, "%d min %d s", (int)(s + 0.5) / 60,
                 (int)(s + 0.5) % 60);
    else
        snprintf(out.text, sizeof out.text, "%.0f h %d min", floor(s / 3600),
                 (int)fmod(s / 60, 60));
    return out;
}

struct dcp_human dcp_human_clock(double seconds)
{
    struct dcp_human out;
    double s = seconds > 0 && isfinite(seconds) ? ceil(seconds) : 0;
    if (s > 999 * 3600.0)
        s = 999 * 3600.0;
    long long whole = (long long)s;
    snprintf(out.text, sizeof out.text, "%lld:%02d:%02d", whole / 3600,
             (int)(whole / 60 % 60), (int)(whole % 60));
    return out;
}

struct dcp_human dcp_human_shape(int ndim, const int64_t *shape)
{
    struct dcp_human out;
    size_t used = (size_t)snprintf(out.text, sizeof out.text, "[");
    for (int d = 0; d < ndim && used < sizeof out.text; d++)
        used += (size_t)snprintf(out.text + used, sizeof out.text - used, "%s%lld",
                                 d ? ", " : "", (long long)shape[d]);
    if (used + 2 > sizeof out.text) { /* eight dimensions of ten digits: too many */
        static const char end[] = ", …]";
        memcpy(out.text + sizeof out.text - sizeof end, end, sizeof end);
        return out;
    }
    memcpy(out.text + used, "]", 2);
    return out;
}
