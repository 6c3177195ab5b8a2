#include "acts.h"
#include "base/fs.h"
#include "must.h"
#include "port/comm/threads.h"
#include "rank_threads.h"
#include "sample.h"
#include <stdlib.h>

enum { MAX_ERRORS = sizeof((struct acts *)0)->errs / sizeof(struct dcp_error) };

/* One run of an act, shared by its ranks. */
struct run {
    struct acts *acts;
    bool load;
    int *codes;
    struct dcp_error *errs;
    int64_t wrong, loaded_step;
};

/* --- a rank that dies between two calls --- */

struct mortal {
    struct run *run;
    struct dcp_comm *comm; /* the real one */
};

static void maybe_die(struct mortal *mortal)
{
    if (++mortal->run->acts->n_calls == mortal->run->acts->dies_at)
        dcp_comm_threads_kill(mortal->comm);
}

static int mortal_allgather(void *self, const void *in, size_t size_bytes, void *out,
                            int timeout_ms, struct dcp_error *err)
{
    struct mortal *mortal = self;
    maybe_die(mortal);
    return mortal->comm->ops->allgather(mortal->comm->self, in, size_bytes, out,
                                        timeout_ms, err);
}

static int mortal_gather(void *self, const void *in, size_t size_bytes, void *out,
                         int timeout_ms, struct dcp_error *err)
{
    struct mortal *mortal = self;
    maybe_die(mortal);
    return mortal->comm->ops->gather(mortal->comm->self, in, size_bytes, out, timeout_ms,
                                     err);
}

static int mortal_least(void *self, int64_t mine, int64_t *out, int timeout_ms,
                        struct dcp_error *err)
{
    struct mortal *mortal = self;
    maybe_die(mortal);
    return mortal->comm->ops->least(mortal->comm->self, mine, out, timeout_ms, err);
}

static int mortal_bcast(void *self, void *data, size_t size_bytes, int root,
                        int timeout_ms, struct dcp_error *err)
{
    struct mortal *mortal = self;
    maybe_die(mortal);
    return mortal->comm->ops->bcast(mortal->comm->self, data, size_bytes, root,
                                    timeout_ms, err);
}

static int mortal_peer_dead(void *self)
{
    struct mortal *mortal = self;
    return mortal->comm->ops->peer_dead(mortal->comm->self);
}

static const struct dcp_comm_ops mortal_ops = {
    .allgather = mortal_allgather,
    .bcast = mortal_bcast,
    .gather = mortal_gather,
    .least = mortal_least,
    .peer_dead = mortal_peer_dead,
};

/* --- the acts --- */

static int save_staged(const struct dcp_context *ctx,
                       const struct dcp_save_options *options,
                       const struct dcp_state *state, struct dcp_error *err)
{
    struct dcp_saver *saver;
    int rc = dcp_agree(ctx->comm, dcp_saver_new(ctx, &saver, err), err);

    if (!rc)
        rc = dcp_save_start(saver, options, state, err);
    if (!rc)
        rc = dcp_save_wait(saver, NULL, err);
    dcp_saver_free(saver);
    return rc;
}

static int save(struct run *run, const struct dcp_context *ctx,
                const struct dcp_state *state, struct dcp_error *err)
{
    struct dcp_save_options options = { 0 };

    if (run->acts->more)
        options = *run->acts->more;
    options.step = run->acts->step;
    options.codec = run->acts->codec;
    return run->acts->staged ? save_staged(ctx, &options, state, err)
                             : dcp_save(ctx, &options, state, NULL, err);
}

static int load(struct run *run, const struct dcp_context *ctx,
                const struct sample *sample, struct dcp_error *err)
{
    struct dcp_load_options options = { .name = run->acts->name,
                                        .step = run->acts->step };
    struct dcp_load_result result = { 0 };

    int rc = dcp_load(ctx, &options, &sample->state, &result, err);
    if (rc)
        return rc;
    if (ctx->comm->rank == 0)
        run->loaded_step = result.step;
    __atomic_fetch_add(&run->wrong, sample_wrong(sample, run->acts->salt),
                       __ATOMIC_SEQ_CST);
    dcp_catalog_free(result.catalog);
    return DCP_OK;
}

static void act(void *arg, struct dcp_comm *comm)
{
    struct run *run = arg;
    struct acts *acts = run->acts;
    struct mortal mortal = { run, comm };
    struct dcp_comm wrapped = { &mortal_ops, &mortal, comm->rank, comm->world_size, 0 };
    bool dies = acts->dies_at && acts->dies == comm->rank;
    struct dcp_context ctx = { .comm = dies ? &wrapped : comm,
                               .store = acts->store,
                               .log = acts->log,
                               .threads = 1 };
    struct sample sample;

    ctx.comm->timeout_ms = acts->timeout_ms;
    sample_make_first(&sample, sample_n_tensors() - acts->small, acts->layout,
                      comm->world_size, comm->rank, !run->load, acts->salt);
    run->codes[comm->rank] = run->load
                                 ? load(run, &ctx, &sample, &run->errs[comm->rank])
                                 : save(run, &ctx, &sample.state, &run->errs[comm->rank]);
    sample_free(&sample);
}

static int run_act(struct acts *acts, bool load_it)
{
    struct run run = { .acts = acts, .load = load_it };
    size_t world_size = (size_t)acts->world_size;

    run.codes = calloc(world_size, sizeof *run.codes);
    run.errs = calloc(world_size, sizeof *run.errs);
    must(run.codes && run.errs);
    acts->n_calls = 0;
    rank_threads_run(acts->world_size, act, &run);
    int first = acts->dies_at && acts->dies == 0 && acts->world_size > 1;
    int rc = run.codes[first];
    acts->err = run.errs[first];
    acts->agreed = true;
    for (int r = 0; r < acts->world_size; r++)
        if (!acts->dies_at || r != acts->dies)
            acts->agreed = acts->agreed && run.codes[r] == rc;
    for (int r = 0; r < acts->world_size && r < MAX_ERRORS; r++)
        acts->errs[r] = run.errs[r];
    acts->wrong = run.wrong;
    acts->loaded_step = run.loaded_step;
    free(run.codes);
    free(run.errs);
    return rc;
}

int acts_save(struct acts *acts)
{
    return run_act(acts, false);
}

int acts_load(struct acts *acts)
{
    return run_act(acts, true);
}

/* --- folders and numbers --- */

void acts_folder(char out[256])
{
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(out, 256, "%s/dcp-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");

    must(n > 0 && n < 256 && mkdtemp(out));
}

void acts_folder_remove(const char *folder)
{
    struct dcp_error err = { 0 };

    if (dcp_fs_remove_all(folder, &err))
        fprintf(stderr, "%s\n", err.message);
}

uint64_t acts_random(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u; /* splitmix64 */

    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

int64_t acts_pick(uint64_t *state, int64_t n)
{
    return (int64_t)(acts_random(state) % (uint64_t)n);
}

int acts_setup(void **state)
{
    struct dcp_store *store = calloc(1, sizeof *store);

    *state = store;
    return store ? dcp_store_mem(store, NULL) : -1;
}

int acts_teardown(void **state)
{
    dcp_store_free(*state);
    free(*state);
    return 0;
}
