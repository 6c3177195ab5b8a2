/* training: objects of a training state, and groups of parameters. */
#include "training.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/pickle/json.h"
#include <string.h>

enum { MAX_GROUPS = 4096 };

int dcp_training_read(const struct dcp_catalog *catalog, const char *name, json_t **out,
                      struct dcp_error *err)
{
    int at = dcp_catalog_find_object(catalog, name);

    *out = NULL;
    if (at < 0 || catalog->objects[at].kind != DCP_OBJECT_JSON)
        return DCP_OK;
    const struct dcp_object *object = &catalog->objects[at];
    return dcp_json_parse(object->data, object->size_bytes, name, out, err);
}

/* *out is NULL where the bytes are no pickle, or one that JSON cannot say. */
static int unpickle(const struct dcp_object *object, json_t **out, struct dcp_error *err)
{
    const unsigned char *data = object->data;
    struct dcp_pickle_node *root;
    struct dcp_error why = { 0 };

    *out = NULL;
    if (!object->size_bytes || data[0] != 0x80) /* PROTO */
        return DCP_OK;
    struct dcp_arena *arena = dcp_arena_new();
    if (!arena)
        return dcp_error_memory(err, "an object");
    int rc = dcp_pickle_parse(data, object->size_bytes, arena, &root, NULL, &why);
    if (!rc)
        rc = dcp_pickle_to_json(root, arena, NULL, out, &why);
    if (rc)
        *out = NULL;
    dcp_arena_free(arena);
    return rc == DCP_E_MEMORY ? dcp_error_memory(err, "an object") : DCP_OK;
}

int dcp_training_value(const struct dcp_object *object, json_t **out,
                       struct dcp_error *err)
{
    return object->kind == DCP_OBJECT_JSON
               ? dcp_json_parse(object->data, object->size_bytes, object->name, out, err)
               : unpickle(object, out, err);
}

int dcp_training_add(struct dcp_catalog *catalog, const char *name, json_t *value,
                     struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *owned = value;
    DCP_CLEANUP_FREE char *text = owned ? dcp_json_text(owned, 0) : NULL;

    if (!text)
        return dcp_error_memory(err, "an object");
    const struct dcp_object object = {
        .name = name, .kind = DCP_OBJECT_JSON, .data = text, .size_bytes = strlen(text)
    };
    return dcp_catalog_add_object(catalog, &object, err);
}

int64_t dcp_training_step(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0
               ? json_integer_value(value)
               : -1;
}

int64_t dcp_training_most_updates(const json_t *optimizer)
{
    int64_t all = dcp_training_step(json_object_get(optimizer, "step"));

    return all >= 0 ? all
                    : dcp_training_step(
                          json_array_get(json_object_get(optimizer, "steps"), 1));
}

int dcp_training_counts_differ(const struct dcp_catalog *catalog, bool *out,
                               struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *optimizer = NULL;
    int rc = dcp_training_read(catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err);

    *out = json_is_array(json_object_get(optimizer, "steps"));
    return rc;
}

int dcp_training_one_count(const struct dcp_catalog *catalog, const char *what,
                           struct dcp_error *err)
{
    bool differ;

    DCP_TRY(dcp_training_counts_differ(catalog, &differ, err));
    if (!differ)
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "%s cannot hold: weights that were updated some more often than others",
                  what);
    dcp_error_hint(err, "--only model leaves out what training goes on from");
    return DCP_E_MISMATCH;
}

int dcp_training_updates(const struct dcp_catalog *catalog, int64_t *out,
                         struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *optimizer = NULL;
    struct dcp_training t;

    DCP_TRY(dcp_training_read(catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err));
    *out = dcp_training_most_updates(optimizer);
    if (*out >= 0)
        return DCP_OK;
    DCP_TRY(dcp_training_parse(catalog, &t, err));
    *out = t.updates;
    if (t.updates == DCP_TRAINING_UNKNOWN)
        *out = t.step == DCP_TRAINING_UNKNOWN            ? catalog->step
               : t.skipped_steps == DCP_TRAINING_UNKNOWN ? t.step
                                                         : t.step - t.skipped_steps;
    if (t.updates == DCP_TRAINING_UNKNOWN && t.step == DCP_TRAINING_UNKNOWN && *out < 0)
        *out = 0;
    dcp_training_fini(&t);
    return DCP_OK;
}

/* -- groups of parameters ------------------------------------------------------------ */

/* What AdamW of torch has where nothing else is said. */
static json_t *default_options(void)
{
    return json_pack("{s:f, s:[f,f], s:f, s:f}", "lr", 1e-3, "betas", 0.9, 0.999, "eps",
                     1e-8, "weight_decay", 0.01);
}

/* The options of deepspeed_config's optimizer over the defaults. */
static int read_options(const struct dcp_catalog *catalog, json_t **out,
                        struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *config = NULL;
    int rc = dcp_training_read(catalog, DCP_TRAINING_DEEPSPEED_CONFIG, &config, err);
    json_t *params = json_object_get(json_object_get(config, "optimizer"), "params"),
           *value;
    const char *key;

    *out = rc ? NULL : default_options();
    if (!rc && !*out)
        return dcp_error_memory(err, "groups of parameters");
    json_object_foreach(params, key, value)
    {
        if (json_object_set(*out, key, value))
            return dcp_error_memory(err, "groups of parameters");
    }
    return rc;
}

/* A weight is trained when the optimizer keeps something for it. */
static int mark_trained(const struct dcp_catalog *catalog, json_t **out,
                        struct dcp_error *err)
{
    json_t *trained = json_object();
    bool ok = trained != NULL;

    for (size_t t = 0; t < catalog->n_tensors && ok; t++)
        if (dcp_role_is_optim(catalog->tensors[t].role))
            ok = !json_object_set_new(trained, catalog->tensors[t].param, json_true());
    *out = trained;
    return ok ? DCP_OK : dcp_error_memory(err, "groups of parameters");
}

static int add_to_group(json_t *groups, const json_t *options, int group,
                        const char *param, struct dcp_error *err)
{
    while (json_array_size(groups) <= (size_t)group) {
        json_t *fresh = json_deep_copy(options);
        if (!fresh || json_object_set_new(fresh, "params", json_array()) ||
            json_array_append_new(groups, fresh))
            return dcp_error_memory(err, "groups of parameters");
        /* The second group of this library's trainer is what does not decay. */
        if (group == 1 && json_array_size(groups) == 2 &&
            json_object_set_new(fresh, "weight_decay", json_real(0)))
            return dcp_error_memory(err, "groups of parameters");
    }
    json_t *params = json_object_get(json_array_get(groups, (size_t)group), "params");
    return json_array_append_new(params, json_string(param))
               ? dcp_error_memory(err, "groups of parameters")
               : DCP_OK;
}

static int make_groups(const struct dcp_catalog *catalog, json_t **out,
                       struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *options = NULL;
    DCP_CLEANUP_JSON json_t *trained = NULL;
    struct dcp_identity *identity = NULL;
    json_t *groups = json_array();
    int rc = groups ? read_options(catalog, &options, err)
                    : dcp_error_memory(err, "groups of parameters");

    if (!rc)
        rc = mark_trained(catalog, &trained, err);
    if (!rc)
        rc = dcp_identity_new(catalog, &identity, err);
    bool all = json_object_size(trained) == 0;
    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        bool weight = tensor->role == DCP_ROLE_MODEL && !tensor->tied_to;
        bool master = tensor->role == DCP_ROLE_MASTER &&
                      dcp_identity_find(identity, DCP_ROLE_MODEL, tensor->param) < 0;
        if ((weight && (all || json_object_get(trained, tensor->param))) || master)
            rc = add_to_group(groups, options, tensor->group, tensor->param, err);
    }
    dcp_identity_free(identity);
    *out = groups;
    return rc;
}

/* The groups of several optimizers, "optimizer.KEY" each, as those of one. */
static int join_groups(const struct dcp_catalog *catalog, json_t **out,
                       struct dcp_error *err)
{
    static const char several[] = DCP_TRAINING_OPTIMIZER ".";

    for (size_t o = 0; o < catalog->n_objects; o++) {
        DCP_CLEANUP_JSON json_t *optimizer = NULL;
        const char *name = catalog->objects[o].name;

        if (!dcp_str_starts(name, several))
            continue;
        DCP_TRY(dcp_training_read(catalog, name, &optimizer, err));
        json_t *groups = json_object_get(optimizer, "param_groups");
        if (!json_is_array(groups))
            continue;
        if (!*out)
            *out = json_array();
        if (!*out || json_array_extend(*out, groups))
            return dcp_error_memory(err, "groups of parameters");
    }
    return DCP_OK;
}

int64_t dcp_training_group(const char *text, const char **out_option)
{
    char digits[8] = "";
    size_t n = strspn(text, "0123456789");
    int64_t group;

    if (!n || n >= sizeof digits || text[n] != '.' || !text[n + 1])
        return -1;
    memcpy(digits, text, n);
    *out_option = text + n + 1;
    return dcp_str_parse_i64(digits, &group) && group < MAX_GROUPS ? group : -1;
}

/* Splits "P.param_groups.3.lr"; -1: it is no such. */
static int64_t split_option(const char *name, size_t *out_prefix, const char **out_option)
{
    static const char infix[] = ".param_groups.";
    const char *at = strstr(name, infix);

    if (!at)
        return -1;
    *out_prefix = (size_t)(at - name);
    return dcp_training_group(at + sizeof infix - 1, out_option);
}

bool dcp_training_is_option(const char *name)
{
    return split_option(name, &(size_t){ 0 }, &(const char *){ NULL }) >= 0;
}

static int put_option(json_t *groups, int64_t group, const char *option, json_t *value)
{
    while (json_array_size(groups) <= (size_t)group)
        if (json_array_append_new(groups, json_object()))
            return -1;
    return json_object_set(json_array_get(groups, (size_t)group), option,
                           dcp_py_untuple(value));
}

/* Groups whose options are objects of their own. The names of the weights tell which are
 * groups; of one optimizer: whose are first. */
static int gather_groups(const struct dcp_catalog *catalog, json_t **out,
                         struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *groups = json_array();
    const char *first = NULL, *option;
    size_t prefix, n = 0;

    for (size_t o = 0; o < catalog->n_objects; o++) {
        const struct dcp_object *object = &catalog->objects[o];
        DCP_CLEANUP_JSON json_t *value = NULL;
        int64_t group = split_option(object->name, &prefix, &option);
        if (group < 0 || (first && (prefix != n || strncmp(object->name, first, n) != 0)))
            continue;
        first = object->name;
        n = prefix;
        DCP_TRY(dcp_training_value(object, &value, err));
        if (value && put_option(groups, group, option, value))
            return dcp_error_memory(err, "groups of parameters");
    }
    bool named = json_array_size(groups) > 0;
    for (size_t g = 0; g < json_array_size(groups); g++)
        named = named && json_is_string(json_array_get(
                             json_object_get(json_array_get(groups, g), "params"), 0));
    *out = named ? json_incref(groups) : NULL;
    return DCP_OK;
}

int dcp_training_groups(const struct dcp_catalog *catalog, json_t **out,
                        struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *optimizer = NULL;
    int rc = dcp_training_read(catalog, DCP_TRAINING_OPTIMIZER, &optimizer, err);
    json_t *groups = json_object_get(optimizer, "param_groups");

    *out = NULL;
    if (!rc && json_is_array(groups)) {
        *out = json_incref(groups);
        return DCP_OK;
    }
    if (!rc)
        rc = join_groups(catalog, out, err);
    if (!rc && !*out)
        rc = gather_groups(catalog, out, err);
    if (!rc && !*out)
        rc = make_groups(catalog, out, err);
    if (rc) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}
