/* save, load: a step of a run, from the memory of many ranks and back. */
#include "state.h"

#include "base/mem.h"
#include <dcp/delta.h>
#include <stdlib.h>
#include <string.h>

struct dcp_flat_loaded {
    struct dcp_catalog *catalog;
};

struct sink {
    void (*log)(void *self, int32_t level, const char *message);
    void *self;
};

static void write_log(void *self, enum dcp_log_level level, const char *message)
{
    const struct sink *sink = self;

    sink->log(sink->self, (int32_t)level, message);
}

/* What an act of all ranks works with. What is missing on one rank ends it on all. */
struct act {
    struct sink sink;
    struct dcp_log log;
    struct dcp_flat_talk talk;
    struct dcp_flat_held held;
    struct dcp_store store;
    struct dcp_context ctx;
};

static int begin(struct act *act, const struct dcp_flat_comm *comm,
                 const struct dcp_flat_state *state, const char *path, bool create,
                 int threads, struct dcp_error *err)
{
    int rc = dcp_flat_talk_make(comm, &act->talk, err);

    if (rc) /* there is nobody to agree with */
        return rc;
    rc = path ? dcp_flat_held_make(state, &act->held, err)
              : dcp_error_set(err, DCP_E_USAGE, "there is no folder of a run");
    if (!rc)
        rc = create ? dcp_store_dir(&act->store, path, true, err)
                    : dcp_store_delta_dir(&act->store, path, false, err);
    act->log = (struct dcp_log){ write_log, &act->sink, DCP_LOG_WARN };
    act->ctx = (struct dcp_context){ .comm = &act->talk.comm,
                                     .store = &act->store,
                                     .log = act->sink.log ? &act->log : NULL,
                                     .threads = threads };
    return dcp_agree(&act->talk.comm, rc, err);
}

static void end(struct act *act)
{
    dcp_store_free(&act->store);
    dcp_flat_held_free(&act->held);
}

int32_t dcp_flat_save(const struct dcp_flat_save_options *options,
                      const struct dcp_flat_comm *comm,
                      const struct dcp_flat_state *state,
                      struct dcp_flat_save_result *out_result, struct dcp_flat_error *err)
{
    struct dcp_flat_save_options given;
    struct dcp_save_result result = { 0 };
    struct dcp_error why = { 0 };

    dcp_flat_take(&given, sizeof given, options);
    struct act act = { .sink = { given.log, given.self } };
    int codec = given.codec ? dcp_codec_parse(given.codec) : DCP_CODEC_NONE;
    int rc = begin(&act, comm, state, given.path, true, given.threads, &why);
    if (!rc && codec < 0) /* as on all ranks */
        rc = dcp_error_set(&why, DCP_E_USAGE, "there is no codec '%s'", given.codec);
    if (!rc) {
        const struct dcp_save_options ours = {
            .step = given.step,
            .codec = (enum dcp_codec)codec,
            .keep = given.keep,
            .keep_every = given.keep_every,
            .keep_optimizer = given.keep_optimizer,
            .parity = given.parity,
            .verify_after_save = given.verify_after_save,
            .diverged = given.diverged,
        };
        rc = dcp_save(&act.ctx, &ours, &act.held.state, &result, &why);
    }
    end(&act);
    const struct dcp_flat_save_result told = {
        .step = result.step,
        .fingerprint = result.fingerprint,
        .size_bytes = result.size_bytes,
        .diverged = result.diverged,
        .stale = result.stale,
        .write_s = result.write_s,
    };
    dcp_flat_give(out_result, &told, sizeof told);
    return dcp_flat_fail(err, rc, &why);
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
    struct act act = { .sink = { given.log, given.self } };
    struct dcp_flat_loaded *loaded = calloc(1, sizeof *loaded);
    int rc = begin(&act, comm, into, given.path, false, given.threads, &why);
    if (!rc)
        rc = dcp_agree(&act.talk.comm,
                       loaded ? DCP_OK : dcp_error_memory(&why, "what is loaded"), &why);
    if (!rc) {
        const struct dcp_load_options ours = { .step = given.step,
                                               .allow_cast = given.allow_cast,
                                               .no_verify = given.no_verify };
        rc = dcp_load(&act.ctx, &ours, &act.held.state, &result, &why);
    }
    end(&act);
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
