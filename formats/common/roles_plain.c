/* roles_plain: files that hold nothing but names and arrays. */
#include "base/mem.h"
#include "base/str.h"
#include "roles.h"
#include <stdio.h>
#include <string.h>

#define OURS "optimizer."
#define STATE "state."
#define MOMENT ".exp_avg"

/* The length of P in P.state.<param>.exp_avg, or -1. */
static int container_of(const char *name)
{
    const char *state = dcp_str_starts(name, STATE) ? name : strstr(name, "." STATE);

    if (!state || !dcp_str_ends(name, MOMENT))
        return -1;
    return (int)(state - name);
}

static int find_optim(struct dcp_catalog *catalog, struct dcp_error *err)
{
    const char *of = NULL;
    struct dcp_roles roles;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        if (dcp_role_is_optim(catalog->tensors[t].role))
            return DCP_OK; /* what they are is known */
        if (!of && container_of(catalog->tensors[t].name) >= 0)
            of = catalog->tensors[t].name;
    }
    if (!of)
        return DCP_OK;
    size_t n = strlen(of) + sizeof ".param_groups.0";
    DCP_CLEANUP_FREE char *groups = malloc(n);
    if (!groups)
        return dcp_error_memory(err, "the roles of tensors");
    int prefix = container_of(of);
    snprintf(groups, n, "%.*s%sparam_groups.0", prefix, of, prefix ? "." : "");
    const char *const beside[] = { groups };
    const struct dcp_roles_hints hints = { .beside = beside, .n_beside = 1 };
    return dcp_roles_find(catalog, &hints, &roles, err);
}

/* The weight whose state a name tells, "optimizer.<key>.<param>"; -1: it tells none. */
static int weight_of(const struct dcp_catalog *catalog, const char *name)
{
    const char *dot =
        dcp_str_starts(name, OURS) ? strchr(name + strlen(OURS), '.') : NULL;

    for (; dot; dot = strchr(dot + 1, '.')) {
        int found = dcp_catalog_find(catalog, dot + 1);
        if (found >= 0 && catalog->tensors[found].role == DCP_ROLE_MODEL)
            return found;
    }
    return -1;
}

/* Keys that are no roles, as "step", in files of weights that a step became. */
static void find_keys(struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        struct dcp_tensor *tensor = &catalog->tensors[t];
        int weight =
            tensor->role == DCP_ROLE_MODEL ? weight_of(catalog, tensor->name) : -1;
        if (weight < 0)
            continue;
        tensor->role = DCP_ROLE_OPTIM;
        tensor->param = catalog->tensors[weight].param;
    }
}

int dcp_roles_find_plain(struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_TRY(find_optim(catalog, err));
    find_keys(catalog);
    return dcp_roles_find_buffers(catalog, err);
}
