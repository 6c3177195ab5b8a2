/* roles_plain: files that hold nothing but names and arrays. */
#include "base/mem.h"
#include "base/str.h"
#include "roles.h"
#include <stdio.h>
#include <string.h>

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

int dcp_roles_find_plain(struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_TRY(find_optim(catalog, err));
    return dcp_roles_find_buffers(catalog, err);
}
