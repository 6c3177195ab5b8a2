#include "resume.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include "batch.h"
#include "cli/human.h"
#include "cli/source.h"
#include "learned.h"
#include "trainer/state/compare.h"
#include <dcp/delta.h>
#include <dcp/reshard.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum resume_kind { RESUME_AUTO, RESUME_NEVER, RESUME_STEP, RESUME_PATH };

/* --resume, read: "auto", "never", a number, or else a path. NULL is auto. */
static enum resume_kind parse_resume(const char *text, int64_t *out_step)
{
    *out_step = -1;
    if (!text || !strcmp(text, "auto"))
        return RESUME_AUTO;
    if (!strcmp(text, "never"))
        return RESUME_NEVER;
    return dcp_str_parse_i64(text, out_step) && *out_step >= 0 ? RESUME_STEP
                                                               : RESUME_PATH;
}

/* Where a checkpoint is. */
struct origin {
    struct dcp_store store; /* ops NULL: that of the run */
    char *name;             /* of the step or file in the store */
    const char *format;     /* NULL: native */
    bool newest;            /* an older step may take its place when it is corrupt */
};

static void origin_fini(struct origin *origin)
{
    if (origin->store.ops)
        dcp_store_free(&origin->store);
    free(origin->name);
    *origin = (struct origin){ .name = NULL };
}

static struct dcp_context context_of(const struct run *run, const struct origin *origin)
{
    struct dcp_context ctx = run->ctx;
    if (origin->store.ops)
        ctx.store = &origin->store;
    return ctx;
}

static int keep_name(struct origin *origin, const char *name, struct dcp_error *err)
{
    origin->name = strdup(name);
    return origin->name ? DCP_OK : dcp_error_memory(err, "the name of a step");
}

/* A step of a run folder. */
static int find_step(const struct run *run, struct origin *origin, int64_t step,
                     struct dcp_error *err)
{
    struct dcp_context ctx = context_of(run, origin);
    struct dcp_step found;
    int rc = dcp_find(&ctx, step, &found, err);
    origin->newest = step < 0;
    return rc ? rc : keep_name(origin, found.name, err);
}

/* The newest step to be had in which training had not diverged, or -1. Collective. */
static int find_finite(const struct run *run, int64_t *out_step, struct dcp_error *err)
{
    struct dcp_comm *comm = &run->join->comm;
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0;
    int rc = comm->rank ? DCP_OK : dcp_steps(&run->store, &steps, &n, NULL, err);
    *out_step = -1;
    for (size_t i = 0; i < n && *out_step < 0; i++)
        if ((steps[i].complete || steps[i].recoverable) && !steps[i].diverged)
            *out_step = steps[i].step;
    rc = dcp_agree(comm, rc, err);
    return rc ? rc : dcp_comm_bcast(comm, out_step, sizeof *out_step, 0, err);
}

/* What "auto" goes on from: the newest step. From NaN nothing is learned any more, so
 * where it diverged, the newest that did not, if there is one. Collective. */
static int find_auto(const struct run *run, struct origin *origin, struct dcp_error *err)
{
    struct dcp_step newest;
    int64_t step = -1;
    DCP_TRY(dcp_find(&run->ctx, -1, &newest, err));
    if (newest.diverged)
        DCP_TRY(find_finite(run, &step, err));
    origin->newest = step < 0;
    if (origin->newest)
        return keep_name(origin, newest.name, err);
    dcp_log_write(&run->log, DCP_LOG_WARN,
                  "step %" PRId64 " diverged: its weights or its loss are not finite; "
                  "step %" PRId64 " is resumed, the newest that did not",
                  newest.step, step);
    return find_step(run, origin, step, err);
}

/* A file of a known format, or an archive of a checkpoint. */
static int open_file(const struct run *run, struct origin *origin, const char *path,
                     struct dcp_error *err)
{
    struct dcp_location place;
    DCP_TRY(dcp_source_open(run->main, path, &place, err));
    origin->format = "auto";
    int rc = keep_name(origin, place.source.name, err);
    dcp_location_unpin(&place); /* dcp_load pins it itself */
    origin->store = *place.store;
    *place.store = (struct dcp_store){ .ops = NULL };
    dcp_location_close(&place);
    return rc;
}

/* Files of foreign formats may be links. What cannot be read says so when it is loaded.
 */
static void allow_links(struct origin *origin)
{
    const struct dcp_source source = { &origin->store, origin->name, true };
    const struct dcp_format *format;
    dcp_format_probe_links(&origin->store, &source, &format, NULL);
}

/* The folder that holds a folder, and its name there. */
static int open_beside(const struct run *run, struct origin *origin, const char *path,
                       struct dcp_error *err)
{
    char *dir = NULL;
    origin_fini(origin);
    if (!dcp_fs_split(path, &dir, &origin->name))
        return dcp_error_memory(err, "a path");
    origin->format = "auto";
    int rc = dcp_store_delta_dir(&origin->store, dir, false, err);
    origin->store.max_header_bytes = run->main->max_header_bytes;
    if (!rc)
        allow_links(origin);
    if (!rc)
        rc = dcp_delta_check_small(&origin->store, origin->name, err);
    free(dir);
    return rc;
}

/* A run folder, a step, or any file or folder of a known format. */
static int find_path(const struct run *run, struct origin *origin, const char *path,
                     struct dcp_error *err)
{
    struct dcp_comm *comm = &run->join->comm;
    DCP_CLEANUP_FREE char *real = realpath(path, NULL);
    struct dcp_error none = { 0 };
    int rc =
        real ? DCP_OK : dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", path);
    bool dir = real && dcp_fs_is_dir(real);
    if (rc && err)
        dcp_source_hint(path, err);
    if (!rc)
        rc = dir ? dcp_store_delta_dir(&origin->store, real, false, err)
                 : open_file(run, origin, real, err);
    origin->store.max_header_bytes = run->main->max_header_bytes;
    rc = dcp_agree(comm, rc, err);
    if (rc || !dir)
        return rc;
    rc = find_step(run, origin, -1, &none);
    if (rc == DCP_E_NOT_FOUND)
        return dcp_agree(comm, open_beside(run, origin, real, err), err);
    if (rc && err)
        *err = none;
    return rc;
}

/* What is loaded: an older step may take the place of the newest one, but not of one
 * whose signature was checked. */
static const char *name_of(const struct run *run, const struct origin *origin)
{
    return origin->newest && !run->main->trusted ? NULL : origin->name;
}

/* Collective: rank 0 reads the files. */
static int trust(const struct run *run, const struct origin *origin,
                 struct dcp_error *err)
{
    struct dcp_context ctx = context_of(run, origin);
    const struct dcp_source source = { ctx.store, origin->name, true };
    int rc = run->join->rank ? DCP_OK
                             : dcp_source_trust(run->main, &source, origin->name, err);
    return run->main->trusted ? dcp_agree(&run->join->comm, rc, err) : DCP_OK;
}

/* The tensors and objects of a checkpoint that is trusted, nothing of its data.
 * Collective. */
static int read_catalog(const struct run *run, const struct origin *origin,
                        struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    struct dcp_context ctx = context_of(run, origin);
    struct dcp_load_options options = { .name = name_of(run, origin),
                                        .step = -1,
                                        .format = origin->format };
    struct dcp_state nothing = { .layout = "replicated" };
    struct dcp_load_result result;
    int rc = trust(run, origin, err);
    if (!rc)
        rc = dcp_load(&ctx, &options, &nothing, &result, err);
    *out_catalog = rc ? NULL : result.catalog;
    return rc;
}

/* Weights and masters that the checkpoint does not have come from each other. */
static int complete(struct run *run, const struct state_want *want, struct dcp_error *err)
{
    shard_touch(run->shard);
    if (!shard_has_master(run->shard))
        return DCP_OK;
    if (!want->weights)
        return shard_spread(run->shard, err);
    return want->master ? DCP_OK
                        : dcp_agree(&run->join->comm, shard_raise(run->shard, err), err);
}

/* Fills the state from what the catalog says is there. Collective. */
static int fill(struct run *run, const struct origin *origin,
                const struct dcp_catalog *catalog, bool moments, struct state_want *want,
                struct dcp_load_result *out_result, struct dcp_error *err)
{
    struct dcp_comm *comm = &run->join->comm;
    struct dcp_context ctx = context_of(run, origin);
    struct dcp_load_options options = { .name = name_of(run, origin),
                                        .step = -1,
                                        .format = origin->format,
                                        .with_optimizer = moments,
                                        .allow_cast = true };
    struct state state;
    int rc = state_init_load(&state, run->shard, run->model, catalog, moments, want, err);
    rc = dcp_agree(comm, rc, err);
    if (rc)
        return rc;
    rc = dcp_load(&ctx, &options, &state.dcp, out_result, err);
    state_fini(&state);
    if (!rc)
        rc = complete(run, want, err);
    return rc;
}

/* Warns of what makes the continuation another run than the one that was saved. */
static void compare(const struct run *run, const struct dcp_catalog *catalog,
                    const struct state_progress *saved, uint64_t seed, int seq_len)
{
    if (!run->train)
        return;
    state_compare(catalog, &run->settings, &run->log);
    if (seq_len != run->settings.seq_len)
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "data.seq_len was %d and is %d: samples are other ones now",
                      seq_len, run->settings.seq_len);
    else if (seed != run->settings.seed)
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "the seed was %" PRIu64 " and is %" PRIu64
                      ": samples come in another order now",
                      seed, run->settings.seed);
    else if (saved->data_digest != run->at.data_digest)
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "the training data have changed: some samples may be seen twice, "
                      "others never");
}

/* Takes over where training was. */
static int take_progress(struct run *run, const struct dcp_catalog *catalog,
                         struct dcp_error *err)
{
    struct state_progress saved = run->at;
    uint64_t seed = run->settings.seed;
    int seq_len = run->settings.seq_len;
    DCP_TRY(state_read_progress(catalog, &saved, &seed, &seq_len, err));
    compare(run, catalog, &saved, seed, seq_len);
    saved.data_digest = run->at.data_digest;
    if (!loss_scale_is_dynamic(&run->settings.loss_scale))
        saved.loss_scale = run->at.loss_scale;
    run->at = saved;
    return DCP_OK;
}

/* What is resumed from elsewhere is of the run that the folder holds, if it holds any:
 * else steps of two runs would stand in one line. Collective. */
static int check_guest(struct run *run, const struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    struct dcp_lineage guest;
    struct dcp_step newest;
    int rc = run_open_store(run, false, &why);
    if (!rc)
        rc = dcp_find(&run->ctx, -1, &newest, &why);
    if (rc == DCP_E_NOT_FOUND || rc == DCP_E_CORRUPT) /* nothing is there to go on with */
        return DCP_OK;
    if (rc) {
        if (err)
            *err = why;
        return rc;
    }
    dcp_lineage_read(catalog, &guest);
    if (guest.run && guest.run == newest.lineage.run)
        return DCP_OK;
    dcp_error_set(err, DCP_E_EXISTS, "'%s' holds steps of another run than '%s'",
                  run->settings.checkpoint_dir, run->options->resume);
    dcp_error_hint(err, "train into another folder (--set checkpoint.dir=run2), or go on "
                        "with what is there: --resume auto");
    return dcp_agree(&run->join->comm, DCP_E_EXISTS, err);
}

/* What is saved next comes after what was resumed. */
static int begin_lineage(struct run *run, const struct dcp_catalog *resumed,
                         struct dcp_error *err)
{
    struct dcp_lineage *lineage = &run->at.lineage;
    struct dcp_lineage before = { .run = 0 };
    if (resumed)
        dcp_lineage_read(resumed, &before);
    *lineage = (struct dcp_lineage){ .run = before.run, .parent = -1 };
    if (resumed && run->at.step > 0) {
        lineage->parent = run->at.step;
        lineage->fingerprint = dcp_state_fingerprint(resumed);
    }
    while (!lineage->run)
        DCP_TRY(dcp_random(&lineage->run, sizeof lineage->run, err));
    return DCP_OK;
}

static void warn_of_divergence(const struct run *run, const struct dcp_catalog *catalog)
{
    if (catalog->diverged)
        dcp_log_write(
            &run->log, DCP_LOG_WARN,
            "the resumed step had diverged when it was saved: its weights or its loss "
            "are not finite, and what is trained from it may not be either");
}

/* Loads weights, and unless they are all that is wanted the rest. Collective. */
static int load(struct run *run, const struct origin *origin, bool moments,
                struct resume_result *out, struct dcp_error *err)
{
    struct dcp_comm *comm = &run->join->comm;
    struct dcp_load_result result = { 0 };
    struct dcp_catalog *catalog;
    struct state_want want;
    int rc = read_catalog(run, origin, &catalog, err);
    if (rc)
        return rc;
    rc = dcp_agree(comm, state_check_model(catalog, &run->settings.model, err), err);
    if (!rc && moments && origin->store.ops)
        rc = check_guest(run, catalog, err);
    if (!rc && moments)
        rc = learned_check(run, origin->name[0] ? origin->name : run->options->resume,
                           catalog, err);
    if (!rc && moments)
        rc = dcp_agree(comm, batch_keep(run, catalog, run->join->world_size, err), err);
    if (!rc)
        rc = fill(run, origin, catalog, moments, &want, &result, err);
    dcp_catalog_free(catalog);
    if (rc)
        return rc;
    if (moments)
        rc = take_progress(run, result.catalog, err);
    if (!rc && moments)
        rc = begin_lineage(run, result.catalog, err);
    rc = dcp_agree(comm, rc, err);
    if (!want.moments)
        run->at.updates = 0;
    if (!rc && moments && !want.moments)
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "the checkpoint has no optimizer moments: they start from zero");
    if (!rc && result.n_unproved)
        run_say(run, "%zu of %zu tensors that were read have no digest to check",
                result.n_unproved, result.n_tensors);
    if (!rc && moments)
        warn_of_divergence(run, result.catalog);
    *out = (struct resume_result){ .resumed = true,
                                   .step = result.step,
                                   .saved = -1,
                                   .fingerprint = dcp_state_fingerprint(result.catalog),
                                   .world_size = result.world_size,
                                   .read_s = result.read_s };
    for (size_t t = 0; t < result.catalog->n_tensors; t++)
        out->size_bytes += dcp_tensor_bytes(&result.catalog->tensors[t]);
    dcp_catalog_free(result.catalog);
    return rc;
}

/* The beginning: initial values, or another model's weights. Collective. */
static int start_new(struct run *run, struct dcp_error *err)
{
    struct origin origin = { .name = NULL };
    struct resume_result result;
    const char *path = run->settings.model_init;
    int rc = begin_lineage(run, NULL, err);
    if (!rc && !path)
        rc = shard_init(run->shard, run->settings.seed, err);
    rc = dcp_agree(&run->join->comm, rc, err);
    if (rc || !path)
        return rc;
    rc = find_path(run, &origin, path, err);
    if (!rc)
        rc = load(run, &origin, false, &result, err);
    origin_fini(&origin);
    if (rc) {
        dcp_error_prefix(err, "model.init '%s'", path);
        return rc;
    }
    run_say(run, "weights from %s, %s", path, dcp_human_size(result.size_bytes).text);
    return DCP_OK;
}

/* "never" means a new run: an old one in the folder would be in the way of every save.
 * Collective. */
static int check_empty(struct run *run, struct dcp_error *err)
{
    struct origin origin = { .name = NULL };
    struct dcp_error none = { 0 };
    int rc = find_step(run, &origin, -1, &none);
    origin_fini(&origin);
    if (rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (rc == DCP_E_COMM) {
        if (err)
            *err = none;
        return rc;
    }
    dcp_error_set(err, DCP_E_EXISTS, "'%s' holds steps of an earlier run already",
                  run->settings.checkpoint_dir);
    dcp_error_hint(err, "train into another folder (--set checkpoint.dir=run2), or "
                        "resume, or remove it");
    return dcp_agree(&run->join->comm, DCP_E_EXISTS, err);
}

static void tell(const struct run *run, const struct resume_result *result)
{
    char saved_by[48] = "";
    const char *s = run->join->world_size == 1 ? "" : "s";
    if (result->step < 0) { /* a model of another format */
        run_say(run, "weights from %s, %s", run->options->resume,
                dcp_human_size(result->size_bytes).text);
        return;
    }
    snprintf(saved_by, sizeof saved_by, "%d rank%s", result->world_size,
             result->world_size == 1 ? "" : "s");
    run_say(run, "resumed step %" PRId64 " (saved by %s) on %d rank%s in %s, %s",
            result->step, saved_by, run->join->world_size, s,
            dcp_human_time(result->read_s).text, dcp_human_size(result->size_bytes).text);
}

/* The checkpoint to take up; *out_fresh: there is none, and none was asked for. */
static int find_origin(struct run *run, struct origin *origin, bool weights_only,
                       bool *out_fresh, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int64_t step;
    enum resume_kind kind = parse_resume(run->options->resume, &step);
    bool may_begin = kind == RESUME_NEVER || (kind == RESUME_AUTO && !weights_only);
    int rc = DCP_OK;
    if (kind == RESUME_PATH)
        rc = find_path(run, origin, run->options->resume, &why);
    else if (kind != RESUME_NEVER || !weights_only)
        rc = run_open_store(run, false, &why);
    if (!rc && kind == RESUME_NEVER && !weights_only)
        rc = check_empty(run, &why);
    else if (!rc && kind == RESUME_AUTO && !weights_only)
        rc = find_auto(run, origin, &why);
    else if (!rc && (kind == RESUME_AUTO || kind == RESUME_STEP))
        rc = find_step(run, origin, step, &why);
    bool nothing = rc == DCP_E_NOT_FOUND && may_begin;
    *out_fresh = nothing || (!rc && kind == RESUME_NEVER);
    if (rc && !nothing && err)
        *err = why;
    return nothing ? DCP_OK : rc;
}

/* What comes after the resumed state is done anew, and steps of it are superseded: with
 * them, unless it is that very state, the folder's own step of that number. */
static int clear_the_way(struct run *run, bool own, struct resume_result *result,
                         struct dcp_error *err)
{
    struct dcp_error none = { 0 };
    struct dcp_step there;
    int64_t step = own ? result->step : run->at.step;
    int rc = own ? DCP_OK : dcp_find(&run->ctx, step, &there, &none);
    if (rc == DCP_E_COMM || rc == DCP_E_MEMORY) {
        if (err)
            *err = none;
        return rc;
    }
    bool same = own || (!rc && there.complete && result->fingerprint &&
                        there.fingerprint == result->fingerprint);
    result->saved = same ? step : -1;
    return dcp_supersede(&run->ctx, same ? step : step - 1, err);
}

int resume_run(struct run *run, bool weights_only, struct resume_result *out_result,
               struct dcp_error *err)
{
    struct origin origin = { .name = NULL };
    bool fresh;
    *out_result = (struct resume_result){ .step = -1, .saved = -1 };
    int rc = find_origin(run, &origin, weights_only, &fresh, err);
    if (!rc && fresh)
        rc = start_new(run, err);
    else if (!rc)
        rc = load(run, &origin, !weights_only, out_result, err);
    bool own = !fresh && !origin.store.ops;
    origin_fini(&origin);
    if (!rc && !run->store.ops && !weights_only)
        rc = run_open_store(run, true, err);
    if (!rc && !fresh && !weights_only)
        rc = clear_the_way(run, own, out_result, err);
    if (!rc && out_result->resumed)
        tell(run, out_result);
    return rc;
}

int resume_again(struct run *run, struct resume_result *out_result, struct dcp_error *err)
{
    struct origin origin = { .name = NULL };
    int64_t step;
    *out_result = (struct resume_result){ .step = -1, .saved = -1 };
    parse_resume(run->options->resume, &step);
    int rc = run_open_store(run, false, err);
    if (!rc)
        rc = find_step(run, &origin, step, err);
    if (!rc)
        rc = load(run, &origin, true, out_result, err);
    origin_fini(&origin);
    if (!rc)
        tell(run, out_result);
    return rc;
}

/* As load, without its tensors. */
static int look_at(struct run *run, const struct origin *origin, bool moments,
                   int64_t *out_step, struct dcp_error *err)
{
    struct dcp_catalog *catalog;
    int rc = read_catalog(run, origin, &catalog, err);
    if (rc)
        return rc;
    rc = state_check_model(catalog, &run->settings.model, err);
    rc = dcp_agree(&run->join->comm, rc, err);
    if (!rc && moments && origin->store.ops)
        rc = check_guest(run, catalog, err);
    if (!rc && moments)
        rc = learned_check(run, origin->name[0] ? origin->name : run->options->resume,
                           catalog, err);
    if (!rc && moments)
        warn_of_divergence(run, catalog);
    if (!rc && moments)
        rc = batch_keep(
            run, catalog,
            run->options->ranks ? (int)run->options->ranks : run->join->world_size, err);
    *out_step = catalog->step;
    dcp_catalog_free(catalog);
    return rc;
}

int resume_look(struct run *run, struct resume_look *out_look, struct dcp_error *err)
{
    struct origin origin = { .name = NULL };
    const char *init = run->settings.model_init, *root;
    bool fresh;
    *out_look = (struct resume_look){ .step = -1 };
    int rc = find_origin(run, &origin, false, &fresh, err);
    out_look->found = !rc && !fresh;
    bool begins = !rc && fresh && init;
    if (begins)
        rc = find_path(run, &origin, init, err);
    if (!rc && origin.name) {
        rc = look_at(run, &origin, !fresh, &out_look->step, err);
        root = origin.store.ops ? origin.store.root : run->store.root;
        snprintf(out_look->what, sizeof out_look->what, "%s/%s", root, origin.name);
    }
    if (rc && begins)
        dcp_error_prefix(err, "model.init '%s'", init);
    origin_fini(&origin);
    return rc;
}
