#include "delta_target.h"
#include "base/fs.h"
#include "base/mem.h"
#include "base/size.h"
#include "core/run/destination.h"
#include <string.h>

int dcp_delta_target_check(struct dcp_delta_target *target,
                           const struct dcp_location *source, const char *path,
                           struct dcp_error *err)
{
    free(target->dir);
    free(target->name);
    target->dir = target->name = NULL;
    return dcp_destination_check(source, path, target->replaces, &target->dir,
                                 &target->name, err);
}

int dcp_delta_target_begin(struct dcp_delta_target *target, uint64_t need_bytes,
                           struct dcp_error *err)
{
    char need[DCP_SIZE_CAP], room[DCP_SIZE_CAP];

    DCP_TRY(dcp_fs_make_missing(target->dir, &target->made, err));
    target->begun = true;
    uint64_t is_free = dcp_fs_free_bytes(target->dir);
    if (need_bytes > is_free) {
        dcp_error_set(err, DCP_E_NO_SPACE, "'%s' needs %s, %s are free", target->name,
                      dcp_size_format(need, need_bytes), dcp_size_format(room, is_free));
        dcp_error_hint(err, "free some space, or choose a folder on another disk");
        return DCP_E_NO_SPACE;
    }
    DCP_TRY(dcp_store_dir(&target->store, target->dir, false, err));
    return dcp_publish_begin(&target->publish, &target->store, target->name,
                             target->replaces, err);
}

int dcp_delta_target_commit(struct dcp_delta_target *target, struct dcp_error *err)
{
    int rc = dcp_publish_commit(&target->publish, NULL, target->replaces, err);

    target->done = !rc;
    return rc;
}

void dcp_delta_target_end(struct dcp_delta_target *target, const struct dcp_log *log)
{
    struct dcp_error why = { 0 };

    if (target->store.ops && target->publish.store) {
        if (dcp_publish_clear(&target->publish, &why))
            dcp_log_write(log, DCP_LOG_WARN, "%s; it is no longer needed", why.message);
        dcp_publish_fini(&target->publish);
    }
    dcp_store_free(&target->store);
    if (target->begun && !target->done && target->made)
        dcp_fs_remove_made(target->dir, target->made);
    free(target->dir);
    free(target->name);
    free(target->made);
    *target = (struct dcp_delta_target){ 0 };
}
