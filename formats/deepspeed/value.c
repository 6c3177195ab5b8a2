/* value: values of DeepSpeed's pickles. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/optim.h"
#include "formats/pickle/json.h"
#include "read.h"
#include <stdio.h>
#include <string.h>

bool dcp_ds_none(const struct dcp_pickle_node *node)
{
    return !node || node->kind == DCP_PICKLE_NONE;
}

bool dcp_ds_int(const struct dcp_pickle_node *node, int64_t *out)
{
    if (!node || node->kind != DCP_PICKLE_INT)
        return false;
    *out = node->number;
    return true;
}

bool dcp_ds_get_int(const struct dcp_pickle_node *dict, const char *key, int64_t *out)
{
    return dcp_ds_int(dcp_pickle_get(dict, key), out);
}

const struct dcp_pickle_node *dcp_ds_get_nth(const struct dcp_pickle_node *dict,
                                             int64_t key)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(dict);

    for (size_t i = 0; pairs && i + 1 < pairs->n; i += 2)
        if (pairs->items[i]->kind == DCP_PICKLE_INT && pairs->items[i]->number == key)
            return pairs->items[i + 1];
    return NULL;
}

const char *dcp_ds_text(struct dcp_arena *arena, const struct dcp_pickle_node *node)
{
    if (!node || node->kind != DCP_PICKLE_STR ||
        (node->text.size_bytes && memchr(node->text.data, 0, node->text.size_bytes)))
        return NULL;
    return dcp_arena_text_n(arena, node->text.size_bytes ? node->text.data : "",
                            node->text.size_bytes);
}

size_t dcp_ds_count(const struct dcp_pickle_node *node)
{
    bool is_list =
        node && (node->kind == DCP_PICKLE_LIST || node->kind == DCP_PICKLE_TUPLE);

    return is_list ? node->list.n : 0;
}

int dcp_ds_stage(const struct dcp_pickle_node *node)
{
    static const char *const names[] = { "disabled", "optimizer_states", "gradients",
                                         "weights" };
    int64_t number;

    if (dcp_pickle_is_call(node, "deepspeed.runtime.zero.config", "ZeroStageEnum"))
        node = dcp_pickle_item(node, 0);
    if (dcp_ds_int(node, &number))
        return number >= 0 && number <= 3 ? (int)number : -1;
    if (dcp_pickle_is_call(node, "builtins", "getattr")) /* some versions of Python */
        for (int i = 0; i < 4; i++)
            if (dcp_pickle_is_text(dcp_pickle_item(node, 1), names[i]))
                return i;
    return -1;
}

int dcp_ds_scalar(struct dcp_torch_file *file, const struct dcp_pickle_node *node,
                  bool *out_found, enum dcp_dtype *out_dtype, double *out,
                  struct dcp_error *err)
{
    struct dcp_torch_view view;
    bool found;

    *out_found = false;
    DCP_TRY(dcp_torch_view(file, node, "step", &found, &view, err));
    if (!found || view.ndim || view.memory)
        return DCP_OK;
    *out_dtype = view.dtype;
    return dcp_torch_number(file, &view, out_found, out, err);
}

/* -- files --------------------------------------------------------------------------- */

int dcp_ds_corrupt(const struct dcp_ds_file *file, struct dcp_error *err, const char *fmt,
                   ...)
{
    char what[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return dcp_error_set(err, DCP_E_CORRUPT, "'%s' %s", file->torch.in.shown, what);
}

int dcp_ds_open(struct dcp_ds_reader *reader, const char *name, int rank,
                struct dcp_ds_file *out, struct dcp_error *err)
{
    *out = (struct dcp_ds_file){ .index = -1 };
    DCP_TRY(dcp_torch_open(&out->torch, reader->source, name, err));
    DCP_TRY(dcp_torch_read_tree(&out->torch, err));
    DCP_TRY(
        dcp_torch_add_file(&out->torch, name, rank, reader->catalog, &out->index, err));
    if (!dcp_pickle_pairs(out->torch.tree))
        return dcp_ds_corrupt(out, err, "holds no dict of states");
    return DCP_OK;
}

void dcp_ds_close(struct dcp_ds_file *file)
{
    dcp_torch_close(&file->torch);
}

/* -- JSON ---------------------------------------------------------------------------- */

struct taker {
    struct dcp_ds_reader *reader;
    struct dcp_ds_file *file;
    const char *path; /* of the value that is converted */
};

static int take(void *self, const struct dcp_pickle_node *node, const char *path,
                json_t **out, struct dcp_error *err)
{
    struct taker *t = self;
    struct dcp_torch_view view;
    bool found;
    int index;

    if (node->kind == DCP_PICKLE_GLOBAL)
        return DCP_OK;
    size_t n = sizeof DCP_DS_CLIENT + strlen(t->path) + strlen(path) + 1;
    DCP_CLEANUP_FREE char *name = malloc(n);
    if (!name)
        return dcp_error_memory(err, "the name of a tensor");
    snprintf(name, n, DCP_DS_CLIENT "%s%s%s", t->path, path[0] ? "." : "", path);
    int rc = dcp_torch_view(&t->file->torch, node, name, &found, &view, err);
    /* An array of NumPy stands in the pickle, and stays the object that it is. */
    if (rc || !found || !view.has_data || view.memory)
        return rc;
    const struct dcp_tensor tensor = { .name = name,
                                       .role = DCP_ROLE_OTHER,
                                       .dtype = view.dtype,
                                       .ndim = view.ndim,
                                       .shape = view.shape };
    DCP_TRY(dcp_catalog_add_tensor(t->reader->catalog, &tensor, &index, err));
    DCP_TRY(dcp_torch_add_piece(t->reader->catalog, t->file->index, index, &view, err));
    if (!(*out = dcp_py_name(DCP_PY_TENSOR, name)))
        return dcp_error_memory(err, "an object");
    return DCP_OK;
}

int dcp_ds_json(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                const struct dcp_pickle_node *node, const char *path, json_t **out,
                struct dcp_error *err)
{
    struct taker t = { reader, file, path };
    const struct dcp_pickle_hook hook = { .take = take, .self = &t };
    int rc = dcp_pickle_to_json(node, file->torch.arena, &hook, out, err);

    if (rc)
        dcp_error_prefix(err, "'%s'", file->torch.in.shown);
    return rc;
}

/* Whether a key of a dict is the name of a member. */
static const char *name_of(struct dcp_ds_reader *reader,
                           const struct dcp_pickle_node *key)
{
    const char *name = dcp_ds_text(reader->arena, key);

    return name && name[0] && !dcp_py_is_tag(name) ? name : NULL;
}

static bool is_known(const char *key, const char *const *known)
{
    for (; *known; known++)
        if (!strcmp(*known, key))
            return true;
    return false;
}

int dcp_ds_json_rest(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                     const struct dcp_pickle_node *dict, const char *path,
                     const char *const *known, json_t **out, struct dcp_error *err)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(dict);
    json_t *rest = json_object();
    int rc = rest ? DCP_OK : dcp_error_memory(err, "an object");

    for (size_t i = 0; pairs && i + 1 < pairs->n && !rc; i += 2) {
        const char *key = name_of(reader, pairs->items[i]);
        json_t *value = NULL;
        if (!key || is_known(key, known))
            continue;
        size_t n = strlen(path) + strlen(key) + 2;
        DCP_CLEANUP_FREE char *at = malloc(n);
        if (!at) {
            rc = dcp_error_memory(err, "an object");
            break;
        }
        snprintf(at, n, "%s%s%s", path, path[0] ? "." : "", key);
        rc = dcp_ds_json(reader, file, pairs->items[i + 1], at, &value, err);
        if (!rc && json_object_set_new(rest, key, value))
            rc = dcp_error_memory(err, "an object");
    }
    if (rc) {
        json_decref(rest);
        rest = NULL;
    }
    *out = rest;
    return rc;
}

int dcp_ds_json_nameless(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                         const struct dcp_pickle_node *dict, json_t **out,
                         struct dcp_error *err)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(dict);
    struct dcp_pickle_node odd = { .kind = DCP_PICKLE_DICT };
    size_t n = pairs ? pairs->n : 0;

    *out = NULL;
    odd.list.items = dcp_arena_alloc(reader->arena, n, sizeof *odd.list.items);
    if (!odd.list.items)
        return dcp_error_memory(err, "an object");
    for (size_t i = 0; i + 1 < n; i += 2) {
        if (name_of(reader, pairs->items[i]))
            continue;
        odd.list.items[odd.list.n++] = pairs->items[i];
        odd.list.items[odd.list.n++] = pairs->items[i + 1];
    }
    return odd.list.n ? dcp_ds_json(reader, file, &odd, "", out, err) : DCP_OK;
}

/* -- the reader ---------------------------------------------------------------------- */

void dcp_ds_see_updates(struct dcp_ds_reader *reader, int64_t updates)
{
    dcp_optim_count(&reader->counts, updates);
    if (updates > reader->updates)
        reader->updates = updates;
}

int dcp_ds_reader_init(struct dcp_ds_reader *reader, const struct dcp_source *source,
                       struct dcp_catalog *catalog, struct dcp_error *err)
{
    *reader = (struct dcp_ds_reader){ .source = source,
                                      .catalog = catalog,
                                      .arena = dcp_arena_new(),
                                      .places = json_object(),
                                      .ties = json_object(),
                                      .note = json_object(),
                                      .global_steps = -1,
                                      .global_samples = -1,
                                      .skipped_steps = -1,
                                      .updates = -1 };
    return reader->arena && reader->places && reader->ties && reader->note
               ? DCP_OK
               : dcp_error_memory(err, "a reader");
}

void dcp_ds_reader_fini(struct dcp_ds_reader *reader)
{
    dcp_arena_free(reader->arena);
    json_decref(reader->places);
    json_decref(reader->ties);
    json_decref(reader->config);
    json_decref(reader->note);
    json_decref(reader->param_groups);
    json_decref(reader->loss_scaler);
    json_decref(reader->scheduler);
}

/* -- tensors of the optimizer -------------------------------------------------------- */

enum dcp_role dcp_ds_role_of_key(const char *key)
{
    static const enum dcp_role own[] = { DCP_ROLE_MASTER, DCP_ROLE_EXP_AVG,
                                         DCP_ROLE_EXP_AVG_SQ };

    for (size_t i = 0; i < DCP_ARRAY_LEN(own); i++)
        if (!strcmp(key, dcp_role_name(own[i])))
            return own[i];
    return DCP_ROLE_OPTIM;
}

/* "optimizer.<key>.<param>", or whatever comes last in names of other files. */
void dcp_ds_key(const struct dcp_tensor *tensor, const char **out, size_t *out_n)
{
    size_t n = strlen(tensor->name), param = strlen(tensor->param);
    const char *begin = tensor->name, *end = begin + n;

    if (tensor->role != DCP_ROLE_OPTIM) {
        *out = dcp_role_name(tensor->role);
        *out_n = strlen(*out);
        return;
    }
    if (n > param && end[-(ptrdiff_t)param - 1] == '.' &&
        !strcmp(end - param, tensor->param))
        end -= param + 1;
    for (const char *c = begin; c < end; c++)
        if (*c == '.')
            begin = c + 1;
    *out = begin;
    *out_n = (size_t)(end - begin);
}

const char *dcp_ds_key_of(struct dcp_arena *arena, const struct dcp_tensor *tensor)
{
    const char *key;
    size_t n;

    dcp_ds_key(tensor, &key, &n);
    return dcp_arena_text_n(arena, key, n);
}

int dcp_ds_add_state(struct dcp_ds_reader *reader, const struct dcp_ds_slot *slot,
                     const char *key, enum dcp_dtype dtype, int *out_index,
                     struct dcp_error *err)
{
    const struct dcp_ds_group *group = &reader->groups[slot->group];
    const struct dcp_ds_param *param = &group->params[slot->param];
    size_t n = sizeof "optimizer.." + strlen(key) + strlen(param->name);
    DCP_CLEANUP_FREE char *name = malloc(n);

    if (!name)
        return dcp_error_memory(err, "the name of a tensor");
    snprintf(name, n, "optimizer.%s.%s", key, param->name);
    const struct dcp_tensor tensor = { .name = name,
                                       .param = param->name,
                                       .role = dcp_ds_role_of_key(key),
                                       .dtype = dtype,
                                       .ndim = param->ndim,
                                       .shape = param->shape,
                                       .group = group->param_group };
    return dcp_catalog_add_tensor(reader->catalog, &tensor, out_index, err);
}
