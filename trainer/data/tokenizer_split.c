/* tokenizer_split: the pattern that cuts text into words before merges are applied, as a
 * scanner. */
#include "tokenizer.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "unicode_ranges.h"
#include <string.h>

static enum unicode_class find_class(uint32_t code)
{
    size_t low = 0, high = DCP_ARRAY_LEN(unicode_ranges);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (code > unicode_ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < DCP_ARRAY_LEN(unicode_ranges) && code >= unicode_ranges[low].first)
        return unicode_ranges[low].class;
    return UNICODE_OTHER;
}

static enum unicode_class ascii_class(unsigned char c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return UNICODE_LETTER;
    if (c >= '0' && c <= '9')
        return UNICODE_NUMBER;
    return c == ' ' || (c >= '\t' && c <= '\r') ? UNICODE_SPACE : UNICODE_OTHER;
}

/* Class and length of the first character; n >= 1. */
static enum unicode_class classify(const char *text, size_t n, size_t *out_len)
{
    *out_len = 1;
    if ((unsigned char)*text < 0x80)
        return ascii_class((unsigned char)*text);
    uint32_t code;
    size_t len = dcp_utf8_decode(text, n, &code);
    if (!len)
        return UNICODE_OTHER;
    *out_len = len;
    return find_class(code);
}

/* Length of "'s" and the like at the begin of a text, 0: none. */
static size_t contraction(const char *text, size_t n)
{
    if (n < 2 || text[0] != '\'')
        return 0;
    if (strchr("stmd", text[1]) && text[1])
        return 2;
    if (n >= 3 && (memcmp(text, "'re", 3) == 0 || memcmp(text, "'ve", 3) == 0 ||
                   memcmp(text, "'ll", 3) == 0))
        return 3;
    return 0;
}

/* End of the run of characters of one class that begins at `at`. */
static size_t run_end(const char *text, size_t n, size_t at, enum unicode_class class,
                      size_t *out_last)
{
    size_t len = 0;
    *out_last = at;
    while (at < n && classify(text + at, n - at, &len) == class) {
        *out_last = at;
        at += len;
    }
    return at;
}

size_t tokenizer_word(const char *text, size_t n)
{
    size_t len = contraction(text, n), last;
    if (len)
        return len;
    enum unicode_class class = classify(text, n, &len);
    if (class != UNICODE_SPACE)
        return run_end(text, n, 0, class, &last);
    if (text[0] == ' ' && n > 1) { /* one space belongs to the word behind it */
        class = classify(text + 1, n - 1, &len);
        if (class != UNICODE_SPACE)
            return run_end(text, n, 1, class, &last);
    }
    size_t end = run_end(text, n, 0, UNICODE_SPACE, &last);
    /* The last character of several is left for the word behind them. */
    return end < n && last > 0 ? last : end;
}
