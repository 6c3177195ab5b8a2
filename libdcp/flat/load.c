/* load: a step of a run, into the memory of many ranks. */
#include "act.h"

#include <stdlib.h>

struct dcp_flat_loaded {
    struct dcp_catalog *catalog;
};

static int begin(struct dcp_flat_act *act, const struct dcp_flat_load_options *given,
                 const struct dcp_flat_comm *comm, struct dcp_error *err)
{
    return dcp_flat_act_begin(act,
                              &(struct dcp_flat_act_options){ .comm = comm,
                                                              .path = given->path,
                                                              .threads = given->threads,
                                                              .log = given->log,
                                                              .self = given->self },
                              err);
}

int32_t dcp_flat_load(const struct dcp_flat_load_options *options,
                      const struct dcp_flat_comm *comm, const struct dcp_flat_state *into,
                      struct dcp_flat_load_result *out_result,
                      struct dcp_flat_loaded **out_loaded, struct dcp_flat_error *err)
{
    struct dcp_flat_load_options given;
    struct dcp_load_result result = { 0 };
    struct dcp_error why = { 0 };

    *out_loaded = NULL;
    dcp_flat_take(&given, sizeof given, options);
    struct dcp_flat_held held = { 0 };
    struct dcp_flat_act act;
    struct dcp_flat_loaded *loaded = calloc(1, sizeof *loaded);
    int rc = begin(&act, &given, comm, &why);
    if (!rc)
        rc = dcp_flat_held_make(into, &held, &why);
    if (!rc && !loaded)
        rc = dcp_error_memory(&why, "what is loaded");
    rc = dcp_flat_act_agree(&act, rc, &why);
    if (!rc) {
        const struct dcp_load_options ours = { .step = given.step,
                                               .only_model = given.only_model,
                                               .with_optimizer = given.with_optimizer,
                                               .allow_cast = given.allow_cast,
                                               .no_verify = given.no_verify };
        rc = dcp_load(&act.ctx, &ours, &held.state, &result, &why);
    }
    dcp_flat_act_end(&act);
    dcp_flat_held_free(&held);
    if (rc) {
        free(loaded);
        return dcp_flat_fail(err, rc, &why);
    }
    loaded->catalog = result.catalog;
    *out_loaded = loaded;
    const struct dcp_flat_load_result told = { .step = result.step,
                                               .world_size = result.world_size,
                                               .size_bytes = result.size_bytes,
                                               .n_tensors = result.n_tensors,
                                               .n_unproved = result.n_unproved };
    dcp_flat_give(out_result, &told, sizeof told);
    return DCP_OK;
}

int32_t dcp_flat_rewind(const struct dcp_flat_load_options *options,
                        const struct dcp_flat_comm *comm, struct dcp_flat_error *err)
{
    struct dcp_flat_load_options given;
    struct dcp_error why = { 0 };
    struct dcp_flat_act act;

    dcp_flat_take(&given, sizeof given, options);
    int rc = begin(&act, &given, comm, &why);
    rc = dcp_flat_act_agree(&act, rc, &why);
    if (!rc)
        rc = dcp_supersede(&act.ctx, given.step, &why);
    dcp_flat_act_end(&act);
    return dcp_flat_fail(err, rc, &why);
}

int32_t dcp_flat_loaded_object(struct dcp_flat_loaded *loaded, uint64_t i,
                               struct dcp_flat_object *out)
{
    return dcp_flat_tell_object(loaded->catalog, i, out);
}

void dcp_flat_loaded_free(struct dcp_flat_loaded *loaded)
{
    if (!loaded)
        return;
    dcp_catalog_free(loaded->catalog);
    free(loaded);
}
