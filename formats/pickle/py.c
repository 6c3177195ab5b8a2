/* py: tags, and what they stand for. */
#include "py.h"
#include "base/hex.h"
#include "base/mem.h"
#include "base/str.h"
#include "globals.h"
#include <stdio.h>
#include <string.h>

/* jansson's iterators take no const. */
static json_t *any(const json_t *value)
{
    return (json_t *)(uintptr_t)value;
}

/* -- made ---------------------------------------------------------------------------- */

json_t *dcp_py_new(const char *tag, json_t *payload)
{
    return payload ? json_pack("{s:o}", tag, payload) : NULL;
}

json_t *dcp_py_name(const char *tag, const char *text)
{
    return json_pack("{s:s}", tag, text);
}

json_t *dcp_py_hex(const char *tag, const void *data, size_t n)
{
    DCP_CLEANUP_FREE char *text = dcp_hex_new(data, n);

    return text ? json_pack("{s:s%}", tag, text, 2 * n) : NULL;
}

json_t *dcp_py_object(const char *class, const char *member, json_t *value)
{
    return value ? json_pack("{s:s, s:o}", DCP_PY_OBJECT, class, member, value) : NULL;
}

json_t *dcp_py_ordered(json_t *pairs)
{
    return dcp_py_object(DCP_PY_ORDERED, "pairs", pairs);
}

/* -- tested and taken apart ---------------------------------------------------------- */

bool dcp_py_is_tag(const char *key)
{
    return key && key[0] == DCP_PY_MARK;
}

const char *dcp_py_tag(const json_t *value)
{
    const char *key = json_object_iter_key(json_object_iter(any(value)));

    return dcp_py_is_tag(key) ? key : NULL;
}

bool dcp_py_is_dict(const json_t *value)
{
    return json_is_object(value) && !dcp_py_tag(value);
}

json_t *dcp_py_get(const json_t *value, const char *tag)
{
    return json_object_size(value) == 1 ? json_object_get(value, tag) : NULL;
}

/* The first member of an object, when it is a text and of that tag. */
static const char *first_text(const json_t *value, const char *tag)
{
    const char *first = dcp_py_tag(value);

    return first && !strcmp(first, tag) ? json_string_value(json_object_get(value, first))
                                        : NULL;
}

const char *dcp_py_tensor(const json_t *value)
{
    const char *name = first_text(value, DCP_PY_TENSOR);

    return name ? name : first_text(value, DCP_PY_AGAIN);
}

const char *dcp_py_value(const json_t *value)
{
    return json_string_value(dcp_py_get(value, DCP_PY_VALUE));
}

static const char *global_of(const json_t *value, const char *tag)
{
    struct dcp_global_parts parts;
    const char *text = first_text(value, tag);

    return text && dcp_global_split(text, &parts) ? text : NULL;
}

const char *dcp_py_class(const json_t *value)
{
    return global_of(value, DCP_PY_OBJECT);
}

const char *dcp_py_global(const json_t *value)
{
    return json_object_size(value) == 1 ? global_of(value, DCP_PY_GLOBAL) : NULL;
}

json_t *dcp_py_pairs(const json_t *value)
{
    const char *class = json_string_value(json_object_get(value, DCP_PY_OBJECT));

    return class && !strcmp(class, DCP_PY_ORDERED) ? json_object_get(value, "pairs")
                                                   : dcp_py_get(value, DCP_PY_DICT);
}

json_t *dcp_py_untuple(json_t *value)
{
    json_t *items = dcp_py_get(value, DCP_PY_TUPLE);

    return items ? items : value;
}

/* -- parts --------------------------------------------------------------------------- */

struct dcp_py_parts dcp_py_parts(const json_t *value)
{
    json_t *pairs = dcp_py_pairs(value), *list = dcp_py_untuple(any(value));

    if (pairs)
        return (struct dcp_py_parts){ .kind = DCP_PY_PAIRS, .container = pairs };
    if (list != value)
        return (struct dcp_py_parts){ .kind = DCP_PY_LIST, .container = list };
    return dcp_py_children(value);
}

struct dcp_py_parts dcp_py_children(const json_t *value)
{
    return (struct dcp_py_parts){ .kind = json_is_array(value)    ? DCP_PY_LIST
                                          : json_is_object(value) ? DCP_PY_MEMBERS
                                                                  : DCP_PY_PLAIN,
                                  .container = any(value) };
}

const char *dcp_py_key(const json_t *key, char digits[24])
{
    if (json_is_string(key))
        return json_string_value(key);
    snprintf(digits, 24, "%lld", (long long)json_integer_value(key));
    return json_is_integer(key)   ? digits
           : json_is_boolean(key) ? json_is_true(key) ? "True" : "False"
           : json_is_null(key)    ? "None"
                                  : NULL;
}

bool dcp_py_next(struct dcp_py_parts *parts)
{
    json_t *container = parts->container;
    size_t at = parts->n_seen++;

    if (parts->kind == DCP_PY_MEMBERS) {
        parts->member = at ? json_object_iter_next(container, parts->member)
                           : json_object_iter(container);
        parts->name = json_object_iter_key(parts->member);
        parts->value = json_object_iter_value(parts->member);
    } else if (parts->kind == DCP_PY_LIST) {
        snprintf(parts->digits, sizeof parts->digits, "%zu", at);
        parts->name = parts->digits;
        parts->value = json_array_get(container, at);
    } else if (parts->kind == DCP_PY_PAIRS) {
        const json_t *pair = json_array_get(container, at),
                     *key = json_array_get(pair, 0);
        parts->name = dcp_py_key(key, parts->digits);
        parts->is_word = json_is_boolean(key) || json_is_null(key);
        parts->value = json_array_get(pair, 1);
        return pair != NULL;
    }
    return parts->value != NULL;
}

bool dcp_py_holds_tensor(const json_t *value)
{
    struct dcp_py_parts parts = dcp_py_children(value);
    bool holds = dcp_py_tensor(value) != NULL;

    while (!holds && dcp_py_next(&parts))
        holds = dcp_py_holds_tensor(parts.value);
    return holds;
}

bool dcp_py_put(struct dcp_py_parts *parts, json_t *value)
{
    size_t at = parts->n_seen - 1;

    if (parts->kind == DCP_PY_MEMBERS)
        return !json_object_iter_set_new(parts->container, parts->member, value);
    if (parts->kind == DCP_PY_LIST)
        return !json_array_set_new(parts->container, at, value);
    return !json_array_set_new(json_array_get(parts->container, at), 1, value);
}
