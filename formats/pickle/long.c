/* long: integers of any length between Python's bytes and decimal text. Long
 * division by 10^9; the length is limited, so the square does not matter. */
#include "base/mem.h"
#include "json.h"
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1000000000, CHUNK_DIGITS = 9, WORDS = DCP_PICKLE_JSON_MAX_INT_BYTES / 4 };

/* The magnitude of a two's complement number, in words of 32 bits. Returns its sign. */
static bool load(const unsigned char *bytes, size_t n, uint32_t words[WORDS])
{
    bool negative = n && bytes[n - 1] & 0x80;
    unsigned carry = negative;

    memset(words, 0, WORDS * sizeof *words);
    for (size_t i = 0; i < n; i++) {
        unsigned byte =
            (negative ? (unsigned)(unsigned char)~bytes[i] : bytes[i]) + carry;
        carry = byte >> 8;
        words[i / 4] |= (uint32_t)(byte & 0xff) << 8 * (i % 4);
    }
    return negative;
}

const char *dcp_pickle_long_text(struct dcp_arena *arena, const unsigned char *bytes,
                                 size_t n)
{
    uint32_t words[WORDS];
    size_t cap = 3 * n + 2 * CHUNK_DIGITS, at = cap - 1;

    if (n > DCP_PICKLE_JSON_MAX_INT_BYTES)
        return NULL;
    char *text = dcp_arena_alloc(arena, cap, 1);
    if (!text)
        return NULL;
    bool negative = load(bytes, n, words);
    for (size_t n_words = (n + 3) / 4; n_words || at == cap - 1;) {
        uint64_t rest = 0;
        for (size_t i = n_words; i-- > 0;) {
            rest = rest << 32 | words[i];
            words[i] = (uint32_t)(rest / CHUNK);
            rest %= CHUNK;
        }
        while (n_words && !words[n_words - 1])
            n_words--;
        for (int digit = 0; digit < CHUNK_DIGITS && (n_words || rest || !digit);
             digit++) {
            text[--at] = (char)('0' + rest % 10);
            rest /= 10;
        }
    }
    if (negative)
        text[--at] = '-';
    return text + at;
}

bool dcp_pickle_long_parse(struct dcp_arena *arena, const char *text,
                           const unsigned char **out, size_t *out_n)
{
    bool negative = text[0] == '-';
    const char *digits = text + negative;
    size_t n_digits = strlen(digits), n = n_digits / 2 + 2;

    if (!n_digits || n > DCP_PICKLE_JSON_MAX_INT_BYTES ||
        strspn(digits, "0123456789") != n_digits)
        return false;
    unsigned char *bytes = dcp_arena_alloc(arena, n, 1);
    if (!bytes)
        return false;
    for (size_t i = 0; i < n_digits; i++) {
        unsigned carry = (unsigned)(digits[i] - '0');
        for (size_t k = 0; k < n; k++) {
            carry += bytes[k] * 10u;
            bytes[k] = (unsigned char)carry;
            carry >>= 8;
        }
    }
    for (size_t k = 0, carry = 1; negative && k < n; k++) {
        carry += (unsigned char)~bytes[k];
        bytes[k] = (unsigned char)carry;
        carry >>= 8;
    }
    /* The shortest form, as Python writes it: the last byte only where the sign needs it.
     */
    unsigned char fill = negative ? 0xff : 0;
    while (n > 1 && bytes[n - 1] == fill && (bytes[n - 2] & 0x80) == (fill & 0x80))
        n--;
    *out = bytes;
    *out_n = n;
    return true;
}
