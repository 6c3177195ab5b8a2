#include "saving.h"

#include "base/clock.h"
#include "cli/human.h"
#include <inttypes.h>
#include <stdio.h>

int saving_init(struct saving *out_saving, struct run *run, int64_t last,
                struct dcp_error *err)
{
    *out_saving = (struct saving){ .run = run, .in_flight = -1, .last = last };
    report_init(&out_saving->report, run, last);
    int rc = dcp_saver_new(&run->ctx, &out_saving->saver, err);
    return dcp_agree(&run->join->comm, rc, err);
}

void saving_fini(struct saving *saving)
{
    dcp_saver_free(saving->saver);
    report_fini(&saving->report);
    *saving = (struct saving){ .run = NULL };
}

static void tell(struct saving *saving, const struct dcp_save_result *result)
{
    const struct run *run = saving->run;
    char label[32], delta[192] = "";
    double rate =
        (double)result->size_bytes / (result->write_s > 0 ? result->write_s : 1);
    snprintf(label, sizeof label, "step %" PRId64, result->step);
    if (result->base_bytes)
        snprintf(delta, sizeof delta, ", as %s: %s are the base's",
                 dcp_human_size(result->written_bytes).text,
                 dcp_human_size(result->base_bytes).text);
    run_say(run, "%-16s saved%s: %s stall, %s at %s%s", label,
            saving->in_place ? "" : " in background",
            dcp_human_time(result->stall_s).text, dcp_human_size(result->size_bytes).text,
            dcp_human_rate(rate).text, delta);
    if (result->diverged && !saving->told)
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "training has diverged: the weights or the loss of step %" PRId64
                      " are not finite; the last steps that were stay, whatever is kept",
                      result->step);
    saving->told = result->diverged;
}

/* The run goes on without this save, unless a rank is gone. */
static int forgive(struct saving *saving, int64_t step, int rc, struct dcp_error *failure,
                   struct dcp_error *err)
{
    const struct run *run = saving->run;
    if (!rc)
        return DCP_OK;
    if (rc == DCP_E_COMM) {
        if (err)
            *err = *failure;
        return rc;
    }
    dcp_log_write(&run->log, DCP_LOG_WARN,
                  "step %" PRId64 " was not saved; training continues: %s", step,
                  failure->message);
    rc = report_failed(&saving->report, step, failure, err);
    return dcp_agree(&run->join->comm, rc, err);
}

/* Begins to save the state as it is now; in place: it does not change until it is
 * saved. */
static int start(struct saving *saving, bool in_place, struct dcp_error *err)
{
    struct run *run = saving->run;
    const struct settings *s = &run->settings;
    const struct dcp_export consolidated = {
        .name = "pytorch_model.bin",
        .format = "torch",
        .dtype = s->dtype == DCP_F32 ? DCP_BF16 : (int)s->dtype, /* 16 bits */
    };
    struct dcp_save_options options = {
        .step = run->at.step,
        .codec = s->codec,
        .keep = s->keep,
        .keep_every = s->keep_every,
        .keep_optimizer = s->keep_optimizer,
        .pin_timeout_s = s->pin_timeout_s > 0 ? s->pin_timeout_s : -1,
        .parity = s->parity,
        .delta = s->delta,
        .verify_after_save = s->verify_after_save,
        .diverged = saving->diverged,
        .idle = !saving->learned,
        .in_place = in_place,
        .consolidated = s->gather_16bit_on_save ? &consolidated : NULL,
    };
    struct state state;
    int rc = run_sync(run, err);
    if (!rc)
        rc = state_init(&state, run->shard, run->model, run->join->world_size, s,
                        &run->at, err);
    rc = dcp_agree(&run->join->comm, rc, err);
    if (rc)
        return rc;
    saving->in_place = in_place;
    atomic_store(&run->kill.saving, run->at.step);
    rc = dcp_save_start(saving->saver, &options, &state.dcp, err);
    state_fini(&state);
    if (!rc) {
        saving->in_flight = run->at.step;
        saving->learned = false;
    }
    return rc;
}

/* The step that was in flight is complete: the next one comes after it. */
static void take_saved(struct saving *saving, const struct dcp_save_result *result)
{
    struct dcp_lineage *lineage = &saving->run->at.lineage;
    saving->last = result->step;
    lineage->parent = result->step;
    lineage->fingerprint = result->fingerprint;
    tell(saving, result);
    report_saved(&saving->report, result);
}

/* Ends the save in flight, well or not. */
static int wait_for(struct saving *saving, struct dcp_error *err)
{
    struct dcp_save_result result;
    if (saving->in_flight < 0)
        return DCP_OK;
    int rc = dcp_save_wait(saving->saver, &result, err);
    if (!rc)
        take_saved(saving, &result);
    saving->in_flight = -1;
    return rc;
}

static int wait_or_forgive(struct saving *saving, struct dcp_error *err)
{
    struct dcp_error failure = { 0 };
    int64_t step = saving->in_flight;
    return forgive(saving, step, wait_for(saving, &failure), &failure, err);
}

int saving_start(struct saving *saving, struct dcp_error *err)
{
    struct dcp_error failure = { 0 };
    double begin_s = dcp_clock_s();
    int rc = wait_or_forgive(saving, err);
    if (!rc)
        rc = forgive(saving, saving->run->at.step,
                     start(saving, !run_saves_aside(&saving->run->settings), &failure),
                     &failure, err);
    if (!rc && !run_saves_aside(&saving->run->settings))
        rc = wait_or_forgive(saving, err);
    saving->stall_s += dcp_clock_s() - begin_s;
    return rc;
}

int saving_poll(struct saving *saving, struct dcp_error *err)
{
    struct dcp_error failure = { 0 };
    struct dcp_save_result result;
    bool done = false;
    report_poll(&saving->report);
    if (saving->in_flight < 0)
        return DCP_OK;
    double begin_s = dcp_clock_s();
    int64_t step = saving->in_flight;
    int rc = dcp_save_poll(saving->saver, &done, &result, &failure);
    if (rc || done)
        saving->in_flight = -1;
    if (!rc && done)
        take_saved(saving, &result);
    saving->stall_s += dcp_clock_s() - begin_s;
    return forgive(saving, step, rc, &failure, err);
}

int saving_finish(struct saving *saving, struct dcp_error *err)
{
    struct run *run = saving->run;
    struct dcp_error failure = { 0 };
    double begin_s = dcp_clock_s();
    int64_t step = saving->in_flight;
    bool now = step == run->at.step; /* then its failure is the run's */
    int rc = wait_for(saving, &failure);
    if (!now)
        rc = forgive(saving, step, rc, &failure, err);
    if (!rc && saving->last != run->at.step) {
        failure = (struct dcp_error){ 0 };
        now = true;
        rc = start(saving, true, &failure);
        if (!rc)
            rc = wait_for(saving, &failure);
    }
    saving->stall_s += dcp_clock_s() - begin_s;
    if (!now || !rc)
        return rc;
    if (rc != DCP_E_COMM)
        report_failed(&saving->report, run->at.step, &failure, NULL);
    if (err)
        *err = failure;
    return rc;
}

double saving_stall(struct saving *saving)
{
    double stall_s = saving->stall_s;
    saving->stall_s = 0;
    return stall_s;
}
