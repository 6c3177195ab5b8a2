/* universal_write: a file for each tensor of the optimizer. */
#include "base/mem.h"
#include "formats/pickle/py.h"
#include "ours.h"
#include "universal.h"
#include <stdio.h>
#include <string.h>

/* Files that one rank has open at once; the next rank takes the next ones. */
enum { FILES_OF_A_RANK = 128 };

typedef int (*visitor)(struct dcp_torch_out *out, struct dcp_catalog *catalog,
                       struct dcp_literals *literals, struct dcp_error *err);

struct walk {
    const struct dcp_ds_writer *w;
    int rank; /* whose files are visited, -1: all */
    size_t n; /* files so far */
    visitor visit;
    struct dcp_literals *literals;
};

/* Ranks from `first` on take the files of parameters; lower ones have files of their own.
 */
static int rank_of(const struct walk *walk, size_t n)
{
    int first = walk->w->stage == 3 ? walk->w->world : 1;

    return first + (int)(n / FILES_OF_A_RANK);
}

static int visit_file(struct walk *walk, struct dcp_torch_out *out, int rc,
                      struct dcp_error *err)
{
    if (!rc)
        rc = walk->visit(out, walk->w->catalog, walk->literals, err);
    dcp_torch_out_fini(out);
    return rc;
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
static int visit_tensor(struct walk *walk, int tensor, const char *key, int rank,
                        struct dcp_error *err)
{
    const struct dcp_ds_writer *w = walk->w;
    const struct dcp_tensor *t = &w->catalog->tensors[tensor];
    struct dcp_torch_out out = { .rank = rank };

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
    return visit_file(walk, &out, rc, err);
}

static int visit_step(struct walk *walk, const struct dcp_ds_group *group,
                      const char *name, int rank, struct dcp_error *err)
{
    struct dcp_torch_out out = { .rank = rank };

    out.name = param_path(walk->w, name, "step");
    out.tree = dcp_ds_step(walk->w, &out, group->param_group);
    int rc = out.name && out.tree ? DCP_OK : dcp_error_memory(err, "a parameter's file");
    return visit_file(walk, &out, rc, err);
}

static int check_name(const char *name, struct dcp_error *err)
{
    if (!strchr(name, '/') && dcp_store_name_ok(name))
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "a universal checkpoint cannot hold: a parameter whose name is no "
                  "folder's");
    dcp_error_tensor(err, name);
    return DCP_E_MISMATCH;
}

static int visit_params(struct walk *walk, struct dcp_error *err)
{
    const struct dcp_ds_writer *w = walk->w;
    int rc = DCP_OK;

    for (size_t g = 0; g < w->n_groups; g++)
        for (size_t p = 0; p < w->groups[g].n_params; p++) {
            const struct dcp_ds_group *group = &w->groups[g];
            const char *name = group->params[p].name;
            rc = check_name(name, err);
            for (size_t c = 0; c < w->n_columns && !rc; c++) {
                int tensor = w->columns[c].tensors[group->first + p];
                int rank = rank_of(walk, walk->n);
                if (tensor < 0)
                    continue;
                walk->n++;
                if (walk->rank < 0 || walk->rank == rank)
                    rc = visit_tensor(walk, tensor, w->columns[c].key, rank, err);
            }
            if (!rc && w->stage != 3 && w->n_columns > 1) {
                int rank = rank_of(walk, walk->n++);
                if (walk->rank < 0 || walk->rank == rank)
                    rc = visit_step(walk, group, name, rank, err);
            }
            if (rc)
                return rc;
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
    bool ok =
        set(tree, "zero_stage", dcp_ds_stage_value(w->stage)) &&
        set(tree, "loss_scaler", dcp_ds_loss_scaler(w)) &&
        set(tree, "dynamic_loss_scale", dcp_ds_scalar_value(w, "dynamic_loss_scale")) &&
        set(tree, "overflow", dcp_ds_scalar_value(w, "overflow"));

    if (three)
        ok = ok && set(tree, "partition_count", json_integer(w->world)) &&
             set(tree, "optimizer_state_dict", inner_state(w, out));
    else
        ok = ok && set(tree, "clip_grad", dcp_ds_scalar_value(w, "clip_grad")) &&
             set(tree, "group_paddings", group_numbers(w, 0)) &&
             set(tree, "partition_count", group_numbers(w, w->world)) &&
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

static int visit_optimizer(struct walk *walk, struct dcp_error *err)
{
    struct dcp_torch_out out = { .classes = dcp_ds_classes };

    out.name = dcp_ds_path(walk->w, "zero/optimizer_state.pt");
    out.tree = optimizer_tree(walk->w, &out);
    int rc =
        out.name && out.tree ? DCP_OK : dcp_error_memory(err, "a universal checkpoint");
    return visit_file(walk, &out, rc, err);
}

/* -- the whole --------------------------------------------------------------------- */

static int visit_all(struct walk *walk, struct dcp_error *err)
{
    const struct dcp_ds_writer *w = walk->w;
    int n_models = w->stage == 3 ? w->world : 1, rc = DCP_OK;

    for (int rank = 0; rank < n_models && !rc; rank++) {
        struct dcp_torch_out out = { 0 };
        if (walk->rank >= 0 && walk->rank != rank)
            continue;
        rc = dcp_ds_model_file(w, w->stage == 3 ? rank : -1, &out, err);
        rc = visit_file(walk, &out, rc, err);
    }
    if (!rc && (walk->rank < 0 || walk->rank == 0))
        rc = visit_optimizer(walk, err);
    return rc ? rc : visit_params(walk, err);
}

int dcp_universal_layout(struct dcp_catalog *catalog,
                         const struct dcp_target_options *options,
                         struct dcp_literals *literals, struct dcp_error *err)
{
    DCP_CLEANUP_DS_WRITER struct dcp_ds_writer w = { 0 };
    struct walk walk = {
        .w = &w, .rank = -1, .visit = dcp_torch_out_layout, .literals = literals
    };

    (void)options;
    int rc = dcp_ds_writer_init(&w, catalog, catalog->layout, err);
    if (rc)
        return rc;
    catalog->n_pieces = 0;
    catalog->sorted = false;
    rc = visit_all(&walk, err);
    if (!rc)
        rc = dcp_ds_pointer(&w, DCP_UNIVERSAL_LATEST, literals, err);
    return rc ? rc : dcp_catalog_sort(catalog, err);
}

int dcp_universal_seal(struct dcp_catalog *catalog, int rank,
                       const struct dcp_target_options *options,
                       struct dcp_literals *literals, struct dcp_error *err)
{
    DCP_CLEANUP_DS_WRITER struct dcp_ds_writer w = { 0 };
    struct walk walk = {
        .w = &w, .rank = rank, .visit = dcp_torch_out_seal, .literals = literals
    };

    (void)options;
    if (rank < 0)
        return DCP_OK;
    int rc = dcp_ds_writer_init(&w, catalog, catalog->layout, err);
    return rc ? rc : visit_all(&walk, err);
}
