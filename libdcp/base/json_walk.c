#include "json_walk.h"

#include "mem.h"
#include "utf8.h"
#include <string.h>

/* What jansson needs for a value, at most, beside the bytes of its texts. */
#define OBJECT_BYTES 256
#define ARRAY_BYTES 144
#define NAME_BYTES 112
#define ITEM_BYTES 48
#define TEXT_BYTES 32 /* for each of its two quotes */
/* For one value: so many times its document, and what no machine misses. */
#define MAX_TIMES 3
#define FREE_BYTES ((size_t)16 << 20)

static int wrong(const struct dcp_json_walk *walk, const char *at, const char *why,
                 struct dcp_error *err)
{
    return dcp_json_wrong(walk->doc.text, at, walk->what, why, err);
}

static void skip_blanks(struct dcp_json_walk *walk)
{
    while (walk->at < walk->end && (*walk->at == ' ' || *walk->at == '\t' ||
                                    *walk->at == '\r' || *walk->at == '\n'))
        walk->at++;
}

static bool take(struct dcp_json_walk *walk, char c)
{
    skip_blanks(walk);
    bool is = walk->at < walk->end && *walk->at == c;
    walk->at += is;
    return is;
}

/* Behind the string that begins at `at`; NULL: it does not end. */
static const char *end_of_text(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\';
    return at < end ? at + 1 : NULL;
}

/* Behind the value that begins at `at`: brackets and quotes are counted, and nothing is
 * looked at. NULL: it does not end, or there is none. */
static const char *end_of_value(const char *begin, const char *end)
{
    int depth = 0;
    for (const char *at = begin; at < end; at++)
        switch (*at) {
        case '"':
            at = end_of_text(at, end);
            if (!at || !depth)
                return at;
            at--;
            break;
        case '{':
        case '[':
            depth++;
            break;
        case '}':
        case ']':
            if (depth && !--depth)
                return at + 1;
            if (depth)
                break; /* else it is of what holds the value */
            return at > begin ? at : NULL;
        case ',':
        case ' ':
        case '\t':
        case '\r':
        case '\n':
            if (!depth)
                return at > begin ? at : NULL;
            break;
        default:
            break;
        }
    return depth ? NULL : end;
}

int dcp_json_walk_init(struct dcp_json_walk *walk, struct dcp_json_span doc,
                       struct dcp_json_span part, char open, const char *what,
                       struct dcp_error *err)
{
    *walk = (struct dcp_json_walk){ .doc = doc,
                                    .what = what,
                                    .at = part.text,
                                    .end = part.text + part.size_bytes,
                                    .close = open == '{' ? '}' : ']' };
    if (doc.text == part.text)
        DCP_TRY(dcp_json_depth(doc.text, doc.size_bytes, what, err));
    return take(walk, open)
               ? DCP_OK
               : wrong(walk, walk->at,
                       open == '{' ? "there must be an object" : "there must be an array",
                       err);
}

void dcp_json_walk_fini(struct dcp_json_walk *walk)
{
    dcp_buf_fini(&walk->key);
}

/* A key as it is meant. Few have escapes; those jansson reads. */
static int take_key(struct dcp_json_walk *walk, struct dcp_error *err)
{
    skip_blanks(walk);
    const char *begin = walk->at;
    const char *end =
        begin < walk->end && *begin == '"' ? end_of_text(begin, walk->end) : NULL;
    if (!end)
        return wrong(walk, begin, "there must be a name", err);
    walk->key.size_bytes = 0;
    bool plain = true;
    uint32_t code;
    for (const char *c = begin + 1; c < end - 1 && plain;) {
        size_t n = dcp_utf8_decode(c, (size_t)(end - 1 - c), &code);
        plain = n && code >= 0x20 && code != '\\';
        c += n;
    }
    walk->at = end;
    if (plain) {
        dcp_buf_add(&walk->key, begin + 1, (size_t)(end - begin) - 2);
        return dcp_buf_check(&walk->key, err);
    }
    DCP_CLEANUP_JSON json_t *text = NULL;
    DCP_TRY(dcp_json_parse_part(walk->doc.text, begin, (size_t)(end - begin), walk->what,
                                &text, err));
    dcp_buf_add_text(&walk->key, json_string_value(text));
    return dcp_buf_check(&walk->key, err);
}

int dcp_json_walk_find(struct dcp_json_walk *walk, struct dcp_error *err)
{
    const char *end = end_of_value(walk->at, walk->end);
    if (!end)
        return wrong(walk, walk->at, "there must be a value", err);
    walk->value = (struct dcp_json_span){ walk->at, (size_t)(end - walk->at) };
    walk->at = end;
    return DCP_OK;
}

static int begin_member(struct dcp_json_walk *walk, struct dcp_error *err)
{
    if (walk->close == '}') {
        DCP_TRY(take_key(walk, err));
        if (!take(walk, ':'))
            return wrong(walk, walk->at, "there must be a ':'", err);
    }
    skip_blanks(walk);
    return DCP_OK;
}

bool dcp_json_walk_begin(struct dcp_json_walk *walk, struct dcp_error *err)
{
    bool first = !walk->begun;
    walk->begun = true;
    if (!take(walk, walk->close)) {
        walk->rc = first || take(walk, ',')
                       ? begin_member(walk, err)
                       : wrong(walk, walk->at, "there must be a ',' or the end", err);
        return !walk->rc;
    }
    skip_blanks(walk);
    if (walk->at < walk->end)
        walk->rc = wrong(walk, walk->at, "something follows the end", err);
    return false;
}

bool dcp_json_walk_next(struct dcp_json_walk *walk, struct dcp_error *err)
{
    if (!dcp_json_walk_begin(walk, err))
        return false;
    walk->rc = dcp_json_walk_find(walk, err);
    return !walk->rc;
}

/* Memory that a parser would need, rather more than less. */
static size_t tree_bytes(struct dcp_json_span value)
{
    size_t bytes = value.size_bytes;
    bool in_text = false;
    for (size_t i = 0; i < value.size_bytes; i++) {
        char c = value.text[i];
        if (c == '"')
            in_text = !in_text;
        if (in_text && c == '\\')
            i++;
        bytes += c == '"'   ? TEXT_BYTES
                 : in_text  ? 0
                 : c == '{' ? OBJECT_BYTES
                 : c == '[' ? ARRAY_BYTES
                 : c == ':' ? NAME_BYTES
                 : c == ',' ? ITEM_BYTES
                            : 0;
    }
    return bytes;
}

int dcp_json_walk_parse(const struct dcp_json_walk *walk, json_t **out,
                        struct dcp_error *err)
{
    struct dcp_json_span value = walk->value;
    *out = NULL;
    if (value.size_bytes > FREE_BYTES / OBJECT_BYTES &&
        tree_bytes(value) > FREE_BYTES + MAX_TIMES * walk->doc.size_bytes)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "%s: a value of it would take much more memory than its "
                             "text has bytes",
                             walk->what);
    return dcp_json_parse_part(walk->doc.text, value.text, value.size_bytes, walk->what,
                               out, err);
}

/* Where a key is in the list; behind its end when it is not. */
static size_t find(const char *const *names, const char *key)
{
    size_t i = 0;
    while (names[i] && strcmp(names[i], key) != 0)
        i++;
    return i;
}

static int add_root(const struct dcp_json_walk *walk, const char *const *large,
                    struct dcp_json_span *out_large, json_t *root, struct dcp_error *err)
{
    const char *key = dcp_json_walk_key(walk);
    size_t i = find(large, key);
    if (large[i] ? out_large[i].text != NULL : json_object_get(root, key) != NULL)
        return wrong(walk, walk->value.text, "there are two members of this name", err);
    if (large[i]) {
        out_large[i] = walk->value;
        return DCP_OK;
    }
    json_t *value;
    int rc = dcp_json_walk_parse(walk, &value, err);
    if (!rc && json_object_set_new(root, key, value))
        rc = dcp_error_memory(err, walk->what);
    return rc;
}

int dcp_json_walk_root(struct dcp_json_span doc, const char *what,
                       const char *const *large, struct dcp_json_span *out_large,
                       json_t **out, struct dcp_error *err)
{
    DCP_CLEANUP_WALK struct dcp_json_walk walk;
    DCP_CLEANUP_JSON json_t *root = json_object();
    *out = NULL;
    for (size_t i = 0; large[i]; i++)
        out_large[i] = (struct dcp_json_span){ 0 };
    int rc = dcp_json_walk_init(&walk, doc, doc, '{', what, err);
    if (!rc && !root)
        rc = dcp_error_memory(err, what);
    while (!rc && dcp_json_walk_next(&walk, err))
        rc = add_root(&walk, large, out_large, root, err);
    rc = rc ? rc : walk.rc;
    *out = rc ? NULL : json_incref(root);
    return rc;
}

int dcp_json_walk_member(struct dcp_json_walk *walk, struct dcp_json_span doc,
                         struct dcp_json_span part, char open, const char *key,
                         const char *what, struct dcp_error *err)
{
    if (part.text && *part.text == open)
        return dcp_json_walk_init(walk, doc, part, open, what, err);
    *walk = (struct dcp_json_walk){ 0 };
    return dcp_error_set(err, DCP_E_CORRUPT, "%s: '%s' must be %s, %s", what, key,
                         open == '{' ? "an object" : "an array",
                         part.text ? "but is something else" : "but is missing");
}
