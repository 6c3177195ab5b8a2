#include "str.h"

#include "hex.h"
#include "utf8.h"
#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether 8 bytes are ASCII, and none is NUL. */
static bool is_ascii(const char *text)
{
    uint64_t bytes;

    memcpy(&bytes, text, sizeof bytes);
    return !((bytes | (bytes - UINT64_C(0x0101010101010101))) &
             UINT64_C(0x8080808080808080));
}

bool dcp_str_utf8_ok(const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        uint32_t code;
        if (n - at >= 8 && is_ascii(text + at)) {
            at += 8;
            continue;
        }
        size_t len = dcp_utf8_decode(text + at, n - at, &code);
        if (!len || !code)
            return false;
        at += len;
    }
    return true;
}

/* Characters that move the cursor, end a line, or reorder what stands around them. */
static bool is_unprintable(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c ||
           code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

char *dcp_str_escape(char *out, size_t cap, const char *text)
{
    static const char dots[] = "…";
    if (!cap)
        return out;
    size_t left = strlen(text), used = 0, cut = 0;
    while (left) {
        char token[16];
        uint32_t code = 0;
        size_t len = dcp_utf8_decode(text, left, &code);
        int n = 0;
        if (!len)
            n = snprintf(token, sizeof token, "\\x%02x", (unsigned char)*text);
        else if (code == '\n' || code == '\r' || code == '\t')
            n = snprintf(token, sizeof token, "\\%c",
                         code == '\n'   ? 'n'
                         : code == '\r' ? 'r'
                                        : 't');
        else if (is_unprintable(code))
            n = snprintf(token, sizeof token, code < 0x80 ? "\\x%02x" : "\\u{%x}", code);
        size_t step = len ? len : 1, size = n ? (size_t)n : len;
        if (used + size >= cap) { /* full: back to where the dots still fitted */
            if (cap >= sizeof dots) {
                memcpy(out + cut, dots, sizeof dots);
                return out;
            }
            break;
        }
        memcpy(out + used, n ? token : text, size);
        used += size;
        if (used + sizeof dots <= cap)
            cut = used;
        text += step;
        left -= step;
    }
    out[used] = '\0';
    return out;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t count_digits(const char *text)
{
    size_t n = 0;
    while (is_digit(text[n]))
        n++;
    return n;
}

int dcp_str_natural_cmp(const char *a, const char *b)
{
    const char *x = a, *y = b;
    while (*x && *y) {
        if (!is_digit(*x) || !is_digit(*y)) {
            if (*x != *y)
                return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
            x++;
            y++;
            continue;
        }
        while (*x == '0')
            x++;
        while (*y == '0')
            y++;
        size_t nx = count_digits(x), ny = count_digits(y);
        if (nx != ny)
            return nx < ny ? -1 : 1;
        int order = memcmp(x, y, nx);
        if (order)
            return order < 0 ? -1 : 1;
        x += nx;
        y += ny;
    }
    if (*x || *y)
        return *x ? 1 : -1;
    int order = strcmp(a, b); /* they differ at most in leading zeros */
    return order < 0 ? -1 : order > 0;
}

/* Power of two behind a size's suffix ("", "k", "KiB", "MB"…), or -1. */
static int suffix_shift(const char *suffix)
{
    static const char letters[] = "kmgt";
    int shift = 0;
    char c = *suffix;
    if (c >= 'A' && c <= 'Z')
        c = (char)(c - 'A' + 'a');
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        shift = 10 * (int)(letter - letters + 1);
        suffix++;
        if (*suffix == 'i')
            suffix++;
    }
    if (*suffix == 'B' || *suffix == 'b')
        suffix++;
    return *suffix ? -1 : shift;
}

bool dcp_str_parse_size(const char *text, uint64_t *out_bytes)
{
    uint64_t whole = 0, part = 0, scale = 1;
    size_t digits = count_digits(text);
    if (!digits)
        return false;
    for (; is_digit(*text); text++)
        if (__builtin_mul_overflow(whole, 10, &whole) ||
            __builtin_add_overflow(whole, (uint64_t)(*text - '0'), &whole))
            return false;
    bool has_part = *text == '.';
    if (has_part) {
        text++;
        if (!is_digit(*text))
            return false;
        for (; is_digit(*text); text++) {
            if (scale == 1000000) /* so many that they are less than a byte or none */
                continue;
            part = part * 10 + (uint64_t)(*text - '0');
            scale *= 10;
        }
    }
    int shift = suffix_shift(text);
    if (shift < 0 || (has_part && !shift))
        return false;
    uint64_t unit = UINT64_C(1) << shift, bytes;
    if (__builtin_mul_overflow(whole, unit, &bytes) ||
        __builtin_add_overflow(bytes, part * unit / scale, &bytes))
        return false;
    *out_bytes = bytes;
    return true;
}

bool dcp_str_parse_i64(const char *text, int64_t *out)
{
    bool negative = *text == '-';
    if (negative)
        text++;
    if (!is_digit(*text))
        return false;
    int64_t v = 0; /* grows downwards: the least number has no positive twin */
    for (; is_digit(*text); text++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_sub_overflow(v, (int64_t)(*text - '0'), &v))
            return false;
    if (*text || (!negative && v == INT64_MIN))
        return false;
    *out = negative ? v : -v;
    return true;
}

bool dcp_str_parse_f64(const char *text, double *out)
{
    if (!*text || text[strspn(text, "0123456789.eE+-")])
        return false; /* no blanks, hexadecimal numbers, infinities and NaNs */
    char *end;
    double v = strtod(text, &end);
    if (*end || !isfinite(v))
        return false;
    *out = v;
    return true;
}

char *dcp_str_format_f64(char out[DCP_STR_F64_CAP], double value)
{
    double back;
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, DCP_STR_F64_CAP, "%.*g", digits, value);
        if (dcp_str_parse_f64(out, &back) && back >= value && back <= value)
            break;
    }
    return out;
}

#define NEAREST_MAX 64

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, change, swap of neighbours) that turn a into b. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t before[NEAREST_MAX + 1] = { 0 }, last[NEAREST_MAX + 1], row[NEAREST_MAX + 1];
    for (size_t j = 0; j <= nb; j++)
        last[j] = j;
    for (size_t i = 1; i <= na; i++) {
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t change = last[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = least(change, least(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], before[j - 2] + 1);
        }
        memcpy(before, last, sizeof before);
        memcpy(last, row, sizeof last);
    }
    return last[nb];
}

const char *dcp_str_nearest(const char *text, const char *const *candidates)
{
    size_t n = strlen(text);
    const char *nearest = NULL;
    size_t best = least(n / 3 + 1, 3) + 1; /* more than this many edits is another word */
    if (n == 0 || n > NEAREST_MAX)
        return NULL;
    for (; *candidates; candidates++) {
        size_t m = strlen(*candidates);
        if (m > NEAREST_MAX)
            continue;
        size_t distance = edit_distance(text, n, *candidates, m);
        if (distance < best && distance < (n > m ? n : m)) {
            best = distance;
            nearest = *candidates;
        }
    }
    return nearest;
}

const char *dcp_str_slip(const char *text, const char *const *candidates)
{
    const char *nearest = dcp_str_nearest(text, candidates);
    size_t n = strlen(text);
    if (nearest && edit_distance(text, n, nearest, strlen(nearest)) <= 1 + n / 8)
        return nearest;
    for (; n >= 8 && *candidates; candidates++)
        if (dcp_str_starts(*candidates, text))
            return *candidates;
    return NULL;
}

char *dcp_str_join(const char *a, const char *b, const char *c)
{
    size_t n = strlen(a) + strlen(b) + strlen(c) + 1;
    char *text = malloc(n);

    if (text)
        snprintf(text, n, "%s%s%s", a, b, c);
    return text;
}

bool dcp_str_starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool dcp_str_ends(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && memcmp(text + n - m, suffix, m) == 0;
}

void dcp_str_hex64(char out[17], uint64_t v)
{
    v = htobe64(v);
    dcp_hex(out, &v, sizeof v);
}

bool dcp_str_parse_hex64(const char *text, uint64_t *out)
{
    uint64_t v;
    if (!dcp_hex_parse(text, &v, sizeof v) || text[2 * sizeof v])
        return false;
    *out = be64toh(v);
    return true;
}
