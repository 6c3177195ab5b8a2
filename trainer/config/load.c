/* load: from text to a JSON tree with the overrides in it. */
#include "draft.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <string.h>

/* End of the comment that begins at `at`, or `at` when none does. */
static size_t comment_end(const char *text, size_t size_bytes, size_t at)
{
    size_t left = size_bytes - at;
    if (left >= 2 && memcmp(text + at, "/*", 2) == 0) {
        const char *end = memmem(text + at + 2, left - 2, "*/", 2);
        return end ? (size_t)(end - text) + 2 : size_bytes;
    }
    if (text[at] == '#' || (left >= 2 && memcmp(text + at, "//", 2) == 0)) {
        const char *end = memchr(text + at, '\n', left);
        return end ? (size_t)(end - text) : size_bytes;
    }
    return at;
}

/* Blanks comments, and commas before a closing bracket; line and column of everything
 * else stay. */
static void relax(char *text, size_t size_bytes)
{
    size_t comma = size_bytes; /* the last one, when nothing came behind it */
    bool in_string = false;
    for (size_t i = 0; i < size_bytes; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            in_string = c != '"';
            continue;
        }
        size_t end = comment_end(text, size_bytes, i);
        if (end > i) {
            for (size_t at = i; at < end; at++)
                if (text[at] != '\n')
                    text[at] = ' ';
            i = end - 1;
            continue;
        }
        if ((c == '}' || c == ']') && comma < size_bytes)
            text[comma] = ' ';
        if (c == ',')
            comma = i;
        else if (!strchr(" \t\r\n", c) || !c)
            comma = size_bytes;
        in_string = c == '"';
    }
}

static int bad_override(const char *what, const char *text, const char *why,
                        struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_USAGE, "%s: '%s' %s", what, DCP_SHOWN(text), why);
    dcp_error_hint(err, "an override reads key.path=value, such as "
                        "zero_optimization.stage=2");
    return DCP_E_USAGE;
}

/* The value of an override: JSON, or else the text itself. */
static int override_value(const char *text, json_t **out, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = dcp_json_parse(text, strlen(text), "override", out, &why);
    if (rc == DCP_E_MEMORY)
        return dcp_error_memory(err, "an override");
    if (rc == DCP_OK)
        return DCP_OK;
    if (!dcp_str_utf8_ok(text, strlen(text)))
        return bad_override("override", text, "is not UTF-8", err);
    *out = json_string(text);
    return *out ? DCP_OK : dcp_error_memory(err, "an override");
}

/* Puts a value at key.path, making the objects on the way. */
static int set_path(json_t *root, char *path, json_t *value, const char *text,
                    struct dcp_error *err)
{
    json_t *object = root;
    for (char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        *dot = '\0';
        json_t *inner = json_object_get(object, path);
        if (!inner || json_is_null(inner)) {
            inner = json_object();
            if (json_object_set_new(object, path, inner))
                return dcp_error_memory(err, "an override");
        }
        if (!json_is_object(inner))
            return bad_override("override", text,
                                "goes through a value that is not an object", err);
        object = inner;
    }
    if (json_object_set(object, path, value))
        return dcp_error_memory(err, "an override");
    return DCP_OK;
}

static int apply_override(json_t *root, const char *text, struct dcp_error *err)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || *text == '.' || equals[-1] == '.' ||
        memmem(text, (size_t)(equals - text), "..", 2))
        return bad_override("override", text, "is no key.path=value", err);
    if (!dcp_str_utf8_ok(text, (size_t)(equals - text)))
        return bad_override("override", text, "is not UTF-8", err);
    DCP_CLEANUP_FREE char *path = strndup(text, (size_t)(equals - text));
    DCP_CLEANUP_JSON json_t *value = NULL;
    if (!path)
        return dcp_error_memory(err, "an override");
    DCP_TRY(override_value(equals + 1, &value, err));
    return set_path(root, path, value, text, err);
}

/* What the user wrote is wrong, not corrupt. */
static int parse(const char *text, size_t size_bytes, const char *what, json_t **out,
                 struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = dcp_json_parse(text, size_bytes, what, out, &why);
    if (!rc && !json_is_object(*out))
        rc = dcp_error_set(&why, DCP_E_CORRUPT, "%s: the configuration must be an object",
                           what);
    if (rc != DCP_E_CORRUPT) {
        if (rc && err)
            *err = why;
        return rc;
    }
    dcp_error_set(err, DCP_E_USAGE, "%s", why.message);
    dcp_error_hint(err, "the configuration is a DeepSpeed JSON file");
    return DCP_E_USAGE;
}

int settings_load(const char *text, size_t size_bytes, const char *what,
                  const char *const *overrides, json_t **out, struct dcp_error *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin UTF-8 with it */
    if (size_bytes >= 3 && memcmp(text, mark, 3) == 0) {
        text += 3;
        size_bytes -= 3;
    }
    DCP_CLEANUP_FREE char *copy = dcp_mem_calloc(size_bytes + 1, 1);
    DCP_CLEANUP_JSON json_t *root = NULL;
    if (!copy)
        return dcp_error_memory(err, what);
    memcpy(copy, text, size_bytes);
    relax(copy, size_bytes);
    DCP_TRY(parse(copy, size_bytes, what, &root, err));
    for (; overrides && *overrides; overrides++)
        DCP_TRY(apply_override(root, *overrides, err));
    *out = json_incref(root);
    return DCP_OK;
}
