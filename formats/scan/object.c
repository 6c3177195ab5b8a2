/* object: what the objects of a catalog name. */
#include "base/buf.h"
#include "base/json.h"
#include "formats/pickle/globals.h"
#include "formats/pickle/py.h"
#include "scan.h"
#include <stdio.h>
#include <string.h>

struct walk {
    const struct dcp_global_visit *visit;
    struct dcp_buf path;
    struct dcp_error *err;
};

static int walk(struct walk *w, json_t *value);

static int visit(struct walk *w, const char *name)
{
    const struct dcp_global global = { .where = w->path.data ? (char *)w->path.data : "",
                                       .name = name,
                                       .kind = dcp_global_judge(name) };

    return w->visit->take(w->visit->self, &global, w->err);
}

/* A value below a key; "": it stands where its parent does. */
static int walk_part(struct walk *w, const char *key, json_t *value)
{
    size_t old = w->path.size_bytes;

    if (key[0])
        dcp_buf_add_fmt(&w->path, "%s%s", old ? "." : "", key);
    int rc = w->path.failed ? dcp_error_memory(w->err, "an object") : walk(w, value);
    w->path.size_bytes = old;
    if (w->path.data)
        w->path.data[old] = '\0';
    return rc;
}

static int walk_list(struct walk *w, json_t *list)
{
    json_t *item;
    size_t i;
    int rc = DCP_OK;

    json_array_foreach(list, i, item)
    {
        char digits[24];
        snprintf(digits, sizeof digits, "%zu", i);
        rc = rc ? rc : walk_part(w, digits, item);
    }
    return rc;
}

/* [[key, value], …]; what is none of that is walked as any value. */
static int walk_pairs(struct walk *w, json_t *pairs)
{
    json_t *pair;
    size_t i;
    int rc = json_is_array(pairs) ? DCP_OK : walk(w, pairs);

    json_array_foreach(pairs, i, pair)
    {
        json_t *key = json_array_get(pair, 0);
        const char *text = json_string_value(key);
        bool is_pair = json_array_size(pair) == 2;
        rc = rc ? rc : walk(w, is_pair ? key : pair);
        if (!rc && is_pair)
            rc = walk_part(w, text ? text : "?", json_array_get(pair, 1));
    }
    return rc;
}

/* getattr(Class, 'NAME'), a member of an Enum that is known. */
static bool is_member(json_t *value)
{
    json_t *args = json_object_get(value, "args");
    const char *class = dcp_py_global(json_array_get(args, 0)),
               *dot = class ? strrchr(class, '.') : NULL;
    char module[DCP_PICKLE_MAX_GLOBAL_BYTES];
    size_t n = dot ? (size_t)(dot - class) : sizeof module;

    const char *member = json_string_value(json_array_get(args, 1));
    if (n >= sizeof module || json_array_size(args) != 2 || !member || member[0] == '_')
        return false;
    memcpy(module, class, n);
    module[n] = '\0';
    return dcp_global_is_enum(module, dot + 1);
}

/* Every value is walked, whatever tag it stands below: a tag that does not fit what it
 * tags is written as a plain dict. Values nest no deeper than base/json.h reads them. The
 * members of tags and objects add no part to the path. */
static int walk(struct walk *w, json_t *value)
{
    const char *class = dcp_py_class(value), *global = dcp_py_global(value), *key;
    json_t *item;
    int rc = DCP_OK;

    if (json_is_array(value))
        return walk_list(w, value);
    if (global || (class && (strcmp(class, "builtins.getattr") || !is_member(value))))
        rc = visit(w, class ? class : global);
    bool tagged = dcp_py_tag(value) != NULL;
    json_object_foreach(value, key, item)
    {
        const char *type = !strcmp(key, "type") ? json_string_value(item) : NULL;
        bool pairs = tagged && (!strcmp(key, DCP_PY_DICT) || !strcmp(key, "pairs"));
        if (!rc && type && dcp_py_tensor(value))
            rc = visit(w, type);
        if (!rc)
            rc = pairs ? walk_pairs(w, item) : walk_part(w, tagged ? "" : key, item);
    }
    return rc;
}

/* What a JSON value names, with the paths in it. Errors: MEMORY, those of take. */
static int visit_all(json_t *value, const struct dcp_global_visit *take,
                     struct dcp_error *err)
{
    struct walk w = { .visit = take, .err = err };
    int rc = walk(&w, value);

    dcp_buf_fini(&w.path);
    return rc;
}

int dcp_object_globals(const struct dcp_object *object,
                       const struct dcp_global_visit *take, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *value = NULL;

    if (object->kind == DCP_OBJECT_BYTES) {
        struct dcp_scan scan = { .visit = take };
        return dcp_scan_memory(&scan, object->data, object->size_bytes, err);
    }
    /* Most objects have no tag, not even an escaped one: their text tells. */
    if (!object->size_bytes || (!memchr(object->data, DCP_PY_MARK, object->size_bytes) &&
                                !memchr(object->data, '\\', object->size_bytes)))
        return DCP_OK;
    int rc = dcp_json_parse(object->data, object->size_bytes, "object", &value, NULL);
    if (rc) /* no JSON: nobody makes anything of it */
        return rc == DCP_E_MEMORY ? dcp_error_memory(err, "an object") : DCP_OK;
    return visit_all(value, take, err);
}
