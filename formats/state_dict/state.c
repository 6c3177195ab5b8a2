/* state: what an optimizer keeps of a weight that is no tensor. A file of torch.save
 * has it under the weight's number, a distributed checkpoint under its name. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/torch/torch.h"
#include "keys.h"
#include "out.h"
#include <stdio.h>
#include <string.h>

#define STATE "state"

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the keys of a checkpoint");
}

const char *dcp_out_state_key(struct dcp_out *out, const char *param, const char *member)
{
    const char *optim = out->keys.optim;
    size_t n = strlen(optim) + strlen(param) + strlen(member) + sizeof ".state..";
    char *key = dcp_catalog_alloc(out->catalog, n, 1);

    if (key)
        snprintf(key, n, "%s%s" STATE ".%s%s%s", optim, optim[0] ? "." : "", param,
                 member[0] ? "." : "", member);
    return key;
}

const char *dcp_out_state_before(const struct dcp_out *out, const char *object)
{
    const char *rest =
        out->spelled_before ? dcp_keys_inside(out->spelled_before, object) : NULL;

    return rest && dcp_str_starts(rest, STATE ".") ? rest + sizeof STATE : NULL;
}

/* -- the values of an object --------------------------------------------------------- */

struct visit {
    struct dcp_out *out;
    dcp_out_state_fn fn;
    struct dcp_error *err;
};

/* The values of one weight. */
static int visit_weight(const struct visit *v, const char *number, json_t *value)
{
    const char *param = json_string_value(json_object_get(v->out->params, number)), *key;
    json_t *item;

    param = param ? param : number;
    if (!dcp_py_is_dict(value))
        return v->fn(v->out, param, "", value, v->err);
    json_object_foreach(value, key, item)
        DCP_TRY(v->fn(v->out, param, key, item, v->err));
    return DCP_OK;
}

/* The values of all weights: where none of them has a tensor. */
static int visit_all(const struct visit *v, json_t *value)
{
    struct dcp_py_parts parts = dcp_py_parts(value);
    bool pairs = parts.kind == DCP_PY_PAIRS;

    while (parts.kind != DCP_PY_LIST && dcp_py_next(&parts))
        if (parts.name && (pairs || !dcp_py_is_tag(parts.name)))
            DCP_TRY(visit_weight(v, parts.name, parts.value));
    return DCP_OK;
}

/* What follows the optimizer's "state" in the path of an object; NULL: it is elsewhere.
 * Key and path are as long, and differ in their marks alone. */
static const char *rest_of(struct dcp_out *out, const char *object, bool *out_failed)
{
    const char *key, *path, *inside;

    if (!out->params ||
        !dcp_tree_find(out->tree.objects, out->catalog, object, &key, &path))
        return NULL;
    *out_failed = !key || !path;
    inside = *out_failed ? NULL : dcp_keys_inside(out->optim_of_tree, key);
    if (!inside || !dcp_str_starts(inside, STATE))
        return NULL;
    path += (size_t)(inside - key) + sizeof STATE - 1;
    return !path[0] || path[0] == DCP_PATH_KEY ? path : NULL;
}

int dcp_out_state(struct dcp_out *out, const struct dcp_object *object,
                  dcp_out_state_fn fn, bool *out_found, struct dcp_error *err)
{
    const struct visit visit = { out, fn, err };
    DCP_CLEANUP_JSON json_t *value = NULL;
    bool failed = false;
    const char *rest = rest_of(out, object->name, &failed), *param;

    *out_found = rest != NULL;
    if (failed || !rest)
        return failed ? no_memory(err) : DCP_OK;
    DCP_TRY(dcp_json_parse(object->data, object->size_bytes, object->name, &value, err));
    if (!rest[0])
        return visit_all(&visit, value);
    size_t n = strcspn(++rest, (const char[]){ DCP_PATH_KEY, DCP_PATH_INDEX, '\0' });
    DCP_CLEANUP_FREE char *number = strndup(rest, n);
    if (!number)
        return no_memory(err);
    if (!rest[n])
        return visit_weight(&visit, number, value);
    param = json_string_value(json_object_get(out->params, number));
    return fn(out, param ? param : number, rest + n + 1, value, err);
}

/* -- steps --------------------------------------------------------------------------- */

static int see_step(struct dcp_out *out, const char *param, const char *member,
                    json_t *value, struct dcp_error *err)
{
    return strcmp(member, "step") != 0 || !json_object_set(out->steps, param, value)
               ? DCP_OK
               : no_memory(err);
}

/* Steps that are all the optimizer's are made as PyTorch has them; where one differs, all
 * stay as they are. */
static int find_steps(struct dcp_out *out, struct dcp_error *err)
{
    bool found, differ = false;
    int64_t updates;
    const char *param;
    json_t *step;
    int rc = dcp_training_updates(out->catalog, &updates, err);

    for (size_t o = 0; o < out->catalog->n_objects && !rc; o++)
        rc = dcp_out_state(out, &out->catalog->objects[o], see_step, &found, err);
    json_object_foreach(out->steps, param, step)
    {
        differ =
            differ || !json_is_number(step) || json_number_value(step) != (double)updates;
    }
    if (!differ)
        json_object_clear(out->steps);
    return rc;
}

int dcp_out_state_load(struct dcp_out *out, json_t *named, json_t *numbered,
                       struct dcp_error *err)
{
    json_t *group, *param;
    char digits[24];
    size_t g, i;

    out->params = json_object();
    out->steps = json_object();
    bool ok = out->params && out->steps;
    json_array_foreach(numbered, g, group)
    {
        json_t *names = json_object_get(json_array_get(named, g), "params");
        json_array_foreach(json_object_get(group, "params"), i, param)
        {
            const char *number = dcp_py_key(param, digits);
            json_t *name = json_array_get(names, i);
            if (number && json_is_string(name))
                ok = ok && !json_object_set(out->params, number, name);
        }
    }
    return ok ? find_steps(out, err) : no_memory(err);
}
