#include "text.h"

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include <string.h>

struct span {
    uint32_t first, last;
};

static bool is_in(const struct span *spans, size_t n, uint32_t code)
{
    for (size_t i = 0; i < n; i++)
        if (code >= spans[i].first && code <= spans[i].last)
            return true;
    return false;
}

/* Unicode's combining and zero-width signs, and its wide blocks: enough for alignment. */
static int code_width(uint32_t code)
{
    static const struct span zero[] = {
        { 0x300, 0x36f },   { 0x200b, 0x200f }, { 0x20d0, 0x20ff },
        { 0xfe00, 0xfe0f }, { 0xfe20, 0xfe2f }, { 0xe0100, 0xe01ef },
    };
    static const struct span wide[] = {
        { 0x1100, 0x115f },   { 0x2e80, 0x303e },   { 0x3041, 0xa4cf },
        { 0xac00, 0xd7a3 },   { 0xf900, 0xfaff },   { 0xfe30, 0xfe6f },
        { 0xff00, 0xff60 },   { 0xffe0, 0xffe6 },   { 0x1f300, 0x1f64f },
        { 0x1f900, 0x1f9ff }, { 0x20000, 0x3fffd },
    };
    if (code < 0x300)
        return 1;
    if (is_in(zero, DCP_ARRAY_LEN(zero), code))
        return 0;
    return is_in(wide, DCP_ARRAY_LEN(wide), code) ? 2 : 1;
}

/* Bytes of the first character, at least 1; its columns in out_width. */
static size_t step(const char *text, size_t left, int *out_width)
{
    uint32_t code = 0;
    size_t len = dcp_utf8_decode(text, left, &code);
    *out_width = len ? code_width(code) : 1;
    return len ? len : 1;
}

int dcp_text_width_of(const char *text, size_t n)
{
    int width = 0, one;
    for (size_t at = 0; at < n; width += one)
        at += step(text + at, n - at, &one);
    return width;
}

int dcp_text_width(const char *text)
{
    return dcp_text_width_of(text, strlen(text));
}

void dcp_text_add_cut(struct dcp_buf *out, const char *text, int width, int tail)
{
    size_t n = strlen(text);
    int all = dcp_text_width_of(text, n), one;
    if (all <= width) {
        dcp_buf_add(out, text, n);
        return;
    }
    if (width < 1)
        return;
    int head = width - 1 - tail, used = 0;
    size_t at = 0, len;
    while (len = step(text + at, n - at, &one), used + one <= head) {
        used += one;
        at += len;
    }
    dcp_buf_add(out, text, at);
    dcp_buf_add_text(out, "…");
    for (; all - used > tail; used += one)
        at += step(text + at, n - at, &one);
    dcp_buf_add(out, text + at, n - at);
}

void dcp_text_add_wrapped(struct dcp_buf *out, const char *text, int at, int indent,
                          int width)
{
    bool first = true; /* on its line */
    while (*text) {
        if (*text == '\n') {
            dcp_buf_add_text(out, "\n");
            dcp_buf_add_fill(out, ' ', (size_t)indent);
            at = indent;
            first = true;
            text++;
            continue;
        }
        if (*text == ' ') {
            text++;
            continue;
        }
        size_t n = strcspn(text, " \n");
        int word = dcp_text_width_of(text, n);
        if (!first && at + 1 + word >= width) {
            dcp_buf_add_text(out, "\n");
            dcp_buf_add_fill(out, ' ', (size_t)indent);
            at = indent;
        } else if (!first) {
            dcp_buf_add_text(out, " ");
            at++;
        }
        dcp_buf_add(out, text, n);
        at += word;
        first = false;
        text += n;
    }
}

void dcp_text_add_escaped(struct dcp_buf *out, const char *text)
{
    size_t n = strlen(text), cap;
    if (!dcp_mul_size(n, 4, &cap)) { /* "\xNN" for a byte is the most it grows */
        out->failed = true;
        return;
    }
    DCP_CLEANUP_FREE char *escaped = dcp_mem_calloc(cap + 8, 1);
    if (!escaped) {
        out->failed = true;
        return;
    }
    dcp_buf_add_text(out, dcp_str_escape(escaped, cap + 8, text));
}
