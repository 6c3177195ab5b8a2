#include "train.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "cli/human.h"
#include "eval.h"
#include "metrics.h"
#include "outcome.h"
#include "resume.h"
#include "saving.h"
#include "step.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct train {
    struct run *run;
    struct saving saving;
    struct metrics *metrics; /* rank 0 */
    uint64_t n_unwritten;    /* steps before this one without a line */
    double loss;             /* of the last step; NaN before the first */
    uint64_t received_bytes; /* until the end of the last step */
    struct step step;
};

/* --- what is told --- */

static void fill_metrics(struct train *t, struct metrics_step *m)
{
    const struct run *run = t->run;
    struct shard_bytes bytes;
    uint64_t received = run->join->coll.received_bytes + run->coll.received_bytes;
    shard_memory(run->shard, &bytes);
    m->step = run->at.step;
    m->samples = run->at.samples;
    m->tokens = run->at.tokens;
    m->weight_bytes = bytes.weights;
    m->gradient_bytes = bytes.gradients;
    m->optimizer_bytes = bytes.optimizer;
    m->state_bytes = bytes.weights + bytes.gradients + bytes.optimizer;
    m->peak_rss_bytes = metrics_peak_rss();
    m->received_bytes = received - t->received_bytes;
    t->received_bytes = received;
    m->world_size = run->join->world_size;
    m->stage = run->settings.stage;
}

/* "90.0 k", "1.25 M" */
static void scaled(char *out, size_t cap, double v)
{
    static const char *const units[] = { "", " k", " M", " G" };
    int u = 0;
    for (; v >= 999.5 && u < 3; u++)
        v /= 1000;
    snprintf(out, cap, "%.*f%s",
             u == 0 || v >= 99.95 ? 0
             : v >= 9.995         ? 1
                                  : 2,
             v, units[u]);
}

static void tell(const struct train *t, const struct metrics_step *m)
{
    const struct run *run = t->run;
    const struct settings *s = &run->settings;
    char label[64], rate[32], val[32] = "";
    bool last = m->step == s->steps;
    if (s->steps_per_print > 1 && m->step % s->steps_per_print && !last &&
        isnan(m->val_loss))
        return;
    if (s->steps > 0)
        snprintf(label, sizeof label, "step %" PRId64 "/%" PRId64, m->step, s->steps);
    else
        snprintf(label, sizeof label, "step %" PRId64, m->step);
    scaled(rate, sizeof rate,
           (double)(s->train_batch_size * s->seq_len) / (m->step_s > 0 ? m->step_s : 1));
    if (!isnan(m->val_loss))
        snprintf(val, sizeof val, "  val %.4f", m->val_loss);
    run_say(run, "%-16s loss %.4f  norm %.2f  lr %.3g  %s  %s tok/s%s", label, m->loss,
            m->grad_norm, m->lr, dcp_human_time(m->step_s).text, rate, val);
}

/* A full disk does not end training; each step tries again. */
static void write_metrics(struct train *t, const struct metrics_step *m)
{
    struct dcp_error err = { 0 };
    if (!t->metrics)
        return;
    int rc = metrics_write(t->metrics, m, &err);
    if (rc && !t->n_unwritten++)
        dcp_log_write(&t->run->log, DCP_LOG_WARN,
                      "the metrics of step %" PRId64 " are lost; training continues: %s",
                      m->step, err.message);
    if (rc || !t->n_unwritten)
        return;
    dcp_log_write(&t->run->log, DCP_LOG_WARN,
                  "metrics are written again from step %" PRId64
                  " on; those of the %" PRIu64 " before it are lost",
                  m->step, t->n_unwritten);
    t->n_unwritten = 0;
}

/* --- the loop --- */

/* One step and all that is due after it. */
static int one_step(struct train *t, struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    struct metrics_step m = { .val_loss = NAN };
    double begin_s = dcp_clock_s();
    int rc = step_train(&t->step, &m, err);
    t->loss = rc ? t->loss : m.loss;
    m.step_s = dcp_clock_s() - begin_s;
    t->saving.diverged = !isfinite(m.loss);
    t->saving.learned |= m.lr > 0 && t->step.n_skipped == 0;
    bool last = run->at.step == s->steps || t->step.stop;
    if (!rc && run->val && s->eval_every &&
        (run->at.step % s->eval_every == 0 || run->at.step == s->steps))
        rc = eval_loss(run, &m.val_loss, NULL, err);
    if (!rc && s->save_every && run->at.step % s->save_every == 0 && !last)
        rc = saving_start(&t->saving, err);
    else if (!rc)
        rc = saving_poll(&t->saving, err);
    if (rc)
        return rc;
    fill_metrics(t, &m);
    tell(t, &m);
    if (last) /* its stall belongs to this step */
        rc = saving_finish(&t->saving, err);
    m.save_stall_s = saving_stall(&t->saving);
    write_metrics(t, &m);
    return rc;
}

static int loop(struct train *t, struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    int rc = DCP_OK;
    bool trained = false;
    double begin_s = dcp_clock_s();
    while (!rc && !t->step.stop && (s->steps == 0 || run->at.step < s->steps)) {
        rc = one_step(t, err);
        trained = true;
    }
    if (trained)
        dcp_log_write(
            &run->log, DCP_LOG_INFO, "%.1f s of %.1f s were spent waiting in collectives",
            run->join->coll.seconds + run->coll.seconds, dcp_clock_s() - begin_s);
    else if (!rc)
        run_say(run, "step %" PRId64 " has already been reached", run->at.step);
    if (!rc)
        rc = saving_finish(&t->saving, err);
    if (rc || !t->step.stop || run->at.step == s->steps)
        return rc;
    dcp_error_set(err, DCP_E_STOPPED, "stopped after step %" PRId64 ", which is saved",
                  run->at.step);
    dcp_error_hint(err, "the same command with --resume auto goes on");
    return DCP_E_STOPPED;
}

/* What a survivor has to say: who, when, and what is left. */
static void explain_death(const struct run *run, struct dcp_error *err)
{
    struct dcp_step *steps = NULL;
    size_t n = 0, complete = 0;
    int rank = err->rank, state = err->rank_state;
    char how[160], left[64] = "no step was saved";
    if (rank < 0 || state == DCP_RANK_UNKNOWN)
        return;
    snprintf(how, sizeof how, "rank %d %s during step %" PRId64, rank,
             state == DCP_RANK_DEAD ? "died" : "does not answer", run->at.step + 1);
    if (!dcp_steps(&run->store, &steps, &n, NULL, NULL)) {
        while (complete < n && !steps[complete].complete)
            complete++;
        if (complete < n)
            snprintf(left, sizeof left, "step %" PRId64 " is complete",
                     steps[complete].step);
    }
    free(steps);
    *err = (struct dcp_error){ 0 };
    dcp_error_set(err, DCP_E_COMM, "%s; %s", how, left);
    dcp_error_hint(err, "run again with --resume auto");
    err->rank = rank;
    err->rank_state = state;
}

/* What waits elsewhere, and where. */
static void announce_offload(const struct run *run, const struct shard_bytes *bytes)
{
    const struct settings *s = &run->settings;
    bool weights = s->swap_weights || s->swap_param.host,
         optimizer = s->swap_optimizer || s->swap_optim.host,
         files = s->swap_weights || s->swap_optimizer;
    const char *what = weights && optimizer ? "weights, gradients and optimizer"
                       : weights            ? "weights"
                                            : "gradients and optimizer";
    if ((weights || optimizer) && !bytes->host && !files)
        run_say(run,
                "offload to the CPU: weights and optimizer are in host memory already");
    else if (bytes->host && !files)
        run_say(run, "offload to the CPU: %s a rank, of %s",
                dcp_human_size(bytes->host).text, what);
    if (bytes->swapped)
        run_say(run, "offload to disk: %s a rank, of %s in %s",
                dcp_human_size(bytes->swapped).text,
                s->swap_weights && s->swap_optimizer ? "weights, gradients and optimizer"
                : s->swap_weights                    ? "weights"
                                                     : "gradients and optimizer",
                s->swap_optimizer ? s->swap_optim.path : s->swap_param.path);
}

/* Whoever has no GPU need not be told so; the driver's folder says that there is one. */
#define DRIVER "/proc/driver/nvidia"

static void announce(const struct train *t)
{
    const struct run *run = t->run;
    const struct settings *s = &run->settings;
    struct shard_bytes bytes;
    int world_size = run->join->world_size;
    shard_memory(run->shard, &bytes);
    run_say(run, "%s, %s parameters in %s, %s", s->model.family,
            dcp_human_count((uint64_t)shard_n_elems(run->shard)).text,
            settings_precision(s), run->compute.name);
    if (run->compute.why[0] && (dcp_fs_exists(DRIVER) || run->main->verbose > 0))
        run_say(run, "on the CPU: %s", run->compute.why);
    announce_offload(run, &bytes);
    run_say(run, "ZeRO stage %d on %d rank%s, %s a rank", s->stage, world_size,
            world_size == 1 ? "" : "s",
            dcp_human_size(bytes.weights + bytes.gradients + bytes.optimizer +
                           (bytes.host ? 0 : bytes.buffers))
                .text);
}

/* No other run may change the folder from here on. Where there is none yet, nothing is
 * made before it is known that this run can begin. */
static int hold_folder(struct run *run, struct dcp_error *err)
{
    struct dcp_error why = { 0 };
    int rc = run_open_store(run, false, &why);
    if (rc == DCP_E_NOT_FOUND)
        return DCP_OK;
    if (!rc)
        rc = run_hold_store(run, &why);
    if (rc && err)
        *err = why;
    return rc;
}

/* Weights to begin with mean nothing to a run that has begun. */
static void warn_of_init(const struct run *run, const struct resume_result *resumed)
{
    const char *init = run->settings.model_init;
    if (init && resumed->resumed)
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "model.init '%s' is ignored: the run continues from its "
                      "checkpoint; --set checkpoint.dir=OTHER starts a new one",
                      init);
}

static int open_metrics(struct train *t, struct dcp_error *err)
{
    int rc = DCP_OK;
    if (t->run->join->rank == 0)
        rc = metrics_open(t->run->settings.checkpoint_dir, &t->metrics, err);
    return dcp_agree(&t->run->join->comm, rc, err);
}

int train_run(struct run *run, struct dcp_error *err)
{
    struct train t = { .run = run, .loss = NAN };
    struct resume_result resumed = { 0 };
    double begin_s = dcp_clock_s();
    announce(&t);
    int rc = hold_folder(run, err);
    if (!rc)
        rc = resume_run(run, false, &resumed, err);
    if (!rc) /* what is resumed may tell the batch */
        rc = dcp_agree(&run->join->comm, step_init(&t.step, run, err), err);
    if (!rc) {
        warn_of_init(run, &resumed);
        rc = run_hold_store(run, err);
    }
    if (!rc)
        rc = open_metrics(&t, err);
    if (!rc)
        rc = saving_init(&t.saving, run, resumed.saved, err);
    if (!rc)
        rc = loop(&t, err);
    if (!rc) {
        rc = outcome_print(&(struct outcome){ .run = run,
                                              .resumed = &resumed,
                                              .saved_step = t.saving.last,
                                              .loss = t.loss,
                                              .seconds = dcp_clock_s() - begin_s },
                           err);
        rc = dcp_agree(&run->join->comm, rc, err);
    }
    if (rc == DCP_E_COMM && err && run->store.ops)
        explain_death(run, err);
    saving_fini(&t.saving);
    metrics_close(t.metrics);
    step_fini(&t.step);
    return rc;
}
