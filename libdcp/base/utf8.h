/* utf8: one character at a time, from bytes that may be anything. */
#ifndef DCP_BASE_UTF8_H
#define DCP_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes the character at text (n bytes left): its length, or 0 when it is not valid
 * UTF-8 (too long a form, a surrogate, beyond U+10FFFF, incomplete). Table 3-7 of the
 * Unicode standard. */
static inline size_t dcp_utf8_decode(const char *text, size_t n, uint32_t *out_code)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)text;
    if (!n)
        return 0;
    if (p[0] < 0x80) {
        *out_code = p[0];
        return 1;
    }
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > n)
        return 0;
    uint32_t code = p[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3fu);
    }
    if (code < least[len] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    *out_code = code;
    return len;
}

#endif
