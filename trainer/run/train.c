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
#include "trainer/config/schedule.h"
#include "trainer/ops/adamw.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct train {
    struct run *run;
    struct saving saving;
    struct metrics *metrics; /* rank 0 */
    uint64_t n_unwritten;    /* steps before this one without a line */
    double *losses;          /* of every micro-batch of a step */
    int64_t n_micros;        /* of all ranks in a step */
    double loss;             /* of the last step; NaN before the first */
    /* What ranks tell each other: the losses of their own, and whether to stop. */
    double *own, *told;
    int64_t *n_told; /* by each rank */
    bool stop;       /* some rank was told to */
};

/* This rank's i-th micro-batch: samples are dealt out in the order of the whole batch, so
 * they do not depend on the world size. */
static int micro_batch(struct train *t, int i, struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    int64_t micro = shard_micro(run->shard, run->join->rank, i);
    int64_t cursor = run->at.samples + micro * s->micro_batch;
    for (int b = 0; b < s->micro_batch; b++) {
        size_t at = (size_t)b * (size_t)s->seq_len;
        data_sample(run->train, cursor + b, run->tokens + at, run->targets + at);
    }
    return model_train(run->model, &run->hooks, run->tokens, run->targets, s->micro_batch,
                       s->seq_len, 1.0f / (float)t->n_micros, &t->own[i], err);
}

/* The mean loss of all micro-batches; and whether any rank was told to stop, so that all
 * stop after the same step. */
static int share_losses(struct train *t, double *out_loss, struct dcp_error *err)
{
    struct run *run = t->run;
    int n = run->settings.accumulation;
    t->own[n] = dcp_main_stopped();
    int rc = coll_all_gather(&run->join->coll, t->own, t->n_told, sizeof *t->own, t->told,
                             err);
    if (rc)
        return rc;
    t->stop = false;
    const double *told = t->told;
    for (int r = 0; r < run->join->world_size; r++, told += n + 1) {
        for (int i = 0; i < n; i++)
            t->losses[shard_micro(run->shard, r, i)] = told[i];
        t->stop = t->stop || told[n] > 0;
    }
    coll_tree_sum_f64(t->losses, (int)t->n_micros, 1);
    *out_loss = t->losses[0] / (double)t->n_micros;
    return DCP_OK;
}

/* DeepSpeed: clip = (norm + 1e-6) / max_norm, when that is above 1 gradients are divided
 * by it. */
static double clip_factor(const struct settings *s, double norm)
{
    double clip = s->gradient_clipping > 0 ? (norm + 1e-6) / s->gradient_clipping : 1;
    return clip > 1 ? 1 / clip : 1;
}

/* The optimizer; gradients that are not finite change nothing. `applied` counts the
 * updates with this one. */
static int update(struct train *t, double norm, double lr, int64_t applied,
                  struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    if (!isfinite(norm)) {
        run->at.skipped_steps++;
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "step %" PRId64 ": gradients are not finite, the update is skipped",
                      run->at.step + 1);
        return DCP_OK;
    }
    const struct adamw_params params = {
        .lr = lr,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->eps,
        .weight_decay = s->weight_decay,
        .step = applied,
        .bias_correction = s->bias_correction,
        .decoupled = s->decoupled_decay,
        .grad_scale = (float)clip_factor(s, norm),
        .stochastic = s->stochastic_rounding,
        .seed = s->seed,
    };
    return shard_update(run->shard, &params, err);
}

static int train_step(struct train *t, struct metrics_step *m, struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    int64_t step = run->at.step + 1;
    int64_t applied = step - run->at.skipped_steps;
    int rc = DCP_OK;
    shard_begin(run->shard);
    for (int i = 0; !rc && i < s->accumulation; i++) {
        rc = micro_batch(t, i, err);
        if (!rc)
            rc = shard_end_micro(run->shard, err);
        failpoint_step(&run->kill, step);
    }
    if (!rc)
        rc = share_losses(t, &m->loss, err);
    if (!rc)
        t->loss = m->loss;
    if (!rc)
        rc = shard_reduce(run->shard, &m->grad_norm, err);
    m->lr = schedule_lr(&s->scheduler, s->lr, applied);
    if (!rc)
        rc = update(t, m->grad_norm, m->lr, applied, err);
    if (rc)
        return rc;
    run->at.step = step;
    run->at.samples += s->train_batch_size;
    run->at.tokens += s->train_batch_size * s->seq_len;
    return DCP_OK;
}

/* --- what is told --- */

static void fill_metrics(const struct train *t, struct metrics_step *m)
{
    const struct run *run = t->run;
    struct shard_bytes bytes;
    shard_memory(run->shard, &bytes);
    m->step = run->at.step;
    m->samples = run->at.samples;
    m->tokens = run->at.tokens;
    m->loss_scale = 1;
    m->weight_bytes = bytes.weights;
    m->gradient_bytes = bytes.gradients;
    m->optimizer_bytes = bytes.optimizer;
    m->state_bytes = bytes.weights + bytes.gradients + bytes.optimizer;
    m->peak_rss_bytes = metrics_peak_rss();
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
    int rc = train_step(t, &m, err);
    m.step_s = dcp_clock_s() - begin_s;
    t->saving.diverged = !isfinite(m.loss);
    bool last = run->at.step == s->steps || t->stop;
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
    while (!rc && !t->stop && (s->steps == 0 || run->at.step < s->steps)) {
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
    if (rc || !t->stop || run->at.step == s->steps)
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
    int rank = err->rank, fate = err->rank_fate;
    char how[160], left[64] = "no step was saved";
    if (rank < 0 || fate == DCP_RANK_UNKNOWN)
        return;
    snprintf(how, sizeof how, "rank %d %s during step %" PRId64, rank,
             fate == DCP_RANK_DEAD ? "died" : "does not answer", run->at.step + 1);
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
    err->rank_fate = fate;
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
            s->bf16 ? "bf16" : "fp32", run->compute.name);
    if (run->compute.why[0] && (dcp_fs_exists(DRIVER) || run->main->verbose > 0))
        run_say(run, "on the CPU: %s", run->compute.why);
    run_say(run, "ZeRO stage %d on %d rank%s, %s a rank", s->stage, world_size,
            world_size == 1 ? "" : "s",
            dcp_human_size(bytes.weights + bytes.gradients + bytes.optimizer).text);
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

static int make_room(struct train *t, struct dcp_error *err)
{
    const struct run *run = t->run;
    size_t world_size = (size_t)run->join->world_size,
           n = (size_t)run->settings.accumulation;
    t->n_micros = (int64_t)(world_size * n);
    t->losses = dcp_mem_calloc(world_size * n, sizeof *t->losses);
    t->own = dcp_mem_calloc(n + 1, sizeof *t->own);
    t->told = dcp_mem_calloc(world_size * (n + 1), sizeof *t->told);
    t->n_told = dcp_mem_calloc(world_size, sizeof *t->n_told);
    for (size_t r = 0; t->n_told && r < world_size; r++)
        t->n_told[r] = (int64_t)n + 1;
    bool made = t->losses && t->own && t->told && t->n_told;
    return made ? DCP_OK : dcp_error_memory(err, "the losses of a step");
}

int train_run(struct run *run, struct dcp_error *err)
{
    struct train t = { .run = run, .loss = NAN };
    struct resume_result resumed = { 0 };
    double begin_s = dcp_clock_s();
    int rc = make_room(&t, err);
    rc = dcp_agree(&run->join->comm, rc, err);
    if (!rc) {
        announce(&t);
        rc = hold_folder(run, err);
    }
    if (!rc)
        rc = resume_run(run, false, &resumed, err);
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
    free(t.losses);
    free(t.own);
    free(t.told);
    free(t.n_told);
    return rc;
}
