/* identity: how large a file is, and when it was written. */
#include "identity.h"

#include "base/mem.h"
#include <stdlib.h>
#include <sys/stat.h>

static bool look(const char *path, struct dcp_flat_identity *out)
{
    struct stat found;

    if (stat(path, &found) || !S_ISREG(found.st_mode))
        return false;
    *out = (struct dcp_flat_identity){
        .size_bytes = (int64_t)found.st_size,
        .changed_s = (int64_t)found.st_mtim.tv_sec,
        .changed_ns = (int64_t)found.st_mtim.tv_nsec,
    };
    return true;
}

void dcp_flat_identity_take(struct dcp_flat_identity *out, const char *path)
{
    char *absolute = realpath(path, NULL);

    *out = (struct dcp_flat_identity){ 0 };
    if (absolute && look(absolute, out))
        out->path = absolute;
    else
        free(absolute);
}

void dcp_flat_identity_fini(struct dcp_flat_identity *identity)
{
    free(identity->path);
    identity->path = NULL;
}

int dcp_flat_identity_check(const struct dcp_flat_identity *identity,
                            struct dcp_error *err)
{
    struct dcp_flat_identity now;

    if (!identity->path || !look(identity->path, &now))
        return DCP_OK;
    if (now.size_bytes == identity->size_bytes && now.changed_s == identity->changed_s &&
        now.changed_ns == identity->changed_ns)
        return DCP_OK;
    dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' was replaced since it was opened",
                  identity->path);
    dcp_error_hint(err, "open it again");
    return DCP_E_NOT_FOUND;
}
