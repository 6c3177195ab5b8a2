#include "slice.h"

#include "base/mem.h"
#include "base/str.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define PART_MAX 64 /* of one dimension: three numbers and two colons */

size_t inspect_slice_name(const char *text)
{
    size_t n = strlen(text);
    if (!n || text[n - 1] != ']')
        return n;
    while (n && text[n - 1] != '[')
        n--;
    return n ? n - 1 : strlen(text);
}

/* A number, or `fallback` where there is none. */
static bool parse_number(const char *text, int64_t fallback, int64_t *out)
{
    *out = fallback;
    return !*text || dcp_str_parse_i64(text, out);
}

/* As Python does: from the end when negative, then cut to 0 .. size. */
static int64_t clamp(int64_t index, int64_t size)
{
    if (index < 0)
        index = index < -size ? 0 : index + size;
    return index > size ? size : index;
}

static int parse_range(char *text, int d, int64_t size, struct inspect_range *out,
                       struct dcp_error *err)
{
    char *stop = strchr(text, ':'), *step = NULL;
    *out = (struct inspect_range){ .step = 1 };
    if (!stop) {
        int64_t index;
        if (!dcp_str_parse_i64(text, &index))
            return dcp_error_set(err, DCP_E_USAGE, "'%s' is no index or range", text);
        if (index < -size || index >= size)
            return dcp_error_set(err, DCP_E_USAGE,
                                 "index %lld is outside dimension %d, which has %lld",
                                 (long long)index, d, (long long)size);
        out->first = index < 0 ? index + size : index;
        out->n = 1;
        out->single = true;
        return DCP_OK;
    }
    *stop++ = '\0';
    step = strchr(stop, ':');
    if (step)
        *step++ = '\0';
    int64_t first, end;
    if (!parse_number(text, 0, &first) || !parse_number(stop, size, &end) ||
        !parse_number(step ? step : "", 1, &out->step))
        return dcp_error_set(err, DCP_E_USAGE, "'%s:%s%s%s' is no range", text, stop,
                             step ? ":" : "", step ? step : "");
    if (out->step < 1)
        return dcp_error_set(err, DCP_E_USAGE, "a step of %lld is not positive",
                             (long long)out->step);
    out->first = clamp(first, size);
    end = clamp(end, size);
    out->n = end > out->first ? (end - out->first - 1) / out->step + 1 : 0;
    return DCP_OK;
}

/* Copies the next part of "0:4, ..., -1" without its blanks; what follows, or NULL. */
static const char *next_part(const char *text, size_t n, char out[PART_MAX],
                             bool *too_long)
{
    size_t used = 0, at = 0;
    for (; at < n && text[at] != ','; at++)
        if (!isspace((unsigned char)text[at])) {
            if (used + 1 < PART_MAX)
                out[used++] = text[at];
            else
                *too_long = true;
        }
    out[used] = '\0';
    return at < n ? text + at + 1 : NULL;
}

static void take_all(struct inspect_range *range, int64_t size)
{
    *range = (struct inspect_range){ .step = 1, .n = size };
}

/* Parts of "0:4, ..., -1", the "..." not counted. */
static int count_parts(const char *text, size_t n)
{
    int parts = 0;
    bool too_long = false;
    char part[PART_MAX];
    for (const char *at = text; at;) {
        at = next_part(at, n - (size_t)(at - text), part, &too_long);
        parts += strcmp(part, "...") != 0;
    }
    return parts;
}

int inspect_slice_parse(const char *text, int ndim, const int64_t *shape,
                        struct inspect_slice *out, struct dcp_error *err)
{
    *out = (struct inspect_slice){ .ndim = ndim };
    for (int d = 0; d < ndim; d++)
        take_all(&out->ranges[d], shape[d]);
    size_t n = strlen(text);
    if (n == 0 || strcmp(text, "[]") == 0)
        return DCP_OK;
    if (n < 2 || text[0] != '[' || text[n - 1] != ']')
        return dcp_error_set(err, DCP_E_USAGE, "'%s' is no slice such as [0:4,:8]", text);
    const char *inner = text + 1;
    n -= 2;
    int parts = count_parts(inner, n), d = 0;
    if (parts > ndim)
        return dcp_error_set(err, DCP_E_USAGE,
                             "'%s' has %d parts, but the tensor has %d dimensions", text,
                             parts, ndim);
    bool ellipsis = false, too_long = false;
    for (const char *at = inner; at;) {
        char part[PART_MAX];
        at = next_part(at, n - (size_t)(at - inner), part, &too_long);
        if (too_long)
            return dcp_error_set(err, DCP_E_USAGE, "'%s' is no slice", text);
        if (strcmp(part, "...") == 0) {
            if (ellipsis)
                return dcp_error_set(err, DCP_E_USAGE, "'%s' has '...' twice", text);
            ellipsis = true;
            d += ndim - parts;
            continue;
        }
        DCP_TRY(parse_range(part, d, shape[d], &out->ranges[d], err));
        d++;
    }
    return DCP_OK;
}

int64_t inspect_slice_elems(const struct inspect_slice *slice)
{
    int64_t n = 1; /* at most the tensor's, which fits */
    for (int d = 0; d < slice->ndim; d++)
        n *= slice->ranges[d].n;
    return n;
}

int inspect_slice_shape(const struct inspect_slice *slice, int64_t out[DCP_MAX_NDIM])
{
    int kept = 0;
    for (int d = 0; d < slice->ndim; d++)
        if (!slice->ranges[d].single)
            out[kept++] = slice->ranges[d].n;
    return kept;
}
