/* supersede: steps that training does not continue from are moved out of the way. */
#include "base/mem.h"
#include "core/collective/await.h"
#include "pin.h"
#include "steps.h"
#include <inttypes.h>
#include <stdio.h>

enum { MAX_NAMES = 1000 };

struct superseded {
    const struct dcp_context *ctx;
    int64_t above;
};

/* What was said of a step goes with it: a new step of its number is another one. What was
 * said of one that had the new name, and was removed by hand, does not stay. */
static void take_marks(const struct dcp_context *ctx, const char *step,
                       const char *superseded)
{
    const struct dcp_store *store = ctx->store;
    struct dcp_error why = { 0 };
    char from[96], to[160];

    dcp_marks_name(step, from);
    snprintf(to, sizeof to, DCP_MARKS_PREFIX "%s", superseded);
    int rc = store->ops->remove(store->self, to, &why);
    if (rc == DCP_E_NOT_FOUND) {
        why = (struct dcp_error){ 0 };
        rc = DCP_OK;
    }
    if (!rc)
        rc = store->ops->publish(store->self, from, to, &why);
    if (rc && rc != DCP_E_NOT_FOUND)
        dcp_log_write(ctx->log, DCP_LOG_WARN, "'%s' does not keep its marks: %s",
                      superseded, why.message);
}

static int rename_step(const struct dcp_context *ctx, const struct dcp_step *step,
                       struct dcp_error *err)
{
    const struct dcp_store *store = ctx->store;
    struct dcp_store_file *held;
    char name[96];
    int rc = DCP_E_EXISTS;

    /* A mark that is set meanwhile would be that of a later step. */
    dcp_marks_hold(store, step->name, &held, NULL);
    for (int i = 1; i < MAX_NAMES && rc == DCP_E_EXISTS; i++) {
        struct dcp_error why = { 0 };
        dcp_superseded_name(step->name, i, name);
        rc = store->ops->publish(store->self, step->name, name, &why);
        if (rc && err)
            *err = why;
    }
    if (!rc)
        take_marks(ctx, step->name, name);
    dcp_unpin(store, &held);
    if (rc)
        return rc;
    if (err)
        *err = (struct dcp_error){ 0 };
    dcp_pin_invalidate(store, step->name);
    dcp_log_write(ctx->log, DCP_LOG_WARN,
                  "%s is no part of the run any more, and is kept as '%s'", step->name,
                  name);
    return DCP_OK;
}

static int supersede(void *arg, struct dcp_error *err)
{
    const struct superseded *superseded = arg;
    const struct dcp_store *store = superseded->ctx->store;
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0;

    DCP_TRY(store->ops->lock(store->self, err));
    int rc = dcp_steps(store, &steps, &n, NULL, err);
    for (size_t i = 0; i < n && !rc; i++)
        if (steps[i].step > superseded->above)
            rc = rename_step(superseded->ctx, &steps[i], err);
    store->ops->unlock(store->self);
    return rc;
}

int dcp_supersede(const struct dcp_context *ctx, int64_t step, struct dcp_error *err)
{
    struct superseded superseded = { ctx, step };
    struct dcp_comm self, *comm = ctx->comm;

    if (!comm) {
        dcp_comm_self(&self);
        comm = &self;
    }
    return dcp_await(comm, comm->rank == 0 ? supersede : NULL, &superseded, err);
}
