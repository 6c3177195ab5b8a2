#include "learned.h"

#include "base/mem.h"
#include <inttypes.h>
#include <string.h>

/* The newest step of the folder with optimizer state, or -1. Collective. */
static int find_learned(const struct run *run, int64_t *out_step, struct dcp_error *err)
{
    struct dcp_comm *comm = &run->join->comm;
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0;
    int rc = comm->rank || !run->store.ops
                 ? DCP_OK
                 : dcp_steps(&run->store, &steps, &n, NULL, err);
    *out_step = -1;
    for (size_t i = 0; i < n && *out_step < 0; i++)
        if (steps[i].complete && !steps[i].weights_only)
            *out_step = steps[i].step;
    rc = dcp_agree(comm, rc, err);
    return rc ? rc : dcp_comm_bcast(comm, out_step, sizeof *out_step, 0, err);
}

int learned_check(const struct run *run, const char *name,
                  const struct dcp_catalog *catalog, struct dcp_error *err)
{
    const char *dir = run->settings.checkpoint_dir;
    int64_t newest;
    if (catalog->step < 0 || strcmp(catalog->format, dcp_format_of_steps()->name) != 0 ||
        !dcp_holds_weights_only(catalog))
        return DCP_OK;
    int rc = find_learned(run, &newest, err);
    if (rc)
        return rc;
    if (newest < 0) {
        dcp_error_set(err, DCP_E_MISMATCH,
                      "'%s' holds weights only, and no step of '%s' has optimizer state",
                      name, dir);
        dcp_error_hint(err, "begin a run with these weights: model.init");
    } else {
        dcp_error_set(err, DCP_E_MISMATCH,
                      "'%s' holds weights only, without optimizer state; the newest step "
                      "of '%s' that has it is %" PRId64,
                      name, dir, newest);
        dcp_error_hint(err,
                       "go on from there with --resume %" PRId64
                       ", or begin a run with these weights: model.init",
                       newest);
    }
    return dcp_agree(&run->join->comm, DCP_E_MISMATCH, err);
}
