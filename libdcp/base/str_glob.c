/* Matching by a nondeterministic automaton whose states are places in the glob: the time
 * is the product of both lengths whatever the glob, where backtracking or expanding
 * braces would be exponential. */
#include "str.h"

#include "utf8.h"
#include <string.h>

#define GLOB_MAX_BYTES 4095

struct automaton {
    const char *glob;
    size_t n;
    uint16_t close[GLOB_MAX_BYTES + 1]; /* of '{' and ',' in braces: where the '}' is */
    bool on[GLOB_MAX_BYTES + 1], next[GLOB_MAX_BYTES + 1];
};

/* Bytes of the class that begins with the '[' at glob; 0 when it is not closed. */
static size_t class_length(const char *glob)
{
    size_t at = 1;
    if (glob[at] == '!' || glob[at] == '^')
        at++;
    if (glob[at] == ']') /* first: a member */
        at++;
    const char *end = strchr(glob + at, ']');
    return end ? (size_t)(end - glob) + 1 : 0;
}

/* A character of the glob; bytes that are not UTF-8 stand for themselves. */
static size_t char_at(const char *text, size_t n, uint32_t *out_code)
{
    size_t len = dcp_utf8_decode(text, n, out_code);
    if (len)
        return len;
    *out_code = 0x110000u + (unsigned char)*text;
    return 1;
}

static bool class_holds(const char *class, size_t len, uint32_t code)
{
    size_t at = 1, end = len - 1;
    bool negated = class[at] == '!' || class[at] == '^';
    if (negated)
        at++;
    bool found = false;
    while (at < end) {
        uint32_t low, high;
        at += char_at(class + at, end - at, &low);
        high = low;
        if (at + 1 < end && class[at] == '-') {
            at++;
            at += char_at(class + at, end - at, &high);
        }
        found = found || (code >= low && code <= high);
    }
    return found != negated;
}

/* Bytes of what stands at a place: an escaped character, a class, or a character. */
static size_t item_length(const char *glob, size_t left)
{
    uint32_t code;
    if (*glob == '\\' && left > 1)
        return 1 + char_at(glob + 1, left - 1, &code);
    size_t len = *glob == '[' ? class_length(glob) : 0;
    return len ? len : char_at(glob, left, &code);
}

/* Pairs braces. One that is never closed stands for itself, as its commas do. */
static void find_braces(struct automaton *m)
{
    uint16_t open[GLOB_MAX_BYTES + 1]; /* places of '{' and ',' that wait for their '}' */
    size_t n_open = 0;
    size_t depth = 0;
    memset(m->close, 0, m->n * sizeof m->close[0]);
    for (size_t at = 0; at < m->n; at += item_length(m->glob + at, m->n - at)) {
        char c = m->glob[at];
        if (c == '{' || (c == ',' && depth)) {
            open[n_open++] = (uint16_t)at;
            depth += c == '{';
        } else if (c == '}' && depth) {
            char opener;
            do {
                size_t begin = open[--n_open];
                m->close[begin] = (uint16_t)at;
                opener = m->glob[begin];
            } while (opener != '{');
            m->close[at] = (uint16_t)at;
            depth--;
        }
    }
    /* Commas behind a '{' that stayed open keep close 0: they are plain characters. */
}

/* Turns a place on, with all that can be reached from it without a character. */
static void reach(const struct automaton *m, bool *set, size_t at)
{
    while (!set[at]) {
        set[at] = true;
        if (at == m->n)
            return;
        char c = m->glob[at];
        size_t close = m->close[at];
        if (c == '*') {
            at++;
        } else if (c == '{' && close) {
            size_t inner = at + 1;
            while (inner < close) { /* each alternative behind a ',' of these braces */
                if (m->glob[inner] == ',' && m->close[inner] == close)
                    reach(m, set, inner + 1);
                inner += m->glob[inner] == '{' && m->close[inner]
                             ? (size_t)m->close[inner] - inner
                             : item_length(m->glob + inner, m->n - inner);
            }
            at++;
        } else if ((c == ',' || c == '}') && close) {
            at = close + 1;
        } else {
            return;
        }
    }
}

/* The places after one character. */
static void step(struct automaton *m, uint32_t code)
{
    memset(m->next, 0, m->n + 1);
    for (size_t at = 0; at < m->n; at++) {
        if (!m->on[at])
            continue;
        const char *item = m->glob + at;
        size_t left = m->n - at, len = item_length(item, left);
        uint32_t wanted;
        if (*item == '*') {
            reach(m, m->next, at);
        } else if (m->close[at]) {
            continue;
        } else if (*item == '?') {
            reach(m, m->next, at + 1);
        } else if (*item == '[' && len > 1) {
            if (class_holds(item, len, code))
                reach(m, m->next, at + len);
        } else {
            bool escaped = *item == '\\' && left > 1;
            char_at(item + escaped, left - escaped, &wanted);
            if (wanted == code)
                reach(m, m->next, at + len);
        }
    }
    memcpy(m->on, m->next, m->n + 1);
}

bool dcp_str_glob(const char *glob, const char *text)
{
    struct automaton m; /* large: only the glob's length of it is ever set */
    m.glob = glob;
    m.n = strlen(glob);
    if (m.n > GLOB_MAX_BYTES)
        return false;
    memset(m.on, 0, m.n + 1);
    find_braces(&m);
    reach(&m, m.on, 0);
    for (size_t left = strlen(text); left;) {
        uint32_t code;
        size_t len = char_at(text, left, &code);
        step(&m, code);
        text += len;
        left -= len;
    }
    return m.on[m.n];
}
