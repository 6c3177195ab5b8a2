/* json: from the tree to JSON. */
#include "json.h"
#include "base/buf.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <math.h>
#include <string.h>

struct converter {
    struct dcp_arena *arena;
    const struct dcp_pickle_hook *hook;
    struct dcp_error *err;
    struct dcp_buf path;
    struct dcp_pickle_used *used;
};

static int convert(struct converter *c, const struct dcp_pickle_node *node, int depth,
                   json_t **out);

static int no_memory(struct converter *c)
{
    return dcp_error_memory(c->err, "the objects of a pickle");
}

/* Hands value over to *out, or fails when there is none. */
static int give(struct converter *c, json_t *value, json_t **out)
{
    *out = value;
    return value ? DCP_OK : no_memory(c);
}

/* {tag: value}; takes the value. */
static int give_tagged(struct converter *c, const char *tag, json_t *value, json_t **out)
{
    return give(c, dcp_py_new(tag, value), out);
}

/* -- the path ------------------------------------------------------------------------ */

/* Adds a part and returns the old length for path_cut. */
static size_t path_add(struct converter *c, const char *part, size_t n)
{
    size_t old = c->path.size_bytes;

    if (old && n)
        dcp_buf_add(&c->path, ".", 1);
    dcp_buf_add(&c->path, part, n);
    return old;
}

static size_t path_add_number(struct converter *c, int64_t number)
{
    size_t old = c->path.size_bytes;

    dcp_buf_add_fmt(&c->path, "%s%lld", old ? "." : "", (long long)number);
    return old;
}

static void path_cut(struct converter *c, size_t old)
{
    if (c->path.data && !c->path.failed) {
        c->path.size_bytes = old;
        c->path.data[old] = '\0';
    }
}

/* The tables in which an nn.Module keeps its tensors; its state_dict leaves them out. */
static bool is_module_table(const struct dcp_pickle_node *key)
{
    return dcp_pickle_is_text(key, "_parameters") ||
           dcp_pickle_is_text(key, "_buffers") || dcp_pickle_is_text(key, "_modules");
}

static size_t path_add_key(struct converter *c, const struct dcp_pickle_node *key,
                           bool is_state)
{
    if (is_state && is_module_table(key))
        return c->path.size_bytes;
    if (key->kind == DCP_PICKLE_STR) {
        bool named =
            key->text.size_bytes && !memchr(key->text.data, 0, key->text.size_bytes);
        return named ? path_add(c, key->text.data, key->text.size_bytes)
                     : path_add(c, DCP_PICKLE_JSON_NO_NAME, 1);
    }
    if (key->kind == DCP_PICKLE_INT)
        return path_add_number(c, key->number);
    if (key->kind == DCP_PICKLE_BOOL)
        return path_add(c, key->truth ? "True" : "False", key->truth ? 4 : 5);
    return key->kind == DCP_PICKLE_NONE ? path_add(c, "None", 4) : path_add(c, "?", 1);
}

/* -- values -------------------------------------------------------------------------- */

static int convert_text(struct converter *c, const struct dcp_pickle_node *node,
                        json_t **out)
{
    const char *text = node->text.data;
    size_t n = node->text.size_bytes;

    if (n && memchr(text, 0, n))
        return give(c, dcp_py_hex(DCP_PY_TEXT, text, n), out);
    return give(c, json_stringn(n ? text : "", n), out);
}

static int convert_float(struct converter *c, double real, json_t **out)
{
    if (isnan(real))
        return give(c, dcp_py_name(DCP_PY_FLOAT, "nan"), out);
    if (isinf(real))
        return give(c, dcp_py_name(DCP_PY_FLOAT, real < 0 ? "-inf" : "inf"), out);
    return give(c, json_real(real), out);
}

static int convert_long(struct converter *c, const struct dcp_pickle_node *node,
                        json_t **out)
{
    if (node->text.size_bytes > DCP_PICKLE_JSON_MAX_INT_BYTES)
        return dcp_error_set(c->err, DCP_E_UNSUPPORTED,
                             "an integer of the pickle has over %d bytes",
                             DCP_PICKLE_JSON_MAX_INT_BYTES);
    const char *text = dcp_pickle_long_text(
        c->arena, (const unsigned char *)node->text.data, node->text.size_bytes);
    return text ? give(c, dcp_py_name(DCP_PY_INT, text), out) : no_memory(c);
}

/* "module.name"; "module:Outer.name" when it stands in a class. */
static json_t *global_text(const struct dcp_pickle_node *node)
{
    const char *module = node->global.module;
    size_t n = node->global.n_module;

    return module[n] ? json_sprintf("%.*s:%s.%s", (int)n, module, module + n + 1,
                                    node->global.name)
                     : json_sprintf("%s.%s", module, node->global.name);
}

static int convert_global(struct converter *c, const struct dcp_pickle_node *node,
                          json_t **out)
{
    return give_tagged(c, DCP_PY_GLOBAL, global_text(node), out);
}

/* -- containers ---------------------------------------------------------------------- */

static int convert_list(struct converter *c, const struct dcp_pickle_list *list,
                        int depth, json_t **out)
{
    json_t *array = json_array();
    int rc = array ? DCP_OK : no_memory(c);

    for (size_t i = 0; i < list->n && !rc; i++) {
        json_t *item = NULL;
        size_t old = path_add_number(c, (int64_t)i);
        rc = convert(c, list->items[i], depth + 1, &item);
        path_cut(c, old);
        if (!rc && json_array_append_new(array, item))
            rc = no_memory(c);
    }
    if (rc) {
        json_decref(array);
        array = NULL;
    }
    *out = array;
    return rc;
}

static int convert_tagged_list(struct converter *c, const char *tag,
                               const struct dcp_pickle_list *list, int depth,
                               json_t **out)
{
    json_t *array = NULL;

    DCP_TRY(convert_list(c, list, depth + 1, &array));
    return give_tagged(c, tag, array, out);
}

static int convert_pairs(struct converter *c, const struct dcp_pickle_list *pairs,
                         int depth, bool is_state, json_t **out)
{
    json_t *array = json_array();
    int rc = array ? DCP_OK : no_memory(c);

    for (size_t i = 0; i + 1 < pairs->n && !rc; i += 2) {
        json_t *key = NULL, *value = NULL, *pair = NULL;
        rc = convert(c, pairs->items[i], depth + 2, &key);
        if (rc)
            break;
        size_t old = path_add_key(c, pairs->items[i], is_state);
        rc = convert(c, pairs->items[i + 1], depth + 2, &value);
        path_cut(c, old);
        if (!rc && !(pair = json_pack("[OO]", key, value)))
            rc = no_memory(c);
        json_decref(key);
        json_decref(value);
        if (!rc && json_array_append_new(array, pair))
            rc = no_memory(c);
    }
    if (rc) {
        json_decref(array);
        array = NULL;
    }
    *out = array;
    return rc;
}

/* Whether a dict can be a JSON object: its keys are strings, and none looks like a tag.
 */
static bool is_plain_dict(const struct dcp_pickle_list *pairs)
{
    for (size_t i = 0; i < pairs->n; i += 2) {
        const struct dcp_pickle_node *key = pairs->items[i];
        if (key->kind != DCP_PICKLE_STR || !key->text.size_bytes ||
            memchr(key->text.data, 0, key->text.size_bytes) ||
            dcp_py_is_tag(key->text.data))
            return false;
    }
    return true;
}

static int convert_dict(struct converter *c, const struct dcp_pickle_list *pairs,
                        int depth, bool is_state, json_t **out)
{
    json_t *object, *array = NULL;

    if (!is_plain_dict(pairs)) {
        int rc = convert_pairs(c, pairs, depth + 1, is_state, &array);
        return rc ? rc : give_tagged(c, DCP_PY_DICT, array, out);
    }
    object = json_object();
    int rc = object ? DCP_OK : no_memory(c);
    for (size_t i = 0; i < pairs->n && !rc; i += 2) {
        const struct dcp_pickle_node *key = pairs->items[i];
        json_t *value = NULL;
        char *name = dcp_arena_text_n(c->arena, key->text.data, key->text.size_bytes);
        size_t old = path_add_key(c, key, is_state);
        rc = name ? convert(c, pairs->items[i + 1], depth + 1, &value) : no_memory(c);
        path_cut(c, old);
        if (!rc && json_object_get(object, name))
            rc = dcp_error_set(c->err, DCP_E_CORRUPT,
                               "a dict of the pickle has a key twice");
        if (rc)
            json_decref(value);
        else if (json_object_set_new(object, name, value))
            rc = no_memory(c);
    }
    if (rc) {
        json_decref(object);
        object = NULL;
    }
    *out = object;
    return rc;
}

/* -- objects ------------------------------------------------------------------------- */

/* Puts what a conversion gave into the object; takes *value. */
static int set_member(struct converter *c, json_t *object, const char *name, int rc,
                      json_t **value)
{
    if (!rc && json_object_set_new(object, name, *value))
        rc = no_memory(c);
    *value = NULL;
    return rc;
}

static int convert_members(struct converter *c, const struct dcp_pickle_object *o,
                           int depth, json_t *object)
{
    json_t *value = global_text(o->cls);
    int rc = set_member(c, object, DCP_PY_OBJECT, DCP_OK, &value);

    if (!rc && o->made) {
        value = json_true();
        rc = set_member(c, object, "new", DCP_OK, &value);
    }
    if (!rc && o->args->list.n) {
        rc = convert_list(c, &o->args->list, depth, &value);
        rc = set_member(c, object, "args", rc, &value);
    }
    if (!rc && o->kwargs) {
        rc = convert_dict(c, &o->kwargs->list, depth, false, &value);
        rc = set_member(c, object, "kwargs", rc, &value);
    }
    if (!rc && o->state) {
        rc = o->state->kind == DCP_PICKLE_DICT
                 ? convert_dict(c, &o->state->list, depth, true, &value)
                 : convert(c, o->state, depth, &value);
        rc = set_member(c, object, "state", rc, &value);
    }
    if (!rc && o->items.n) {
        rc = convert_list(c, &o->items, depth, &value);
        rc = set_member(c, object, "items", rc, &value);
    }
    if (!rc && o->pairs.n) {
        rc = convert_pairs(c, &o->pairs, depth, false, &value);
        rc = set_member(c, object, "pairs", rc, &value);
    }
    return rc;
}

static int convert_object(struct converter *c, const struct dcp_pickle_node *node,
                          int depth, json_t **out)
{
    json_t *object = json_object();
    int rc = object ? convert_members(c, node->object, depth + 1, object) : no_memory(c);

    if (rc) {
        json_decref(object);
        object = NULL;
    }
    *out = object;
    return rc;
}

/* set([…]) and frozenset([…]), as protocol 2 spells them. */
static const struct dcp_pickle_list *spelled_set(const struct dcp_pickle_node *node,
                                                 const char *name)
{
    static const struct dcp_pickle_list empty = { 0 };

    if (!dcp_pickle_is_call(node, "builtins", name) || node->object->args->list.n > 1 ||
        node->object->state || node->object->items.n || node->object->pairs.n)
        return NULL;
    if (!node->object->args->list.n)
        return &empty;
    const struct dcp_pickle_node *list = node->object->args->list.items[0];
    return list->kind == DCP_PICKLE_LIST ? &list->list : NULL;
}

static int convert_call(struct converter *c, const struct dcp_pickle_node *node,
                        int depth, json_t **out)
{
    const struct dcp_pickle_list *list;
    const unsigned char *bytes;
    size_t n;
    bool found;

    DCP_TRY(dcp_pickle_bytes(node, c->arena, &found, &bytes, &n, c->err));
    if (found) {
        bool mutable = node->kind == DCP_PICKLE_BYTEARRAY ||
                       dcp_pickle_is_call(node, "builtins", "bytearray");
        return give(c, dcp_py_hex(mutable ? DCP_PY_BYTEARRAY : DCP_PY_BYTES, bytes, n),
                    out);
    }
    if ((list = spelled_set(node, "set")))
        return convert_tagged_list(c, DCP_PY_SET, list, depth, out);
    if ((list = spelled_set(node, "frozenset")))
        return convert_tagged_list(c, DCP_PY_FROZENSET, list, depth, out);
    return convert_object(c, node, depth, out);
}

static int convert(struct converter *c, const struct dcp_pickle_node *node, int depth,
                   json_t **out)
{
    *out = NULL;
    if (depth > DCP_PICKLE_JSON_MAX_DEPTH)
        return dcp_error_set(c->err, DCP_E_UNSUPPORTED,
                             "the objects of the pickle are nested over %d deep",
                             DCP_PICKLE_JSON_MAX_DEPTH);
    if (++c->used->n_values > DCP_PICKLE_JSON_MAX_VALUES)
        return dcp_error_set(c->err, DCP_E_UNSUPPORTED,
                             "the pickle stands for over %u values",
                             DCP_PICKLE_JSON_MAX_VALUES);
    if (c->path.failed)
        return no_memory(c);
    if (c->hook && c->hook->take &&
        (node->kind == DCP_PICKLE_OBJECT || node->kind == DCP_PICKLE_GLOBAL ||
         node->kind == DCP_PICKLE_PERSID)) {
        const char *path = c->path.data ? (const char *)c->path.data : "";
        c->used->depth = depth + 1;
        int rc = c->hook->take(c->hook->self, node, path, out, c->err);
        if (rc || *out)
            return rc;
    }
    switch (node->kind) {
    case DCP_PICKLE_NONE:
        return give(c, json_null(), out);
    case DCP_PICKLE_BOOL:
        return give(c, json_boolean(node->truth), out);
    case DCP_PICKLE_INT:
        return give(c, json_integer(node->number), out);
    case DCP_PICKLE_LONG:
        return convert_long(c, node, out);
    case DCP_PICKLE_FLOAT:
        return convert_float(c, node->real, out);
    case DCP_PICKLE_STR:
        return convert_text(c, node, out);
    case DCP_PICKLE_TUPLE:
        return convert_tagged_list(c, DCP_PY_TUPLE, &node->list, depth, out);
    case DCP_PICKLE_LIST:
        return convert_list(c, &node->list, depth, out);
    case DCP_PICKLE_DICT:
        return convert_dict(c, &node->list, depth, false, out);
    case DCP_PICKLE_SET:
        return convert_tagged_list(c, DCP_PY_SET, &node->list, depth, out);
    case DCP_PICKLE_FROZENSET:
        return convert_tagged_list(c, DCP_PY_FROZENSET, &node->list, depth, out);
    case DCP_PICKLE_GLOBAL:
        return convert_global(c, node, out);
    case DCP_PICKLE_BYTES:
    case DCP_PICKLE_BYTEARRAY:
    case DCP_PICKLE_OBJECT:
        return convert_call(c, node, depth, out);
    case DCP_PICKLE_PERSID:
        break;
    }
    return dcp_error_set(c->err, DCP_E_CORRUPT,
                         "the pickle refers to something outside it");
}

int dcp_pickle_to_json(const struct dcp_pickle_node *root, struct dcp_arena *arena,
                       const struct dcp_pickle_hook *hook, json_t **out,
                       struct dcp_error *err)
{
    struct dcp_pickle_used own = { 0 };
    struct converter c = { .arena = arena, .hook = hook, .err = err, .used = &own };

    if (hook && hook->used)
        c.used = hook->used;
    int depth = c.used->depth, rc = convert(&c, root, depth, out);

    c.used->depth = depth;
    dcp_buf_fini(&c.path);
    return rc;
}
