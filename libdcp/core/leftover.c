#include "leftover.h"
#include "base/mem.h"
#include <stdio.h>
#include <string.h>

enum { MOST = 100 }; /* that cannot be removed, before it is given up */

int dcp_leftover_clear(const struct dcp_store *store, const char *prefix,
                       const char *name, char **out_name, struct dcp_error *err)
{
    struct dcp_error why = { 0 }; /* of the first */
    size_t cap = strlen(prefix) + strlen(name) + sizeof "~100";
    char *full = malloc(cap);

    *out_name = NULL;
    if (!full)
        return dcp_error_memory(err, "the name of a folder");
    for (int i = 1; i <= MOST; i++) {
        if (i == 1)
            snprintf(full, cap, "%s%s", prefix, name);
        else
            snprintf(full, cap, "%s%s~%d", prefix, name, i);
        int rc = store->ops->remove(store->self, full, &why);
        if (!rc || rc == DCP_E_NOT_FOUND) {
            *out_name = full;
            return DCP_OK;
        }
    }
    free(full);
    if (err && !err->code)
        *err = why;
    return why.code;
}
