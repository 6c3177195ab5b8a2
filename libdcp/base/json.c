#include "json.h"

#include "mem.h"
#include "str.h"
#include <errno.h>

#define MAX_DEPTH 64
#define MAX_INDENT 31 /* jansson's */

/* Brackets that are open at once, at most. Looked at before parsing, because the parser
 * calls itself for each and its own limit is far higher. */
static size_t nesting(const char *text, size_t size_bytes)
{
    size_t depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < size_bytes; i++) {
        char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '[' || c == '{') && ++depth > deepest)
            deepest = depth;
        else if (!in_string && (c == ']' || c == '}') && depth)
            depth--;
    }
    return deepest;
}

int dcp_json_depth(const char *text, size_t size_bytes, const char *what,
                   struct dcp_error *err)
{
    return nesting(text, size_bytes) <= MAX_DEPTH
               ? DCP_OK
               : dcp_error_set(err, DCP_E_CORRUPT, "%s: JSON is nested deeper than %d",
                               what, MAX_DEPTH);
}

int dcp_json_wrong(const char *text, const char *at, const char *what, const char *why,
                   struct dcp_error *err)
{
    size_t line = 1, column = 1;
    for (const char *c = text; c < at; c++) {
        line += *c == '\n';
        column = *c == '\n' ? 1 : column + 1;
    }
    return dcp_error_set(err, DCP_E_CORRUPT,
                         "%s: not valid JSON at line %zu, column %zu: %s", what, line,
                         column, why);
}

int dcp_json_parse_part(const char *text, const char *part, size_t size_bytes,
                        const char *what, json_t **out, struct dcp_error *err)
{
    *out = NULL;
    DCP_TRY(dcp_json_depth(part, size_bytes, what, err));
    json_error_t why;
    errno = 0; /* where the parser cannot allocate it may speak of bad syntax instead */
    json_t *value =
        json_loadb(part, size_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!value && errno == ENOMEM)
        return dcp_error_memory(err, what);
    if (!value && json_error_code(&why) == json_error_null_character)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "%s: a text in it has a NUL, which nothing here can have",
                             what);
    if (!value) {
        size_t at = why.position > 0 ? (size_t)why.position - 1 : 0;
        return dcp_json_wrong(text, part + (at < size_bytes ? at : size_bytes), what,
                              why.text, err);
    }
    *out = value;
    return DCP_OK;
}

int dcp_json_parse(const char *text, size_t size_bytes, const char *what, json_t **out,
                   struct dcp_error *err)
{
    return dcp_json_parse_part(text, text, size_bytes, what, out, err);
}

static int wrong(const char *what, const char *key, const char *wanted,
                 const json_t *found, struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_CORRUPT, "%s: '%s' must be %s, %s", what, key, wanted,
                         found ? "but is something else" : "but is missing");
}

int dcp_json_get_u64(const json_t *object, const char *key, const char *what,
                     uint64_t *out, struct dcp_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return wrong(what, key, "a whole number, 0 or more", v, err);
    *out = (uint64_t)json_integer_value(v);
    return DCP_OK;
}

int dcp_json_get_i64(const json_t *object, const char *key, const char *what,
                     int64_t *out, struct dcp_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_integer(v))
        return wrong(what, key, "a whole number", v, err);
    *out = (int64_t)json_integer_value(v);
    return DCP_OK;
}

int dcp_json_get_text(const json_t *object, const char *key, const char *what,
                      const char **out, struct dcp_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v))
        return wrong(what, key, "a text", v, err);
    *out = json_string_value(v);
    return DCP_OK;
}

int dcp_json_get_hex64(const json_t *object, const char *key, const char *what,
                       uint64_t *out, struct dcp_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v) || !dcp_str_parse_hex64(json_string_value(v), out))
        return wrong(what, key, "16 hexadecimal digits in lower case", v, err);
    return DCP_OK;
}

int dcp_json_get_object(const json_t *object, const char *key, const char *what,
                        json_t **out, struct dcp_error *err)
{
    json_t *v = json_object_get(object, key);
    if (!json_is_object(v))
        return wrong(what, key, "an object", v, err);
    *out = v;
    return DCP_OK;
}

int dcp_json_get_array(const json_t *object, const char *key, const char *what,
                       json_t **out, struct dcp_error *err)
{
    json_t *v = json_object_get(object, key);
    if (!json_is_array(v))
        return wrong(what, key, "an array", v, err);
    *out = v;
    return DCP_OK;
}

static int add_text(const char *text, size_t n, void *buf)
{
    dcp_buf_add(buf, text, n);
    return ((struct dcp_buf *)buf)->failed ? -1 : 0;
}

/* Not json_dumps: jansson forgets a failure inside a key and returns JSON with holes. The
 * buffer remembers it. */
char *dcp_json_text(const json_t *value, int indent)
{
    size_t layout = indent <= 0 ? JSON_COMPACT
                                : JSON_INDENT(indent < MAX_INDENT ? indent : MAX_INDENT);
    struct dcp_buf buf = { 0 };

    int rc = json_dump_callback(value, add_text, &buf,
                                layout | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (rc || buf.failed) {
        dcp_buf_fini(&buf);
        return NULL;
    }
    return (char *)buf.data;
}

void dcp_json_quote(struct dcp_buf *buf, const char *text)
{
    static const char *const short_escapes[128] = {
        ['"'] = "\\\"", ['\\'] = "\\\\", ['\b'] = "\\b", ['\f'] = "\\f",
        ['\n'] = "\\n", ['\r'] = "\\r",  ['\t'] = "\\t",
    };

    dcp_buf_add_u8(buf, '"');
    for (const char *begin = text; *begin; begin = text) {
        while ((unsigned char)*text >= 0x20 && *text != '"' && *text != '\\')
            text++;
        dcp_buf_add(buf, begin, (size_t)(text - begin));
        unsigned char c = (unsigned char)*text;
        if (!c)
            break;
        if (short_escapes[c])
            dcp_buf_add_text(buf, short_escapes[c]);
        else
            dcp_buf_add_fmt(buf, "\\u%04x", c);
        text++;
    }
    dcp_buf_add_u8(buf, '"');
}
