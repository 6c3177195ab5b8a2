#include "run.h"
#include "trainer/data/tokenizer.h"

#include "base/mem.h"
#include "base/str.h"
#include "cli/text.h"
#include "trainer/ops/ops.h"
#include <dcp/delta.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- configuration --- */

/* --sharding and --steps are overrides like --set. */
static int add_overrides(const struct run_options *options, int local_world_size,
                         struct dcp_opt_list *overrides, char (*room)[80],
                         struct dcp_error *err)
{
    static const int stages[] = {
        [RUN_NO_SHARD] = 0, [RUN_GRAD_OP] = 2, [RUN_FULL] = 3, [RUN_HYBRID] = 3
    };
    int rc = DCP_OK, n = 0;
    for (size_t i = 0; !rc && i < options->set.n; i++)
        rc = dcp_opt_list_add(overrides, options->set.items[i], err);
    if (options->sharding >= 0)
        snprintf(room[n++], sizeof *room, "zero_optimization.stage=%d",
                 stages[options->sharding]);
    if (options->sharding == RUN_HYBRID) /* a copy on each machine */
        snprintf(room[n++], sizeof *room, "zero_optimization.mics_shard_size=%d",
                 local_world_size);
    if (options->steps >= 0)
        snprintf(room[n++], sizeof *room, "steps=%lld", (long long)options->steps);
    for (int i = 0; !rc && i < n; i++)
        rc = dcp_opt_list_add(overrides, room[i], err);
    return rc;
}

int run_read_settings(const struct run_options *options, int world_size,
                      int local_world_size, const struct dcp_log *log,
                      struct settings *out_settings, struct dcp_error *err)
{
    struct dcp_opt_list overrides = { 0 };
    char room[3][80];
    int rc = add_overrides(options, local_world_size, &overrides, room, err);
    int (*read)(const char *, const char *const *, int, const struct dcp_log *,
                struct settings *, struct dcp_error *) =
        options->estimate ? settings_read_sizes : settings_read;
    if (!rc)
        rc = read(options->config, overrides.items, world_size, log, out_settings, err);
    free(overrides.items);
    return rc;
}

bool run_saves_aside(const struct settings *s)
{
    return s->checkpoint_async && !s->swap_optimizer && !s->swap_weights;
}

/* Elements that the optimizer works on at a time when its state is in files: enough for a
 * disk to be fast. */
#define SWAP_LEAST ((int64_t)4 << 10)
#define SWAP_MOST ((int64_t)4 << 20)

/* Layers come up and down again, so that what is used again within a distance is the last
 * half of it. One limit alone stands beside DeepSpeed's default of the other. */
static int64_t live_elems(const struct settings *s)
{
    int64_t live = s->max_live < 0 ? 1000000000 : s->max_live,
            reuse = s->max_reuse < 0 ? 1000000000 : s->max_reuse;
    if (s->max_live < 0 && s->max_reuse < 0)
        return 0;
    return live < reuse / 2 ? live : reuse / 2;
}

void run_shard_options(const struct settings *settings, bool weights_only,
                       struct shard_options *out_options)
{
    const struct settings_swap *param = &settings->swap_param,
                               *optim = &settings->swap_optim;
    int64_t group = settings->sub_group_size < SWAP_LEAST  ? SWAP_LEAST
                    : settings->sub_group_size > SWAP_MOST ? SWAP_MOST
                                                           : settings->sub_group_size;
    *out_options = (struct shard_options){
        .stage = settings->stage,
        .shard_size = settings->shard_size,
        .near_size = settings->near_size,
        .quantized_weights = settings->quantized_weights,
        .quantized_grads = settings->quantized_grads,
        .dtype = settings->dtype,
        .grad_fp32 = settings->grad_accum_fp32,
        .grad_bf16 = settings->grad_accum_bf16,
        .optimizer = settings->optimizer,
        .weights_only = weights_only,
        .n_micros = settings->n_micros,
        .no_overlap = settings->overlap == 0,
        .reduce_bucket = settings->reduce_bucket > 0 ? settings->reduce_bucket : 0,
        .prefetch = settings->prefetch < 0    ? 0
                    : settings->prefetch == 0 ? -1
                                              : settings->prefetch,
        .no_forward_prefetch = settings->forward_prefetch == 0,
        .no_backward_prefetch = settings->backward_prefetch == 0,
        .max_live = live_elems(settings),
    };
    if (settings->swap_weights || param->host)
        out_options->offload_weights =
            (struct shard_offload){ .host = param->host,
                                    .folder = settings->swap_weights ? param->path : NULL,
                                    .pageable = !param->pinned,
                                    .window = param->buffer_size,
                                    .buffers = param->buffers,
                                    .kept = param->max_in_cpu };
    if ((settings->swap_optimizer || optim->host) && !weights_only)
        out_options->offload_optimizer =
            (struct shard_offload){ .host = optim->host,
                                    .folder =
                                        settings->swap_optimizer ? optim->path : NULL,
                                    .pageable = !optim->pinned,
                                    .window = group,
                                    .buffers = optim->buffers,
                                    .stays = 1 - optim->ratio };
}

bool run_overlaps(const struct settings *settings, bool gpu, int world_size)
{
    return gpu ? settings->overlap != 0 : settings->overlap == 1 && world_size > 1;
}

/* --- opening --- */

static int n_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* Ranks that share a machine share its cores, unless the user says otherwise. */
static int threads_per_rank(const struct join *join)
{
    const char *text = getenv("OMP_NUM_THREADS");
    int64_t said = 0;
    if (text && dcp_str_parse_i64(text, &said) && said >= 1 && said <= 1024)
        return (int)said;
    int threads = n_cores() / join->local_world_size;
    return threads > 1 ? threads : 1;
}

static int open_data(struct run *run, enum run_purpose purpose, struct dcp_error *err)
{
    const struct settings *s = &run->settings;
    int rc = tokenizer_open(s->tokenizer, &run->tokenizer, err);
    bool train = purpose == RUN_TRAIN || purpose == RUN_PLAN;
    if (!rc && train)
        rc = data_open(s->data_train, run->tokenizer, s->model.vocab_size, s->seq_len,
                       s->seed, &run->train, err);
    if (!rc && s->data_val && purpose != RUN_GENERATE)
        rc = data_open(s->data_val, run->tokenizer, s->model.vocab_size, s->seq_len,
                       s->seed, &run->val, err);
    if (!rc && run->train)
        run->at.data_digest = data_digest(run->train);
    loss_scale_begin(&s->loss_scale, &run->at.loss_scale);
    return rc;
}

/* What is computed again, and whether what is kept for it waits on the host. */
static struct model_recompute recompute_of(const struct run *run)
{
    struct model_recompute r = run->settings.recompute;
    if (!run->settings.cpu_checkpointing || (!r.every && !r.attention))
        return r;
    r.host = run->compute.device.ops;
    if (!r.host)
        dcp_log_write(&run->log, DCP_LOG_WARN,
                      "activation_checkpointing.cpu_checkpointing has no effect on the "
                      "CPU, whose memory is the host's");
    return r;
}

static int open_model(struct run *run, enum run_purpose purpose, struct dcp_error *err)
{
    const struct settings *s = &run->settings;
    bool generate = purpose == RUN_GENERATE;
    int batch = generate ? 1 : s->micro_batch;
    int seq_len = generate ? s->model.n_positions : s->seq_len;
    size_t n = (size_t)batch * (size_t)seq_len;
    ops_set_threads(threads_per_rank(run->join));
    ops_start_threads();
    if (purpose != RUN_PLAN) {
        run->tokens = dcp_mem_calloc(n, sizeof *run->tokens);
        run->targets = dcp_mem_calloc(n, sizeof *run->targets);
        if (!run->tokens || !run->targets)
            return dcp_error_memory(err, "a batch");
    }
    struct model_options options = {
        .dtype = s->dtype, .batch = batch, .seq_len = seq_len, .plan = purpose == RUN_PLAN
    };
    if (!generate) /* which goes on from keys and values of all layers */
        options.recompute = recompute_of(run);
    return model_make(&s->model, &options, run->compute.ops, &run->model, err);
}

/* What every rank does alone. */
static int open_alone(struct run *run, enum run_purpose purpose, struct dcp_error *err)
{
    struct join *join = run->join;
    const struct run_options *options = run->options;
    int world_size =
        purpose == RUN_PLAN && options->ranks ? (int)options->ranks : join->world_size;
    int local = purpose == RUN_PLAN ? world_size : join->local_world_size;
    DCP_TRY(failpoint_read(&run->kill, join->rank, err));
    DCP_TRY(
        run_read_settings(options, world_size, local, &run->log, &run->settings, err));
    return open_data(run, purpose, err);
}

static void tell_no_overlap(const struct run *run, const char *why)
{
    dcp_log_write(&run->log, DCP_LOG_WARN,
                  "zero_optimization.overlap_comm: %s, so nothing overlaps", why);
}

/* With a GPU what NCCL does overlaps. */
static int open_gpu_coll(struct run *run, enum run_purpose purpose,
                         const struct kernels *kernels, struct dcp_error *err)
{
    DCP_TRY(compute_coll(&run->compute, run->join, kernels, &run->coll, err));
    if (purpose == RUN_TRAIN && run->settings.overlap == 1 && run->join->world_size > 1 &&
        !coll_overlaps(&run->coll))
        tell_no_overlap(run, run->compute.own_gpu
                                 ? "this program was built without NCCL"
                                 : "ranks share a GPU, which NCCL cannot");
    return DCP_OK;
}

/* On the CPU communication overlaps where it is wished: run->coll. */
static int open_beside(struct run *run, enum run_purpose purpose, struct dcp_error *err)
{
    struct join *join = run->join;
    if (purpose != RUN_TRAIN || !run_overlaps(&run->settings, false, join->world_size))
        return DCP_OK;
    if (!join->mpi_threads) {
        tell_no_overlap(run, join->mpi ? "this MPI was built without threads"
                                       : "these ranks were started without MPI");
        return DCP_OK;
    }
    DCP_TRY(coll_split(&join->coll, 0, join->rank, &run->coll, err));
    return coll_beside(&run->coll, err);
}

/* The state of the model over all ranks, and how it moves. */
static int open_shard(struct run *run, enum run_purpose purpose, struct dcp_error *err)
{
    struct join *join = run->join;
    struct kernels kernels = model_kernels(run->model);
    struct shard_options cut;
    join->comm.timeout_ms = run->settings.timeout_s * 1000;
    bool gpu = run->compute.device.ops;
    int rc =
        gpu ? open_gpu_coll(run, purpose, &kernels, err) : open_beside(run, purpose, err);
    rc = dcp_agree(&join->comm, rc, err);
    if (rc)
        return rc;
    run_shard_options(&run->settings, purpose != RUN_TRAIN, &cut);
    rc = shard_new(run->model, &cut, run->coll.ops ? &run->coll : &join->coll,
                   &run->shard, err);
    rc = dcp_agree(&join->comm, rc, err);
    if (!rc)
        shard_hooks(run->shard, &run->hooks);
    return rc;
}

int run_open(struct dcp_main *m, struct join *join, const struct run_options *options,
             enum run_purpose purpose, struct run *out_run, struct dcp_error *err)
{
    struct run *run = out_run;
    *run = (struct run){ .main = m, .join = join, .options = options };
    if (join->rank == 0)
        run->log = m->log;
    if (join->open_door)
        dcp_log_write(
            &run->log, DCP_LOG_WARN,
            "the ranks connected over TCP without a secret, so any process that reaches "
            "rank 0 could have joined: give all the same --job-secret");
    int rc = dcp_agree(&join->comm, open_alone(run, purpose, err), err);
    if (!rc)
        rc = compute_open(purpose == RUN_PLAN ? COMPUTE_CPU
                                              : (enum compute_device)options->device,
                          join, &run->compute, err);
    if (!rc)
        rc = dcp_agree(&join->comm, open_model(run, purpose, err), err);
    if (!rc && purpose != RUN_PLAN)
        rc = open_shard(run, purpose, err);
    if (rc) {
        run_close(run, rc);
        return rc;
    }
    int threads = threads_per_rank(join);
    run->ctx = (struct dcp_context){
        .comm = &join->comm,
        .store = &run->store,
        .device = run->compute.device.ops ? &run->compute.device : NULL,
        .log = &run->log,
        .threads = m->threads    ? m->threads
                   : threads < 2 ? threads
                                 : 2,
    };
    return DCP_OK;
}

int run_open_store(struct run *run, bool create, struct dcp_error *err)
{
    if (run->store.ops)
        return DCP_OK;
    int rc = dcp_store_delta_dir(&run->store, run->settings.checkpoint_dir, create, err);
    run->store.max_header_bytes = run->main->max_header_bytes;
    if (!rc)
        failpoint_store(&run->kill, &run->store);
    else
        run->store = (struct dcp_store){ .ops = NULL };
    bool opened = !rc;
    rc = dcp_agree(&run->join->comm, rc, err);
    if (rc && opened) { /* another rank could not: all have it, or none */
        dcp_store_free(&run->store);
        run->store = (struct dcp_store){ .ops = NULL };
    }
    return rc;
}

int run_hold_store(struct run *run, struct dcp_error *err)
{
    int rc = run->join->rank == 0 ? dcp_store_lease(&run->store, err) : DCP_OK;
    return dcp_agree(&run->join->comm, rc, err);
}

int run_sync(struct run *run, struct dcp_error *err)
{
    struct kernels kernels = model_kernels(run->model);
    return kernels.ops->sync(kernels.ctx, err);
}

void run_close(struct run *run, int rc)
{
    if (rc && rc != DCP_E_STOPPED)
        coll_abort(&run->coll);
    if (run->store.ops)
        dcp_store_free(&run->store);
    shard_free(run->shard);
    coll_free(&run->coll);
    model_free(run->model);
    compute_close(&run->compute);
    data_free(run->train);
    data_free(run->val);
    tokenizer_free(run->tokenizer);
    settings_fini(&run->settings);
    free(run->tokens);
    free(run->targets);
    *run = (struct run){ .main = NULL };
}

void run_say(const struct run *run, const char *fmt, ...)
{
    char line[512];
    va_list args;
    if (run->join->rank != 0 || run->main->verbose < 0)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    const struct dcp_term *note = &run->main->note;
    DCP_CLEANUP_BUF struct dcp_buf wrapped = { 0 };
    if (note->width)
        dcp_text_add_wrapped(&wrapped, line, 0, 2, note->width);
    bool is_wrapped = wrapped.size_bytes && !wrapped.failed;
    dcp_term_printf(note, "%s\n", is_wrapped ? (const char *)wrapped.data : line);
}
