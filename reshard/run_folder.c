#include "run_folder.h"

#include "base/fs.h"
#include "cli/source.h"

int reshard_open_folder(const struct dcp_main *m, const char *path,
                        struct dcp_store *out_store, struct dcp_error *err)
{
    if (!dcp_fs_is_dir(path))
        return dcp_error_set(err, DCP_E_NOT_FOUND, "there is no folder '%s'", path);
    return dcp_source_store(m, path, out_store, err);
}

void reshard_tell_dry(struct dcp_main *m, bool yes, size_t n)
{
    if (n && !yes && !m->json)
        dcp_term_put(&m->out, "nothing was removed yet; --yes removes it\n");
}

const struct dcp_exit reshard_keeping_exits[] = {
    { 0, "done" },
    { 2, "wrong usage" },
    { 3, "not found" },
    { 4, "marks of a step are corrupt" },
    { 5, "another process holds the run folder, or the step" },
    { 6, "I/O error" },
    { 9, "out of memory" },
    { 0 },
};
