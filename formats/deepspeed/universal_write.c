/* universal_write: a file for each tensor of the optimizer. */
#include "base/mem.h"
#include "formats/pickle/py.h"
#include "ours.h"
#include "universal.h"
#include <stdio.h>
#include <string.h>

/* Files that one rank has open at once; the next rank takes the next ones. */
enum { FILES_OF_A_RANK = 128 };

struct walk {
    struct dcp_target *target;
    const struct dcp_ds_writer *w;
    size_t n; /* files of parameters so far */
};

/* Ranks from the first on take the files of parameters; lower ones have files of their
 * own. */
static int next_rank(struct walk *walk)
{
    int first = walk->w->stage == 3 ? walk->w->world_size : 1;

    return first + (int)(walk->n++ / FILES_OF_A_RANK);
}

/* -- files of parameters ----------------------------------------------------------- */

static const char *param_path(const struct dcp_ds_writer *w, const char *name,
                              const char *file)
{
    size_t n = strlen(name) + strlen(file) + 16;
    DCP_CLEANUP_FREE char *path = malloc(n);

    if (!path)
        return NULL;
    snprintf(path, n, "zero/%s/%s.pt", name, file);
    return dcp_ds_path(w, path);
}

/* The file of one tensor: a dict, or at stage 3 the flat tensor alone. */
static int assign_tensor(struct walk *walk, int tensor, const char *key,
                         struct dcp_error *err)
{
    const struct dcp_ds_writer *w = walk->w;
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    struct dcp_torch_out out = { .rank = next_rank(walk) };
    const char *state = strcmp(key, "master") ? key : "fp32";

    out.name = param_path(w, t->param, state);
    size_t storage = dcp_torch_out_storage(&out, t->dtype, t->n_elems, NULL);
    dcp_torch_out_part(&out, storage, tensor, 0, t->n_elems, 0);
    if (w->stage == 3)
        out.tree = dcp_torch_out_view(&out, storage, 1, &t->n_elems);
    else
        out.tree = json_pack("{s:i, s:o, s:o}", "cat_dim", 0, "param",
                             dcp_torch_out_view(&out, storage, t->ndim, t->shape),
                             DCP_DS_OURS, dcp_ds_ours_of_param(w, t->param, state));
    int rc = out.name && out.tree ? DCP_OK : dcp_error_memory(err, "a parameter's file");
    return dcp_ds_assign_file(walk->target, &out, rc, err);
}

static int assign_step(struct walk *walk, const struct dcp_ds_group *group,
                       const char *name, struct dcp_error *err)
{
    struct dcp_torch_out out = { .rank = next_rank(walk) };

    out.name = param_path(walk->w, name, "step");
    out.tree = dcp_ds_step(walk->w, &out, group->param_group);
    int rc = out.name && out.tree ? DCP_OK : dcp_error_memory(err, "a parameter's file");
    return dcp_ds_assign_file(walk->target, &out, rc, err);
}

static int check_name(const char *name, struct dcp_error *err)
{
    if (!strchr(name, '/') && dcp_store_name_ok(name))
        return DCP_OK;
    return dcp_error_of_tensor(
        err, DCP_E_MISMATCH, name,
        "a universal checkpoint cannot hold: a parameter whose name is no "
        "folder's");
}

/* At stage 3 DeepSpeed asks for both moments of Adam of every weight. */
static int check_moments(const struct dcp_ds_writer *w, struct dcp_error *err)
{
    size_t n = 0;

    for (size_t c = 1; c < w->n_columns; c++)
        for (size_t p = 0; p < w->n_params; p++)
            if (dcp_ds_role_of_key(w->columns[c].key) != DCP_ROLE_OPTIM)
                n += w->columns[c].tensors[p] >= 0;
    if (w->stage != 3 || w->n_columns == 1 || n == 2 * w->n_params)
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "a universal checkpoint of ZeRO stage 3 cannot hold: an optimizer that "
                  "keeps other moments than Adam");
    dcp_error_hint(err, "DeepSpeed loads it only of Adam; write a checkpoint of "
                        "DeepSpeed's, for the number of ranks that load it");
    return DCP_E_MISMATCH;
}

static int assign_params(struct walk *walk, struct dcp_error *err)
{
    const struct dcp_ds_writer *w = walk->w;

    DCP_TRY(check_moments(w, err));
    for (size_t g = 0; g < w->n_groups; g++)
        for (size_t p = 0; p < w->groups[g].n_params; p++) {
            const struct dcp_ds_group *group = &w->groups[g];
            const char *name = group->params[p].name;
            DCP_TRY(check_name(name, err));
            for (size_t c = 0; c < w->n_columns; c++) {
                int tensor = w->columns[c].tensors[group->first + p];
                if (tensor >= 0)
                    DCP_TRY(assign_tensor(walk, tensor, w->columns[c].key, err));
            }
            if (w->stage != 3 && w->n_columns > 1)
                DCP_TRY(assign_step(walk, group, name, err));
        }
    return DCP_OK;
}

/* -- optimizer_state.pt ------------------------------------------------------------ */

static bool set(json_t *dict, const char *key, json_t *value)
{
    return !json_object_set_new(dict, key, value);
}

/* A list with one number for each group. */
static json_t *group_numbers(const struct dcp_ds_writer *w, int number)
{
    json_t *list = json_array();

    for (size_t g = 0; g < w->n_groups; g++)
        json_array_append_new(list, json_integer(number));
    return list;
}

/* Stage 3 looks for the step in the state of the first array. */
static json_t *inner_state(const struct dcp_ds_writer *w, struct dcp_torch_out *out)
{
    json_t *pairs = json_array();

    for (size_t g = 0; g < w->n_groups; g++)
        if (json_array_append_new(
                pairs, json_pack("[I, {s:o}]", (json_int_t)g, "step",
                                 dcp_ds_step(w, out, w->groups[g].param_group)))) {
            json_decref(pairs);
            return NULL;
        }
    return json_pack("{s:o, s:o}", "state", dcp_py_new(DCP_PY_DICT, pairs),
                     "param_groups", dcp_ds_group_values(w));
}

static json_t *optimizer_tree(const struct dcp_ds_writer *w, struct dcp_torch_out *out)
{
    const char *version = json_string_value(json_object_get(w->note, "version"));
    json_t *tree = json_object();
    bool three = w->stage == 3;
    bool ok = set(tree, "zero_stage", dcp_ds_stage_value(w->stage));

    if (!dcp_ds_scaler_unknown(w))
        ok =
            ok && set(tree, "loss_scaler", dcp_ds_loss_scaler(w)) &&
            set(tree, "dynamic_loss_scale", dcp_ds_scalar_value(w, "dynamic_loss_scale"));
    ok = ok && set(tree, "overflow", dcp_ds_scalar_value(w, "overflow"));

    if (three)
        ok = ok && set(tree, "partition_count", json_integer(w->world_size)) &&
             set(tree, "optimizer_state_dict", inner_state(w, out));
    else
        ok = ok && set(tree, "clip_grad", dcp_ds_scalar_value(w, "clip_grad")) &&
             set(tree, "group_paddings", group_numbers(w, 0)) &&
             set(tree, "partition_count", group_numbers(w, w->world_size)) &&
             set(tree, "ds_version", json_string(version ? version : DCP_DS_VERSION));
    ok = ok && set(tree, "param_groups", dcp_ds_group_values(w)) &&
         set(tree, DCP_DS_OURS, dcp_ds_ours_of_rank(w, 0)) &&
         !dcp_ds_set_rest(w, out, tree);
    if (!ok) {
        json_decref(tree);
        tree = NULL;
    }
    return tree;
}

static int assign_optimizer(struct walk *walk, struct dcp_error *err)
{
    struct dcp_torch_out out = { .classes = dcp_ds_classes };

    out.name = dcp_ds_path(walk->w, "zero/optimizer_state.pt");
    out.tree = optimizer_tree(walk->w, &out);
    int rc =
        out.name && out.tree ? DCP_OK : dcp_error_memory(err, "a universal checkpoint");
    return dcp_ds_assign_file(walk->target, &out, rc, err);
}

/* -- the whole --------------------------------------------------------------------- */

int dcp_universal_assign(struct dcp_target *target, struct dcp_error *err)
{
    struct walk walk = { .target = target, .w = target->state };
    const struct dcp_ds_writer *w = walk.w;
    int n_models = w->stage == 3 ? w->world_size : 1, rc = DCP_OK;

    for (int rank = 0; rank < n_models && !rc; rank++) {
        struct dcp_torch_out out = { 0 };
        rc = dcp_ds_model_file(w, w->stage == 3 ? rank : -1, &out, err);
        rc = dcp_ds_assign_file(target, &out, rc, err);
    }
    if (!rc)
        rc = assign_optimizer(&walk, err);
    if (!rc)
        rc = assign_params(&walk, err);
    return rc ? rc : dcp_ds_pointer(target, DCP_UNIVERSAL_LATEST, err);
}
