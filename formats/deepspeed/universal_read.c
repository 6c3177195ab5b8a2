/* universal_read: a folder for each parameter. */
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/optim.h"
#include "ours.h"
#include "universal.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_KEYS = 32 };

struct params {
    struct dcp_ds_reader *reader;
    const char *keys[MAX_KEYS]; /* "fp32" first */
    size_t n_keys;
    uint32_t *has; /* of each parameter in order: its keys, a bit for each */
    bool any_step; /* a parameter has told how many updates it had */
};

static const struct dcp_ds_param *param_of(const struct params *p, size_t i)
{
    const struct dcp_ds_slot *slot = &p->reader->order[i];

    return &p->reader->groups[slot->group].params[slot->param];
}

/* "<tag>/zero/<name>", and behind it "/<file>.pt" when there is one; caller frees. */
static char *path_of(const struct params *p, const char *name, const char *file)
{
    const char *prefix = p->reader->folder.prefix;
    size_t n = strlen(prefix) + strlen(name) + (file ? strlen(file) : 0) + 16;
    char *path = malloc(n);

    if (path)
        snprintf(path, n, "%szero/%s%s%s%s", prefix, name, file ? "/" : "",
                 file ? file : "", file ? ".pt" : "");
    return path;
}

/* -- which files there are --------------------------------------------------------- */

static int find_key(struct params *p, const char *name, size_t n, size_t *out,
                    struct dcp_error *err)
{
    for (*out = 0; *out < p->n_keys; (*out)++)
        if (strlen(p->keys[*out]) == n && !memcmp(p->keys[*out], name, n))
            return DCP_OK;
    if (p->n_keys == MAX_KEYS)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the optimizer keeps over %d tensors for a parameter",
                             MAX_KEYS);
    p->keys[p->n_keys] = dcp_arena_text_n(p->reader->arena, name, n);
    return p->keys[p->n_keys++] ? DCP_OK : dcp_error_memory(err, "a parameter's files");
}

static int list_param(struct params *p, size_t i, struct dcp_error *err)
{
    const struct dcp_source *source = p->reader->source;
    const struct dcp_ds_param *param = param_of(p, i);
    struct dcp_store_entry *entries;
    DCP_CLEANUP_FREE char *path = NULL;
    DCP_CLEANUP_FREE char *full = NULL;
    size_t n, k;
    int rc = DCP_OK;

    if (strchr(param->name, '/') || !dcp_store_name_ok(param->name))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the parameter '%s' has no folder's name",
                             dcp_ds_shown(p->reader->arena, param->name));
    path = path_of(p, param->name, NULL);
    full = path ? dcp_source_path(source, path) : NULL;
    if (!full)
        return dcp_error_memory(err, "a file name");
    rc = source->store->ops->list(source->store->self, full, &entries, &n, err);
    if (rc == DCP_E_NOT_FOUND) {
        if (err)
            *err = (struct dcp_error){ 0 };
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the folder '%s' of a parameter is missing",
                             dcp_ds_shown(p->reader->arena, path));
    }
    if (rc)
        return rc;
    for (size_t e = 0; e < n && !rc; e++) {
        size_t len = strlen(entries[e].name);
        if (entries[e].is_dir || len <= 3 || !dcp_str_ends(entries[e].name, ".pt"))
            continue;
        rc = find_key(p, entries[e].name, len - 3, &k, err);
        if (!rc)
            p->has[i] |= (uint32_t)1 << k;
    }
    dcp_store_list_free(entries, n);
    return rc;
}

/* -- files ------------------------------------------------------------------------- */

static int open_file(struct params *p, const char *path, struct dcp_ds_file *out,
                     struct dcp_error *err)
{
    struct dcp_ds_reader *reader = p->reader;

    *out = (struct dcp_ds_file){ .index = -1 };
    DCP_TRY(dcp_torch_open(&out->torch, reader->source, path, err));
    DCP_TRY(dcp_torch_read_tree(&out->torch, err));
    return dcp_torch_add_file(&out->torch, path, 0, reader->catalog, &out->index, err);
}

/* The tensor of a file: bare, or the member "param" of a dict. */
static int find_view(struct dcp_ds_file *file, const char *name,
                     struct dcp_torch_view *out, struct dcp_error *err)
{
    const struct dcp_pickle_node *node = file->torch.tree;
    const struct dcp_pickle_node *expert = dcp_pickle_get(node, "is_expert_param");
    bool found = false;

    if (expert && expert->kind == DCP_PICKLE_BOOL && expert->truth)
        return dcp_error_set(
            err, DCP_E_UNSUPPORTED,
            "'%s' is a parameter of experts (MoE), which is not supported",
            file->torch.in.shown);
    if (dcp_pickle_pairs(node))
        node = dcp_pickle_get(node, "param");
    int rc = node ? dcp_torch_view(&file->torch, node, name, &found, out, err) : DCP_OK;
    if (!rc && (!found || !out->dense || !out->has_data))
        rc = dcp_ds_corrupt(file, err, "holds no tensor of a parameter");
    return rc;
}

static int read_tensor(struct params *p, size_t i, const char *key, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = p->reader;
    const struct dcp_ds_param *param = param_of(p, i);
    DCP_CLEANUP_DS struct dcp_ds_file file = { 0 };
    DCP_CLEANUP_FREE char *path = path_of(p, param->name, key);
    struct dcp_torch_view view;
    int64_t n_elems;
    int index;

    DCP_TRY(path ? open_file(p, path, &file, err) : dcp_error_memory(err, "a file name"));
    DCP_TRY(dcp_ds_check_param_file(reader, &file, param->name, key, err));
    DCP_TRY(find_view(&file, param->name, &view, err));
    if (!dcp_torch_view_elems(&view, &n_elems) || n_elems != param->n_elems)
        return dcp_ds_corrupt(&file, err, "has %lld elements, its parameter has %lld",
                              (long long)n_elems, (long long)param->n_elems);
    DCP_TRY(dcp_ds_add_state(reader, &reader->order[i],
                             strcmp(key, "fp32") ? key : "master", view.dtype, &index,
                             err));
    /* The same elements in the shape of the parameter. */
    return dcp_torch_add_piece(reader->catalog, file.index, index, &view, err);
}

/* -- steps ------------------------------------------------------------------------- */

static int take_step(struct dcp_ds_reader *reader, struct dcp_ds_file *file,
                     const struct dcp_pickle_node *node, struct dcp_error *err)
{
    enum dcp_dtype dtype = DCP_F32;
    bool found = false;
    int64_t number;
    double value = -1;

    if (dcp_ds_int(node, &number))
        value = (double)number;
    else if (node)
        DCP_TRY(dcp_ds_scalar(&file->torch, node, &found, &dtype, &value, err));
    if (dcp_optim_updates(value) < 0)
        return DCP_OK;
    reader->updates = dcp_optim_updates(value);
    return json_object_set_new(reader->note, "step",
                               json_string(found ? dcp_dtype_torch_name(dtype) : "int"))
               ? dcp_error_memory(err, "an object")
               : DCP_OK;
}

/* The step of one parameter, which must be that of those before it. */
static int read_step(struct params *p, size_t i, struct dcp_error *err)
{
    DCP_CLEANUP_DS struct dcp_ds_file file = { 0 };
    DCP_CLEANUP_FREE char *path = path_of(p, param_of(p, i)->name, "step");
    int64_t before = p->reader->updates;

    DCP_TRY(path ? open_file(p, path, &file, err) : dcp_error_memory(err, "a file name"));
    p->reader->updates = -1;
    DCP_TRY(take_step(p->reader, &file, file.torch.tree, err));
    int64_t now = p->reader->updates;
    if (now < 0)
        p->reader->updates = before;
    if (!p->any_step || now == before || now < 0) {
        p->any_step = p->any_step || now >= 0;
        return DCP_OK;
    }
    return dcp_error_set(err, DCP_E_UNSUPPORTED,
                         "'%s' has %" PRId64 " updates, and those before it %" PRId64,
                         dcp_ds_shown(p->reader->arena, path), now, before);
}

static int read_steps(struct params *p, struct dcp_error *err)
{
    for (size_t i = 0; i < p->reader->n_order; i++)
        for (size_t k = 0; k < p->n_keys; k++)
            if (!strcmp(p->keys[k], "step") && (p->has[i] >> k & 1))
                DCP_TRY(read_step(p, i, err));
    return DCP_OK;
}

static int read_optimizer(struct params *p, struct dcp_error *err)
{
    struct dcp_ds_reader *reader = p->reader;
    DCP_CLEANUP_DS struct dcp_ds_file file = { 0 };
    DCP_CLEANUP_FREE char *path = path_of(p, "optimizer_state.pt", NULL);
    int64_t *ids = dcp_arena_alloc(reader->arena, reader->n_groups, sizeof *ids);

    if (!path || !ids)
        return dcp_error_memory(err, "a file name");
    DCP_TRY(dcp_ds_open(reader, path, 0, &file, err));
    DCP_TRY(dcp_ds_check_optim_file(reader, &file, 0, err));
    const struct dcp_pickle_node *root = file.torch.tree;
    const struct dcp_pickle_node *inner = dcp_pickle_get(root, "optimizer_state_dict");
    const struct dcp_pickle_node *groups = dcp_pickle_get(root, "param_groups");
    const struct dcp_pickle_node *stage = dcp_pickle_get(root, "zero_stage");
    if (reader->stage != 3 && dcp_ds_stage(stage) == 2)
        reader->stage = 2;
    if (!groups)
        groups = dcp_pickle_get(inner, "param_groups");
    int rc = dcp_ds_read_ids(reader, &file, groups, ids, err);
    if (!rc)
        rc = dcp_ds_read_scalars(reader, &file, root, err);
    if (!rc)
        rc = dcp_ds_read_param_groups(reader, &file, groups, err);
    const struct dcp_pickle_node *state =
        dcp_ds_get_nth(dcp_pickle_get(inner, "state"), ids[0]);
    const struct dcp_pickle_node *step = dcp_pickle_get(state, "step");
    return rc || !step ? rc : take_step(reader, &file, step, err);
}

int dcp_universal_read(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    struct params p = { .reader = reader, .keys = { "fp32" }, .n_keys = 1 };

    if (!reader->n_groups)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the model's file has no groups of parameters");
    p.has = dcp_arena_alloc(reader->arena, reader->n_order, sizeof *p.has);
    DCP_TRY(p.has ? read_optimizer(&p, err) : dcp_error_memory(err, "parameters"));
    for (size_t i = 0; i < reader->n_order; i++) {
        DCP_TRY(list_param(&p, i, err));
        if (!(p.has[i] & 1))
            return dcp_error_set(err, DCP_E_CORRUPT, "'%szero/%s/fp32.pt' is missing",
                                 dcp_ds_shown(reader->arena, reader->folder.prefix),
                                 dcp_ds_shown(reader->arena, param_of(&p, i)->name));
    }
    for (size_t k = 0; k < p.n_keys; k++)
        for (size_t i = 0; i < reader->n_order; i++)
            if (strcmp(p.keys[k], "step") && (p.has[i] >> k & 1))
                DCP_TRY(read_tensor(&p, i, p.keys[k], err));
    return read_steps(&p, err);
}
