/* save: a state machine that only moves inside collective calls on the caller's thread,
 * while the bytes are written by the pool.
 *
 * start: rank 0 merges what the ranks hold, and each learns what it is to write; rank 0
 * takes the lease and makes the temporary folder; all stage, unless they save in place,
 * and agree.
 *
 * WRITING: the pool of each rank writes its shard and makes it durable. When all are done
 * they agree, and tell rank 0 what they wrote.
 *
 * With parity RESERVING and CODING stand between: rank 0 creates the parity files, then
 * the pools of all ranks read back what was written, each a share of the stripes, and
 * write their part of the parity files. They agree, and tell the sums of what they read.
 *
 * PUBLISHING: the pool of rank 0 takes fingerprints, makes the consolidated export and
 * the manifest, renames, and prunes. When it is done they agree: the step is complete and
 * durable on all ranks. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/size.h"
#include "core/collective/await.h"
#include "core/collective/fold.h"
#include "core/integrity/finite.h"
#include "core/integrity/stale.h"
#include "core/parity/code.h"
#include "core/plan/local.h"
#include "core/plan/target.h"
#include "core/run/steps.h"
#include "core/write/finish.h"
#include "core/write/gather.h"
#include "core/write/room.h"
#include "core/write/stage.h"
#include "save_base.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PARITY_MEMORY ((uint64_t)32 << 20)

enum phase { IDLE, WRITING, RESERVING, CODING, PUBLISHING };

struct dcp_saver {
    struct dcp_context ctx;
    struct dcp_comm self_comm, *comm;
    struct dcp_device host;
    const struct dcp_device *device;
    struct dcp_pool *pool;
    struct dcp_group *group; /* the work of the present phase */
    struct dcp_stage stage;

    enum phase phase;
    struct dcp_finish finish; /* what is being saved */
    uint64_t *crc;            /* of each piece, taken from the caller's memory */
    struct dcp_parity_code code;
    uint64_t *sums;               /* what this rank read while it coded */
    _Atomic bool diverged;        /* numbers of this rank are not finite */
    _Atomic bool learned;         /* its moments are not all zero */
    struct dcp_findings findings; /* of all ranks, on rank 0 */
    struct dcp_room *rooms;       /* what the files of each rank take */
    struct dcp_last_step last;
    bool looked; /* for what was there before the first save */
    bool locked;
    struct dcp_save_base base;
    struct dcp_told told; /* warnings of all saves so far */
    double started_s;
    struct dcp_save_result result;
};

int dcp_saver_new(const struct dcp_context *ctx, struct dcp_saver **out_saver,
                  struct dcp_error *err)
{
    struct dcp_saver *saver = calloc(1, sizeof *saver);

    *out_saver = NULL;
    if (!saver)
        return dcp_error_memory(err, "a saver");
    saver->ctx = *ctx;
    dcp_comm_self(&saver->self_comm);
    saver->comm = ctx->comm ? ctx->comm : &saver->self_comm;
    dcp_device_host(&saver->host);
    saver->device = ctx->device ? ctx->device : &saver->host;
    int rc = dcp_pool_new(ctx->threads > 0 ? ctx->threads : 2, &saver->pool, err);
    if (!rc)
        rc = dcp_group_new(saver->pool, &saver->group, err);
    if (rc) {
        dcp_saver_free(saver);
        return rc;
    }
    *out_saver = saver;
    return DCP_OK;
}

/* Ends a save, well or not: nothing of it is left but the staging memory. */
static void end_save(struct dcp_saver *saver)
{
    dcp_group_wait(saver->group, NULL);
    dcp_finish_fini(&saver->finish);
    if (saver->locked)
        saver->ctx.store->ops->unlock(saver->ctx.store->self);
    free(saver->crc);
    free(saver->sums);
    free(saver->rooms);
    saver->crc = saver->sums = NULL;
    saver->rooms = NULL;
    saver->locked = false;
    saver->phase = IDLE;
}

void dcp_saver_free(struct dcp_saver *saver)
{
    if (!saver)
        return;
    if (saver->group)
        end_save(saver);
    dcp_group_free(saver->group);
    dcp_pool_free(saver->pool);
    if (saver->device)
        dcp_stage_fini(&saver->stage, saver->device);
    dcp_save_base_fini(&saver->base);
    free(saver);
}

/* Memory pieces are handed to the writer where they lie. */
static int read_callback(void *self, int worker, size_t piece, uint64_t begin, size_t n,
                         unsigned char *scratch, const unsigned char **out,
                         struct dcp_error *err)
{
    struct dcp_saver *saver = self;

    (void)worker;
    (void)n;
    (void)scratch;
    (void)err;
    *out = (const unsigned char *)saver->finish.catalog->pieces[piece].data + begin;
    return DCP_OK;
}

static void look(void *self, size_t piece, const unsigned char *data, size_t n)
{
    struct dcp_saver *saver = self;
    const struct dcp_catalog *catalog = saver->finish.catalog;
    const struct dcp_tensor *tensor = &catalog->tensors[catalog->pieces[piece].tensor];

    if (dcp_finite_matters(tensor) && !dcp_finite_all(tensor->dtype, data, n))
        saver->diverged = true;
    if (!saver->learned && dcp_finite_is_moment(tensor) && !dcp_finite_is_zero(data, n))
        saver->learned = true;
}

/* What rank 0 alone does before anything is written. It may remove large folders. */
static int open_step(void *arg, struct dcp_error *err)
{
    struct dcp_saver *saver = arg;
    const struct dcp_store *store = saver->ctx.store;
    struct dcp_finish *finish = &saver->finish;
    int64_t step = finish->options.step;
    uint64_t need, room;
    char wanted[DCP_SIZE_CAP], left[DCP_SIZE_CAP];

    DCP_TRY(store->ops->lock(store->self, err));
    saver->locked = true;
    /* Folders of dead savers go first: they may hold the very room that is needed. */
    dcp_finish_prune(finish, false);
    DCP_TRY(dcp_save_base_choose(&saver->base, store, &finish->options,
                                 saver->comm->world_size, err));
    finish->unfit = saver->base.unfit;
    /* What differs from a base is not known before it is written. */
    for (int r = 0; saver->base.name[0] && r < saver->comm->world_size; r++)
        saver->rooms[r].shard_bytes = 0;
    need = dcp_room_of_step(finish, saver->rooms);
    room = store->ops->free_bytes(store->self);
    if (need > room) {
        dcp_error_set(err, DCP_E_NO_SPACE, "step %" PRId64 " needs %s; '%s' has %s free",
                      step, dcp_size_format(wanted, need), store->root,
                      dcp_size_format(left, room));
        dcp_error_hint(err, "free some space, or keep fewer steps");
        return DCP_E_NO_SPACE;
    }
    DCP_TRY(dcp_publish_begin(&finish->publish, store, finish->name, false, err));
    snprintf(finish->prefix, sizeof finish->prefix, "%s", finish->publish.prefix);
    return DCP_OK;
}

/* Before the snapshot: that a disk is too full is found while nothing waits for it. */
static int reserve_shard(void *arg, struct dcp_error *err)
{
    struct dcp_saver *saver = arg;
    struct dcp_finish *finish = &saver->finish;
    const struct dcp_save_base *base = &saver->base;

    if (base->name[0]) {
        finish->base = base->name;
        finish->base_catalog = base->catalog;
        finish->number = base->number + 1;
        dcp_write_against(
            finish->write,
            &(struct dcp_write_base){
                .store = saver->ctx.store,
                .name = base->name,
                .catalog = base->catalog,
                .by_digest = base->read && finish->read_back != DCP_READ_BACK_DISK,
            });
    }
    return dcp_write_create(finish->write, saver->comm->rank, err);
}

/* Whether all bytes go to the file from the caller's memory. */
static bool in_place(const struct dcp_saver *saver)
{
    return saver->finish.options.in_place && saver->device->host_readable;
}

static int write_shard(void *arg, struct dcp_error *err)
{
    struct dcp_saver *saver = arg;
    struct dcp_catalog *catalog = saver->finish.catalog;

    DCP_TRY(dcp_write_ranks(saver->finish.write, &saver->comm->rank, 1, 1, err));
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        const char *name = catalog->tensors[piece->tensor].name;
        if (!dcp_stage_holds(&saver->stage, piece))
            continue;
        if (piece->crc != saver->crc[p])
            return dcp_error_of_tensor(
                err, DCP_E_CORRUPT, name,
                "tensor '%s' changed in memory between snapshot and file", name);
    }
    return DCP_OK;
}

/* What lies in staging can, and gains by it where nobody reads it back from the cache. */
static bool goes_direct(const struct dcp_saver *saver)
{
    const struct dcp_finish *finish = &saver->finish;

    return !in_place(saver) && !finish->options.parity &&
           finish->options.codec == DCP_CODEC_NONE &&
           finish->read_back != DCP_READ_BACK_CACHE;
}

static int prepare(struct dcp_saver *saver, const struct dcp_save_options *options,
                   struct dcp_error *err)
{
    struct dcp_finish *finish = &saver->finish;
    struct dcp_catalog *catalog = finish->catalog;
    char name[64];
    int rc;

    catalog->step = options->step;
    for (size_t p = 0; p < catalog->n_pieces; p++)
        catalog->pieces[p].codec = options->codec;
    dcp_step_name(name, options->step);
    finish->told = &saver->told;
    rc = dcp_finish_init(finish, &saver->ctx, options, name, err);
    finish->target = (struct dcp_target){ .format = dcp_format_of_steps(),
                                          .catalog = catalog,
                                          .options = &finish->target_options,
                                          .first_rank = saver->comm->rank,
                                          .n_ranks = 1 };
    if (!rc)
        rc = dcp_target_open_cut(&finish->target, err);
    if (!rc)
        rc = dcp_write_new(
            &(struct dcp_write_setup){
                .store = saver->ctx.store,
                .prefix = finish->prefix,
                .target = &finish->target,
                .read_back = finish->read_back,
                .direct = goes_direct(saver),
                .parity = options->parity > 0,
                .read_callback = { .self = saver, .read = read_callback, .look = look } },
            &finish->write, err);
    saver->crc = dcp_mem_calloc(catalog->n_pieces, sizeof *saver->crc);
    saver->rooms = dcp_mem_calloc((size_t)saver->comm->world_size, sizeof *saver->rooms);
    if (!rc && !(saver->crc && saver->rooms))
        rc = dcp_error_memory(err, "a save");
    return rc;
}

static int stage(struct dcp_saver *saver, struct dcp_error *err)
{
    return dcp_stage_fill(&saver->stage, saver->device, saver->pool,
                          saver->finish.catalog, saver->finish.options.in_place,
                          saver->crc, err);
}

/* All tell what their files take. */
static int share_rooms(struct dcp_saver *saver, struct dcp_error *err)
{
    const struct dcp_room mine = dcp_room_of_rank(saver->finish.catalog);
    return dcp_comm_allgather(saver->comm, &mine, sizeof mine, saver->rooms, err);
}

static int check(const struct dcp_saver *saver, const struct dcp_save_options *options,
                 struct dcp_error *err)
{
    if (saver->phase != IDLE)
        return dcp_error_set(err, DCP_E_USAGE,
                             "a save is in progress: wait for it first");
    if (options->step < 0)
        return dcp_error_set(err, DCP_E_USAGE, "a step cannot be negative");
    if (options->parity < 0 || options->parity > DCP_PARITY_MAX_ROWS)
        return dcp_error_set(err, DCP_E_USAGE, "parity is 0 to %d", DCP_PARITY_MAX_ROWS);
    if (options->keep_optimizer < 0)
        return dcp_error_set(err, DCP_E_USAGE, "steps to keep cannot be negative");
    if (options->delta < 0)
        return dcp_error_set(err, DCP_E_USAGE, "deltas cannot be negative");
    if (options->delta > 1 && (options->parity || options->codec != DCP_CODEC_NONE))
        return dcp_error_set(err, DCP_E_USAGE,
                             "a step with parity or a codec is no delta: take one or the "
                             "other");
    return DCP_OK;
}

/* Collective: all know where the step is written, and what it is a delta on. */
static int tell_opened(struct dcp_saver *saver, struct dcp_error *err)
{
    struct {
        char prefix[sizeof saver->finish.prefix];
        struct dcp_save_base_told base;
    } told = { .base = dcp_save_base_tell(&saver->base) };

    memcpy(told.prefix, saver->finish.prefix, sizeof told.prefix);
    int rc = dcp_comm_bcast(saver->comm, &told, sizeof told, 0, err);
    if (rc)
        return rc;
    memcpy(saver->finish.prefix, told.prefix, sizeof told.prefix);
    return dcp_save_base_hear(&saver->base, &told.base, saver->comm, err);
}

int dcp_save_start(struct dcp_saver *saver, const struct dcp_save_options *options,
                   const struct dcp_state *state, struct dcp_error *err)
{
    bool is_idle = saver->phase == IDLE;
    double started_s = dcp_clock_s();
    struct dcp_catalog *catalog;
    int rc = dcp_local_merge(saver->comm, saver->device, state,
                             check(saver, options, err), &catalog, err);

    if (!rc)
        saver->finish.catalog = catalog;
    if (!rc)
        rc = prepare(saver, options, err);
    rc = dcp_agree(saver->comm, rc, err);
    if (!rc)
        rc = share_rooms(saver, err);
    if (!rc)
        rc =
            dcp_await(saver->comm, saver->comm->rank == 0 ? open_step : NULL, saver, err);
    if (!rc)
        rc = tell_opened(saver, err);
    if (!rc)
        rc = dcp_await(saver->comm, reserve_shard, saver, err);
    if (!rc && !in_place(saver))
        rc = dcp_agree(saver->comm, stage(saver, err), err);
    if (rc) {
        if (is_idle)
            end_save(saver);
        return rc;
    }
    saver->started_s = started_s;
    saver->result = (struct dcp_save_result){ .step = options->step };
    for (size_t t = 0; t < saver->finish.catalog->n_tensors; t++)
        saver->result.size_bytes += dcp_tensor_bytes(&saver->finish.catalog->tensors[t]);
    saver->diverged = saver->learned = false;
    saver->phase = WRITING;
    dcp_group_start(saver->group, write_shard, saver);
    saver->result.stall_s = dcp_clock_s() - saver->started_s;
    return DCP_OK;
}

static int gather_written(struct dcp_saver *saver, struct dcp_error *err)
{
    struct dcp_finish *finish = &saver->finish;

    saver->findings =
        (struct dcp_findings){ .diverged = saver->diverged || finish->options.diverged,
                               .learned = saver->learned };
    int rc = dcp_gather_written(saver->comm, finish, &saver->findings, err);
    finish->catalog->diverged = saver->findings.diverged;
    return rc;
}

static int reserve_parity(void *arg, struct dcp_error *err)
{
    struct dcp_saver *saver = arg;
    return dcp_parity_create(&saver->code, err);
}

static int code_parity(void *arg, struct dcp_error *err)
{
    struct dcp_saver *saver = arg;
    return dcp_parity_run(&saver->code, &saver->sums, err);
}

/* All ranks know all files now, and so the same description. */
static int describe_parity(struct dcp_saver *saver, struct dcp_error *err)
{
    struct dcp_finish *finish = &saver->finish;
    int rc = dcp_parity_describe(finish->catalog, finish->options.parity, &finish->parity,
                                 err);

    saver->code = (struct dcp_parity_code){ .parity = finish->parity,
                                            .store = saver->ctx.store,
                                            .prefix = finish->prefix,
                                            .share = saver->comm->rank,
                                            .n_shares = saver->comm->world_size,
                                            .memory_bytes = PARITY_MEMORY };
    return dcp_agree(saver->comm, rc, err);
}

/* What the ranks read is what was written. */
static int prove_parity(struct dcp_saver *saver, struct dcp_error *err)
{
    const struct dcp_parity *parity = saver->finish.parity;
    size_t n = parity->n_files * sizeof *saver->sums;

    DCP_TRY(dcp_fold(saver->comm, DCP_FOLD_XOR, saver->sums, n, err));
    return dcp_parity_prove(parity, saver->sums, err);
}

/* What others saved before this saver began, by its manifest alone: training that was
 * started again may have loaded that, and not be what is saved. Rank 0, in the pool. */
static void look_for_last(struct dcp_saver *saver)
{
    const struct dcp_context alone = { .store = saver->ctx.store };
    int64_t now = saver->finish.options.step;
    bool looked = saver->looked;
    struct dcp_step step;

    if (looked && now > saver->last.step)
        return;
    saver->looked = true;
    if (!dcp_find(&alone, -1, &step, NULL) && step.step > now)
        dcp_log_write(saver->ctx.log, DCP_LOG_WARN,
                      "step %" PRId64 " is saved below step %" PRId64
                      ", which a load takes as the newest: to go on from an older step, "
                      "load it with rewind",
                      now, step.step);
    if (looked || dcp_find_below(&alone, -1, now, &step, NULL))
        return; /* the run begins, or nothing is left of it */
    saver->last.step = step.step;
    saver->last.weights = step.weights_fingerprint;
}

static int publish(void *arg, struct dcp_error *err)
{
    struct dcp_saver *saver = arg;
    look_for_last(saver);
    return dcp_finish_run(&saver->finish, err);
}

/* Begins the phase that follows one that is done on all ranks; IDLE: the save is over. */
static int advance(struct dcp_saver *saver, struct dcp_error *err)
{
    bool first = saver->comm->rank == 0;
    int rc = DCP_OK;

    switch (saver->phase) {
    case WRITING:
        rc = gather_written(saver, err);
        saver->phase = saver->finish.options.parity ? RESERVING : PUBLISHING;
        if (!rc && saver->phase == RESERVING)
            rc = describe_parity(saver, err);
        if (!rc && first)
            dcp_group_start(saver->group,
                            saver->phase == RESERVING ? reserve_parity : publish, saver);
        return rc;
    case RESERVING:
        saver->phase = CODING;
        dcp_group_start(saver->group, code_parity, saver);
        return DCP_OK;
    case CODING:
        rc = prove_parity(saver, err);
        saver->phase = PUBLISHING;
        if (!rc && first)
            dcp_group_start(saver->group, publish, saver);
        return rc;
    default:
        saver->phase = IDLE;
        return DCP_OK;
    }
}

/* What the next saves are deltas on. Rank 0 alone knows that a base was of no use, and
 * tells it by the next save. */
static void note_base(struct dcp_saver *saver)
{
    struct dcp_finish *finish = &saver->finish;
    struct dcp_save_base *base = &saver->base;

    if (!finish->base && finish->options.delta > 1)
        dcp_save_base_take(base, finish->name, &finish->catalog);
    if (!finish->base)
        return;
    base->read = true;
    base->number++;
    if (finish->unfit.code)
        base->name[0] = '\0';
}

int dcp_save_poll(struct dcp_saver *saver, bool *out_done,
                  struct dcp_save_result *out_result, struct dcp_error *err)
{
    struct dcp_error failure = { 0 };
    bool done = true;
    int rc = DCP_OK;

    *out_done = saver->phase == IDLE;
    if (saver->phase == IDLE) {
        if (out_result)
            *out_result = saver->result;
        return DCP_OK;
    }
    rc = dcp_all_done(saver->comm, saver->group, DCP_OK, &done, &failure);
    if (!rc && !done)
        return DCP_OK;
    if (!rc)
        rc = advance(saver, &failure);
    if (!rc && saver->phase != IDLE)
        return DCP_OK;
    if (rc) {
        if (saver->finish.base && rc != DCP_E_NO_SPACE) /* it may be to blame */
            saver->base.name[0] = '\0';
        if (err)
            *err = failure;
    } else {
        saver->result.write_s = dcp_clock_s() - saver->started_s;
        if (saver->finish.options.in_place)
            saver->result.stall_s = saver->result.write_s;
        saver->result.fingerprint = saver->finish.fingerprint;
        saver->result.diverged = saver->finish.catalog->diverged;
        saver->result.stale = saver->comm->rank == 0 &&
                              dcp_stale_check(&saver->last, saver->finish.catalog,
                                              !saver->finish.options.idle,
                                              saver->findings.learned, saver->ctx.log);
        saver->result.written_bytes = saver->finish.written_bytes;
        saver->result.base_bytes = saver->finish.base_bytes;
        note_base(saver);
        if (out_result)
            *out_result = saver->result;
    }
    end_save(saver);
    *out_done = true;
    return rc;
}

int dcp_save_wait(struct dcp_saver *saver, struct dcp_save_result *out_result,
                  struct dcp_error *err)
{
    /* Ranks come back to the collective often, so that one whose disk is slow is not
     * taken for dead. */
    for (bool done = false; !done;) {
        dcp_pause(saver->group);
        DCP_TRY(dcp_save_poll(saver, &done, out_result, err));
    }
    return DCP_OK;
}

int dcp_save(const struct dcp_context *ctx, const struct dcp_save_options *options,
             const struct dcp_state *state, struct dcp_save_result *out_result,
             struct dcp_error *err)
{
    struct dcp_save_options here = *options;
    struct dcp_saver *saver;
    int rc = dcp_saver_new(ctx, &saver, err);

    here.in_place = true;
    if (ctx->comm)
        rc = dcp_agree(ctx->comm, rc, err);
    if (!rc)
        rc = dcp_save_start(saver, &here, state, err);
    if (!rc)
        rc = dcp_save_wait(saver, out_result, err);
    dcp_saver_free(saver);
    return rc;
}
