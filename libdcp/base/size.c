#include "size.h"

#include "mem.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };

static int digits_before(double v, int digits)
{
    if (digits == 2)
        return v >= 99.5 ? 3 : v >= 9.95 ? 2 : 1;
    return v >= 999.5 ? 4 : v >= 99.95 ? 3 : v >= 9.995 ? 2 : 1;
}

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

const char *dcp_size_format_real(char out[DCP_SIZE_CAP], double bytes, int digits)
{
    double v = bytes > 0 && isfinite(bytes) ? bytes : 0;
    size_t unit = unit_of(&v);
    int before = digits_before(v, digits);
    snprintf(out, DCP_SIZE_CAP, "%.*f %s",
             !unit || before >= digits ? 0 : digits - before, v, units[unit]);
    return out;
}

const char *dcp_size_format(char out[DCP_SIZE_CAP], uint64_t bytes)
{
    double v = (double)bytes;
    size_t unit = unit_of(&v);
    bool exact = !unit || (bytes & ((UINT64_C(1) << (10 * unit)) - 1)) == 0;
    if (!exact)
        return dcp_size_format_real(out, (double)bytes, 3);
    snprintf(out, DCP_SIZE_CAP, "%.0f %s", v, units[unit]);
    return out;
}
