/* call: classes and functions, and the objects that they make. */
#include "base/mem.h"
#include "formats/pickle/globals.h"
#include "formats/pickle/py.h"
#include "value.h"
#include <string.h>

/* How protocol 2 spells the modules of Python 3, and names in them. */
static const struct {
    const char *module, *name, *old_module, *old_name;
} old[] = {
    { "builtins", "range", "__builtin__", "xrange" },
    { "builtins", NULL, "__builtin__", NULL },
    { "copyreg", NULL, "copy_reg", NULL },
};

static void write_plain(struct dcp_pickle_out *out, const char *module, const char *name)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(old); i++)
        if (!strcmp(module, old[i].module) &&
            (!old[i].name || !strcmp(name, old[i].name))) {
            module = old[i].old_module;
            name = old[i].old_name ? old[i].old_name : name;
            break;
        }
    dcp_pickle_global(out, module, name);
}

/* getattr(getattr(Outer, 'Inner'), 'name'): protocol 2 has no other way into a class. */
static void write_nested(struct dcp_pickle_out *out, const char *module, char *path)
{
    char *dot = strrchr(path, '.');

    if (!dot) {
        write_plain(out, module, path);
        return;
    }
    dcp_pickle_global(out, "__builtin__", "getattr");
    *dot = '\0';
    write_nested(out, module, path); /* as deep as a name of limited length has dots */
    dcp_pickle_text(out, dot + 1, strlen(dot + 1));
    dcp_pickle_tuple_end(out, 2);
    dcp_pickle_op(out, 'R');
    dcp_pickle_put(out);
}

bool dcp_torch_write_global(struct dcp_pickle_out *out, const char *text)
{
    struct dcp_global_parts global;

    if (!dcp_global_split(text, &global))
        return false;
    DCP_CLEANUP_FREE char *module = strndup(global.module, global.n_module);
    DCP_CLEANUP_FREE char *name = strdup(global.name);
    if (!module || !name)
        out->buf.failed = true;
    else if (global.nested)
        write_nested(out, module, name);
    else
        write_plain(out, module, name);
    return true;
}

/* Whether objects of a class that the format makes itself are made by __new__. */
static bool is_made(const struct dcp_torch_writer *w, const char *name)
{
    for (const struct dcp_torch_class *c = w->classes; c && c->name; c++)
        if (!strcmp(name, c->name))
            return c->made;
    return false;
}

int dcp_torch_write_call(struct dcp_torch_writer *w, json_t *object, int depth,
                         struct dcp_error *err)
{
    const char *class = dcp_py_class(object);
    bool made = json_is_true(json_object_get(object, "new")) || is_made(w, class);
    json_t *kwargs = json_object_get(object, "kwargs"),
           *state = json_object_get(object, "state");

    dcp_torch_write_global(w->out, class);
    int rc = dcp_torch_write_tuple(w, json_object_get(object, "args"), depth, err);
    if (!rc && kwargs) {
        rc = dcp_torch_write_inner(w, kwargs, depth, err);
        dcp_pickle_op(w->out, '\x92');
    } else {
        dcp_pickle_op(w->out, made ? '\x81' : 'R');
    }
    dcp_pickle_put(w->out);
    if (!rc)
        rc = dcp_torch_write_items(w, json_object_get(object, "items"), depth, err);
    if (!rc)
        rc = dcp_torch_write_pairs(w, json_object_get(object, "pairs"),
                                   DCP_PICKLE_FILL_PAIRS, depth, err);
    if (!rc && state) {
        rc = dcp_torch_write_inner(w, state, depth, err);
        dcp_pickle_op(w->out, 'b');
    }
    return rc;
}
