/* roles: what the tensors of a nested object are to training. The keys that lead to
 * them tell, as common/roles.h describes it. */
#include "formats/common/roles.h"
#include "base/mem.h"
#include "formats/pickle/json.h"
#include "formats/torch/torch.h"
#include "torch_save.h"
#include <stdio.h>
#include <string.h>

enum { MAX_JOINTS = DCP_PICKLE_JSON_MAX_DEPTH, MAX_OPTIMS = 64 };

/* Where the parts of a tensor's path meet in its name. */
struct joints {
    size_t n;
    const uint32_t *at;
};

struct finder {
    struct dcp_catalog *catalog;
    struct joints *joints; /* of each tensor */
    uint32_t path[MAX_JOINTS];
    const char *groups[MAX_OPTIMS]; /* "P.param_groups" of each optimizer */
    size_t n_groups;
    struct dcp_error *err;
};

/* -- paths --------------------------------------------------------------------------- */

static int walk(struct finder *f, const json_t *value, size_t length, size_t depth);

/* A child under a key of n bytes, which stands behind `length` bytes of path. */
static int walk_child(struct finder *f, const json_t *child, size_t length, size_t n,
                      size_t depth)
{
    if (length && depth < MAX_JOINTS)
        f->path[depth++] = (uint32_t)length;
    return walk(f, child, length + (length ? 1 : 0) + n, depth);
}

static int take_joints(struct finder *f, const char *name, size_t depth)
{
    int at = dcp_catalog_find(f->catalog, name);
    size_t size = depth * sizeof *f->path;
    uint32_t *copy = at < 0 ? NULL : dcp_catalog_alloc(f->catalog, size, 1);

    if (at < 0)
        return DCP_OK;
    if (!copy)
        return dcp_error_memory(f->err, "the roles of tensors");
    memcpy(copy, f->path, size);
    f->joints[at] = (struct joints){ depth, copy };
    return DCP_OK;
}

/* The name of some tensor in it, or NULL. */
static const char *first_tensor(const json_t *value)
{
    struct dcp_py_parts parts = dcp_py_parts(value);
    const char *name = dcp_py_tensor(value);

    while (!name && dcp_py_next(&parts))
        name = first_tensor(parts.value);
    return name;
}

/* What has a state and groups is an optimizer, whatever is in its state. */
static int take_groups(struct finder *f, const json_t *value, size_t length)
{
    static const char groups[] = "param_groups";
    const json_t *state = json_object_get(value, "state");
    const char *name =
        state && json_object_get(value, groups) ? first_tensor(state) : NULL;

    if (!name || strlen(name) <= length || f->n_groups == MAX_OPTIMS)
        return DCP_OK;
    size_t size = length + sizeof groups + 1;
    char *text = dcp_catalog_alloc(f->catalog, size, 1);
    if (!text)
        return dcp_error_memory(f->err, "the roles of tensors");
    snprintf(text, size, "%.*s%s%s", (int)length, name, length ? "." : "", groups);
    f->groups[f->n_groups++] = text;
    return DCP_OK;
}

static int walk(struct finder *f, const json_t *value, size_t length, size_t depth)
{
    struct dcp_py_parts parts = dcp_py_parts(value);
    const char *name = dcp_py_tensor(value);

    if (name)
        return take_joints(f, name, depth);
    DCP_TRY(take_groups(f, value, length));
    while (dcp_py_next(&parts)) {
        bool tag = parts.kind == DCP_PY_MEMBERS && dcp_py_is_tag(parts.name);
        if (parts.name && !parts.is_word && !tag)
            DCP_TRY(walk_child(f, parts.value, length, strlen(parts.name), depth));
    }
    return DCP_OK;
}

static bool is_joint(void *self, int tensor, size_t at)
{
    const struct joints *j = &((struct finder *)self)->joints[tensor];

    for (size_t i = 0; i < j->n; i++)
        if (j->at[i] == at)
            return true;
    return false;
}

/* -- the whole ----------------------------------------------------------------------- */

/* Names that this library made tell more than their place. */
static void keep_own(struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const char *param;
        enum dcp_role role = dcp_role_of_name(catalog->tensors[t].name, &param);
        if (!dcp_role_is_optim(role))
            continue;
        catalog->tensors[t].role = role;
        catalog->tensors[t].param = param;
    }
}

int dcp_torch_roles(struct dcp_catalog *catalog, json_t *tree, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct joints *joints =
        dcp_mem_calloc(catalog->n_tensors, sizeof *joints);
    struct finder f = { .catalog = catalog, .joints = joints, .err = err };
    struct dcp_roles_hints hints = { .is_joint = is_joint, .self = &f };
    struct dcp_roles roles;

    if (!joints)
        return dcp_error_memory(err, "the roles of tensors");
    DCP_TRY(walk(&f, tree, 0, 0));
    hints.beside = f.groups;
    hints.n_beside = f.n_groups;
    DCP_TRY(dcp_roles_find(catalog, &hints, &roles, err));
    keep_own(catalog);
    return DCP_OK;
}
