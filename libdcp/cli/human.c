#include "human.h"

#include "base/mem.h"
#include "base/size.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct dcp_human dcp_human_size(uint64_t bytes)
{
    struct dcp_human out;
    dcp_size_format(out.text, bytes);
    return out;
}

struct dcp_human dcp_human_rate(double bytes_per_s)
{
    struct dcp_human out;
    char size[DCP_SIZE_CAP];
    snprintf(out.text, sizeof out.text, "%s/s",
             dcp_size_format_real(size, bytes_per_s, 2));
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
