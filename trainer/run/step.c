/* step: one step of training, the same whether its result is kept or compared. */
#include "step.h"

#include "base/mem.h"
#include "trainer/ops/optim.h"
#include "trainer/state/state.h"
#include <inttypes.h>
#include <math.h>

int step_init(struct step *out_step, struct run *run, struct dcp_error *err)
{
    size_t world_size = (size_t)run->join->world_size,
           n = (size_t)shard_n_rounds(run->shard) + 1;
    struct step *t = out_step;
    *t = (struct step){ .run = run };
    t->own = dcp_mem_calloc(n, sizeof *t->own);
    t->told = dcp_mem_calloc(world_size * n, sizeof *t->told);
    t->n_told = dcp_mem_calloc(world_size, sizeof *t->n_told);
    for (size_t r = 0; t->n_told && r < world_size; r++)
        t->n_told[r] = (int64_t)n;
    bool made = t->own && t->told && t->n_told;
    return made ? DCP_OK : dcp_error_memory(err, "the losses of a step");
}

void step_fini(struct step *step)
{
    free(step->own);
    free(step->told);
    free(step->n_told);
    *step = (struct step){ .run = NULL };
}

/* This rank's i-th micro-batch: samples are dealt out in the order of the whole batch, so
 * they do not depend on the world size. Where there is none left, the rank takes part in
 * what the others do together. */
static int micro_batch(struct step *t, int i, struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    int64_t micro = shard_micro(run->shard, run->join->rank, i);
    int64_t cursor = run->at.samples + micro * s->micro_batch;
    t->own[i] = 0;
    if (micro >= s->n_micros)
        return model_idle(run->model, &run->hooks, err);
    for (int b = 0; b < s->micro_batch; b++) {
        size_t at = (size_t)b * (size_t)s->seq_len;
        data_sample(run->train, cursor + b, run->tokens + at, run->targets + at);
    }
    return model_train(run->model, &run->hooks, run->tokens, run->targets, s->micro_batch,
                       s->seq_len, (float)run->at.loss_scale.scale / (float)s->n_micros,
                       &t->own[i], err);
}

/* The mean loss of all micro-batches, added in their order; and whether any rank was told
 * to stop, so that all stop after the same step. */
static int share_losses(struct step *t, double *out_loss, struct dcp_error *err)
{
    struct run *run = t->run;
    int n = shard_n_rounds(run->shard), world_size = run->join->world_size;
    double sum = 0;
    t->own[n] = dcp_main_stopped();
    int rc = coll_all_gather(&run->join->coll, t->own, t->n_told, sizeof *t->own, t->told,
                             err);
    if (rc)
        return rc;
    t->stop = false;
    for (int r = 0; r < world_size; r++)
        t->stop = t->stop || t->told[r * (n + 1) + n] > 0;
    for (int64_t micro = 0; micro < run->settings.n_micros; micro++)
        sum += t->told[micro % world_size * (n + 1) + micro / world_size];
    *out_loss = sum / (double)run->settings.n_micros;
    return DCP_OK;
}

/* DeepSpeed: clip = (norm + 1e-6) / max_norm, when that is above 1 gradients are divided
 * by it. */
static double clip_factor(const struct settings *s, double norm)
{
    double clip = s->gradient_clipping > 0 ? (norm + 1e-6) / s->gradient_clipping : 1;
    return clip > 1 ? 1 / clip : 1;
}

/* Gradients that are not finite: the step counts, and changes nothing. Some in a row are
 * what large losses make; many are a run that learns nothing any more. */
static int skip(struct step *t, double scale, struct dcp_error *err)
{
    struct run *run = t->run;
    int most = run->settings.max_skipped_steps;
    run->at.skipped_steps++;
    if (run->settings.loss_scale.scales)
        run_say(run,
                "step %" PRId64
                ": gradients overflow with a loss scale of %g; the update "
                "is skipped, the next scale is %g",
                run->at.step + 1, scale, run->at.loss_scale.scale);
    else
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "step %" PRId64 ": gradients are not finite, the update is skipped",
                      run->at.step + 1);
    if (++t->n_skipped != most)
        return DCP_OK;
    dcp_error_set(
        err, DCP_E_CORRUPT,
        "training has diverged: the gradients of %d step%s in a row, up to step "
        "%" PRId64 ", are not finite",
        most, most == 1 ? "" : "s", run->at.step + 1);
    dcp_error_hint(err,
                   "lower the learning rate or clip gradients, and go on from a step "
                   "before: 'dcp-inspect steps' lists them; max_skipped_steps says "
                   "how many may be skipped");
    return DCP_E_CORRUPT;
}

/* fp16: the next step's loss scale; false: there is no lower one. */
static int scale_next(struct step *t, bool overflow, struct dcp_error *err)
{
    struct run *run = t->run;
    if (loss_scale_update(&run->settings.loss_scale, overflow, &run->at.loss_scale))
        return DCP_OK;
    dcp_error_set(err, DCP_E_CORRUPT,
                  "training has diverged: gradients of step %" PRId64
                  " overflow with the least loss scale, %g",
                  run->at.step + 1, run->at.loss_scale.scale);
    dcp_error_hint(err, "lower the learning rate, or use \"bf16\", which needs no scale; "
                        "fp16.min_loss_scale says what the least is");
    return DCP_E_CORRUPT;
}

/* The optimizer; gradients that are not finite change nothing, and the schedule stays
 * where it is, too. */
static int update(struct step *t, double norm, double lr, struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    double scale = run->at.loss_scale.scale;
    DCP_TRY(scale_next(t, !isfinite(norm), err));
    if (!isfinite(norm))
        return skip(t, scale, err);
    t->n_skipped = 0;
    double betas[2];
    int64_t scheduled = ++run->at.scheduled;
    schedule_betas(&s->scheduler, (const double[]){ s->beta1, s->beta2 }, scheduled,
                   betas);
    const struct optim_params params = {
        .type = s->optimizer,
        .lr = lr,
        .beta1 = betas[0],
        .beta2 = betas[1],
        .eps = s->eps,
        .weight_decay = s->weight_decay,
        .momentum = s->momentum,
        .dampening = s->dampening,
        .lr_decay = s->lr_decay,
        .nesterov = s->nesterov,
        .step = ++run->at.updates,
        .bias_correction = s->bias_correction,
        .decoupled = s->decoupled_decay,
        .decay_all = s->decay_all,
        .min_trust = s->min_coeff,
        .max_trust = s->max_coeff,
        .adam_lr = schedule_lr(&s->scheduler, s->adam_lr, scheduled, &t->adam_rate),
        .newton_schulz = s->newton_schulz,
        .match_rms = s->match_rms,
        .variance_decay = s->beta2_decay,
        .eps_scale = s->eps_scale,
        .clip = s->clip_threshold,
        .scale_parameter = s->scale_parameter,
        .relative_step = s->relative_step,
        .grad_scale = (float)(clip_factor(s, norm) / scale),
        .stochastic = s->stochastic_rounding,
        .seed = s->seed,
    };
    return shard_update(run->shard, &params, err);
}

/* Gradients of all micro-batches, and their norm. */
static int make_gradients(struct step *t, int64_t step, struct metrics_step *m,
                          bool *out_again, struct dcp_error *err)
{
    struct run *run = t->run;
    shard_begin(run->shard);
    for (int i = 0; i < shard_n_rounds(run->shard); i++) {
        DCP_TRY(micro_batch(t, i, err));
        DCP_TRY(shard_end_micro(run->shard, err));
        failpoint_step(&run->kill, step);
    }
    DCP_TRY(share_losses(t, &m->loss, err));
    return shard_reduce(run->shard, &m->grad_norm, out_again, err);
}

int step_fingerprints(struct run *run, bool weights_only,
                      struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    struct state state = { .arena = NULL };
    int rc = run_sync(run, err);
    if (!rc)
        rc = state_init(&state, run->shard, run->model, run->join->world_size,
                        &run->settings, &run->at, err);
    rc = dcp_agree(&run->join->comm, rc, err);
    struct dcp_state *dcp = &state.dcp;
    while (weights_only && dcp->n_locals &&
           dcp_role_is_optim(dcp->locals[dcp->n_locals - 1].role))
        dcp->n_locals--; /* weights come first */
    if (!rc)
        rc = dcp_fingerprint(&run->ctx, dcp, out_catalog, err);
    state_fini(&state);
    return rc;
}

static int fingerprint_weights(struct run *run, uint64_t *out_fingerprint,
                               struct dcp_error *err)
{
    struct dcp_catalog *catalog = NULL;
    DCP_TRY(step_fingerprints(run, true, &catalog, err));
    *out_fingerprint = dcp_weights_fingerprint(catalog);
    dcp_catalog_free(catalog);
    return DCP_OK;
}

int step_train(struct step *t, struct metrics_step *m, struct dcp_error *err)
{
    struct run *run = t->run;
    const struct settings *s = &run->settings;
    int64_t step = run->at.step + 1;
    m->loss_scale = run->at.loss_scale.scale;
    for (bool again = true; again;)
        DCP_TRY(make_gradients(t, step, m, &again, err));
    m->grad_norm /= m->loss_scale;
    m->lr = schedule_lr(&s->scheduler, s->lr, run->at.scheduled + 1, &t->rate);
    DCP_TRY(update(t, m->grad_norm, m->lr, err));
    run->at.step = step;
    run->at.samples += s->train_batch_size;
    run->at.tokens += s->train_batch_size * s->seq_len;
    return s->fingerprint_every && step % s->fingerprint_every == 0
               ? fingerprint_weights(run, &m->weights, err)
               : DCP_OK;
}
