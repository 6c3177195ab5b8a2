#include "hex.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void dcp_hex(char *out, const void *data, size_t n)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < n; i++) {
        *out++ = "0123456789abcdef"[bytes[i] >> 4];
        *out++ = "0123456789abcdef"[bytes[i] & 15];
    }
    *out = '\0';
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool dcp_hex_parse(const char *text, void *out, size_t n)
{
    unsigned char *bytes = out;
    for (size_t i = 0; i < n; i++) {
        int high = digit_of(text[2 * i]);
        int low = high < 0 ? -1 : digit_of(text[2 * i + 1]);
        if (low < 0)
            return false; /* the NUL too */
        bytes[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

char *dcp_hex_new(const void *data, size_t n)
{
    char *text = n < SIZE_MAX / 2 ? malloc(2 * n + 1) : NULL;

    if (text)
        dcp_hex(text, data, n);
    return text;
}

bool dcp_hex_parse_all(const char *text, void *out)
{
    size_t n = strlen(text);

    return n % 2 == 0 && dcp_hex_parse(text, out, n / 2);
}
