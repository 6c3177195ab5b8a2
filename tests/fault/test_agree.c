/* Every collective ends for all ranks alike: when an allocation of one rank fails, in the
 * thread that called, all return the same code, and all made the same calls of comm up to
 * then: no rank goes on to where another does not come. */
#include "base/hash.h"
#include "lib/acts.h"
#include "lib/must.h"
#include "lib/rank_threads.h"
#include "lib/sample.h"
#include "lib/step_files.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { WORLD_SIZE = 2, TIMEOUT_MS = 3000, MOST_PADDING = 8192 };

/* --- an allocation of one thread that fails --- */

static _Thread_local long fail_in; /* 0: none */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 1

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);

static bool fails(void)
{
    if (!fail_in || --fail_in)
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    return fails() ? NULL : __libc_realloc(old, size);
}
#else
#define OWN_MALLOC 0
#endif

/* --- a comm that writes down what is called --- */

struct witness {
    struct dcp_comm *comm; /* the real one */
    uint64_t calls;        /* a digest of kinds and sizes, in their order */
    size_t n, n_gathers;
};

static void note(struct witness *witness, uint64_t kind, size_t size_bytes)
{
    const uint64_t call[3] = { witness->calls, kind, size_bytes };

    witness->calls = dcp_hash_xxh3(call, sizeof call);
    witness->n++;
}

static int allgather(void *self, const void *in, size_t size_bytes, void *out,
                     int timeout_ms, struct dcp_error *err)
{
    struct witness *witness = self;

    note(witness, 1, size_bytes);
    return witness->comm->ops->allgather(witness->comm->self, in, size_bytes, out,
                                         timeout_ms, err);
}

static int bcast(void *self, void *data, size_t size_bytes, int root, int timeout_ms,
                 struct dcp_error *err)
{
    struct witness *witness = self;

    note(witness, 2, size_bytes);
    return witness->comm->ops->bcast(witness->comm->self, data, size_bytes, root,
                                     timeout_ms, err);
}

static int gather(void *self, const void *in, size_t size_bytes, void *out,
                  int timeout_ms, struct dcp_error *err)
{
    struct witness *witness = self;

    note(witness, 3, size_bytes);
    witness->n_gathers++;
    return witness->comm->ops->gather(witness->comm->self, in, size_bytes, out,
                                      timeout_ms, err);
}

static int least(void *self, int64_t mine, int64_t *out, int timeout_ms,
                 struct dcp_error *err)
{
    struct witness *witness = self;

    note(witness, 4, sizeof mine);
    return witness->comm->ops->least(witness->comm->self, mine, out, timeout_ms, err);
}

static int peer_dead(void *self)
{
    struct witness *witness = self;
    return witness->comm->ops->peer_dead(witness->comm->self);
}

static const struct dcp_comm_ops ops = { .allgather = allgather,
                                         .bcast = bcast,
                                         .gather = gather,
                                         .least = least,
                                         .peer_dead = peer_dead };

/* --- acts --- */

struct run {
    const struct dcp_store *store;
    bool load, aside; /* aside: a save by a saver, which stages the state */
    bool exports;     /* a save with a consolidated export */
    bool crowd;       /* of so many tensors that no message fits the room that is ready */
    bool columns;     /* a load of what is proved by all ranks together */
    enum dcp_codec codec;
    int n_tensors, parity, fails; /* the rank whose allocation fails, */
    long at;                      /* the n-th (from 1) */
    bool done;                    /* it has failed */
    size_t padding;               /* bytes of an object */
    int codes[WORLD_SIZE];
    struct witness witnesses[WORLD_SIZE];
};

/* The saver is not collective: what fails is behind it. */
static int save_aside(const struct dcp_context *ctx,
                      const struct dcp_save_options *options,
                      const struct dcp_state *state)
{
    struct dcp_saver *saver;
    long at = fail_in;
    fail_in = 0;
    must(dcp_saver_new(ctx, &saver, NULL) == 0);
    fail_in = at;
    int rc = dcp_save_start(saver, options, state, NULL);
    rc = rc ? rc : dcp_save_wait(saver, NULL, NULL);
    dcp_saver_free(saver);
    return rc;
}

/* Of what a rank holds all of. */
static void half_of_columns(struct dcp_local_tensor *local, int rank)
{
    static const int64_t zeros[2] = { 0, 0 };
    static _Thread_local int64_t offset[2], size[2];

    memcpy(offset, zeros, sizeof zeros);
    memcpy(size, local->shape, sizeof size);
    size[1] /= 2;
    offset[1] = rank * size[1];
    if (rank)
        size[1] = local->shape[1] - offset[1];
    local->region =
        (struct dcp_region){ .kind = DCP_BOX, .offset = offset, .size = size };
}

enum { CROWD = 300 };

/* Tensors of two numbers, of which each rank has one. */
static void be_crowd(struct dcp_state *state, int rank)
{
    static const int64_t shape[1] = { WORLD_SIZE };
    static _Thread_local struct dcp_local_tensor locals[CROWD];
    static _Thread_local char names[CROWD][32];
    static _Thread_local int32_t data[CROWD];

    for (int i = 0; i < CROWD; i++) {
        snprintf(names[i], sizeof names[i], "crowd.%d", i);
        locals[i] = (struct dcp_local_tensor){
            .name = names[i],
            .dtype = DCP_I32,
            .ndim = 1,
            .shape = shape,
            .region = { .kind = DCP_FLAT, .begin = rank, .end = rank + 1 },
            .data = &data[i]
        };
    }
    state->locals = locals;
    state->n_locals = CROWD;
}

static void act(void *arg, struct dcp_comm *comm)
{
    struct run *run = arg;
    int rank = comm->rank;
    struct witness *witness = &run->witnesses[rank];
    struct dcp_comm wrapped = { &ops, witness, rank, comm->world_size, TIMEOUT_MS };
    struct dcp_context ctx = { .comm = &wrapped, .store = run->store, .threads = 1 };
    static const struct dcp_export model = { .name = "model.bin",
                                             .format = "torch",
                                             .dtype = -1 };
    struct dcp_save_options save = { .step = 1,
                                     .parity = run->parity,
                                     .codec = run->codec,
                                     .consolidated = run->exports ? &model : NULL };
    static const unsigned char padding[MOST_PADDING];
    struct dcp_load_options load = { .step = -1 };
    struct sample sample;

    *witness = (struct witness){ .comm = comm };
    sample_make_first(&sample, run->n_tensors, run->columns ? "replicated" : "dim0",
                      WORLD_SIZE, rank, !run->load, 7);
    if (run->columns)
        half_of_columns(&sample.locals[sample.state.n_locals - 1], rank);
    if (run->padding)
        sample.objects[0] = (struct dcp_object){ .name = "padding",
                                                 .kind = DCP_OBJECT_BYTES,
                                                 .data = padding,
                                                 .size_bytes = run->padding };
    struct dcp_state given = sample.state;
    if (run->crowd)
        be_crowd(&given, rank);
    fail_in = rank == run->fails ? run->at : 0;
    run->codes[rank] = run->load    ? dcp_load(&ctx, &load, &given, NULL, NULL)
                       : run->aside ? save_aside(&ctx, &save, &given)
                                    : dcp_save(&ctx, &save, &given, NULL, NULL);
    if (rank == run->fails) {
        run->done = fail_in == 0;
        fail_in = 0;
    }
    sample_free(&sample);
}

/* Saves some tensors, or loads them from `store`; false: there are fewer allocations. */
static bool try(struct run *run)
{
    struct dcp_store fresh = { 0 };
    const struct dcp_store *store = run->store;

    if (!run->load) {
        assert_int_equal(dcp_store_mem(&fresh, NULL), 0);
        run->store = &fresh;
    }
    rank_threads_run(WORLD_SIZE, act, run);
    run->store = store;
    dcp_store_free(&fresh);
    const struct witness *first = &run->witnesses[0], *second = &run->witnesses[1];
    if (run->codes[0] != run->codes[1] || first->n != second->n ||
        first->calls != second->calls)
        fail_msg("%s, parity %d: allocation %ld of rank %d fails: %d after %zu calls "
                 "of comm, and %d after %zu",
                 run->load ? "load" : "save", run->parity, run->at, run->fails,
                 run->codes[0], first->n, run->codes[1], second->n);
    assert_true(run->codes[0] == DCP_OK || run->codes[0] == DCP_E_MEMORY);
    return run->done;
}

static void each(struct run *run)
{
    if (!OWN_MALLOC)
        return;
    for (run->fails = 0; run->fails < WORLD_SIZE; run->fails++) {
        for (run->at = 1; try(run);)
            run->at++;
        assert_true(run->at > 10);
    }
}

static void saves(void **state)
{
    struct run run = { .n_tensors = 3 };

    (void)state;
    each(&run);
    run.parity = 1;
    each(&run);
    run.aside = true;
    each(&run);
}

/* What rank 0 learns of pieces, too. */
static void saves_with_an_export(void **state)
{
    struct run run = { .n_tensors = sample_n_tensors() - 1, .exports = true };

    (void)state;
    each(&run);
}

/* What rank 0 learns of the others needs memory only where a chunk of the catalog's is
 * full just then: that is somewhere among these. */
static void saves_of_many_sizes(void **state)
{
    struct run run = { .n_tensors = sample_n_tensors() - 1, .codec = DCP_CODEC_ZSTD };

    (void)state;
    for (run.padding = 64; OWN_MALLOC && run.padding < MOST_PADDING; run.padding += 120)
        for (run.at = 1; try(&run);)
            run.at++;
}

static void crowds(void **state)
{
    struct dcp_store store;
    struct run run = { .n_tensors = 1, .crowd = true };

    (void)state;
    each(&run);
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    run.store = &store;
    run.fails = -1;
    rank_threads_run(WORLD_SIZE, act, &run);
    assert_int_equal(run.codes[0], 0);
    run.load = true;
    each(&run);
    dcp_store_free(&store);
}

static void loads(void **state)
{
    struct dcp_store store;
    struct step_files files;
    struct run run = { .store = &store, .n_tensors = 3, .parity = 1, .fails = -1 };

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    rank_threads_run(WORLD_SIZE, act, &run);
    assert_int_equal(run.codes[0], 0);
    run.load = true;
    each(&run);
    /* Read through the parity. */
    step_files_read(&files, &store, "step-00000001");
    step_files_remove(&files, "shard-00000-of-00002.safetensors");
    each(&run);
    step_files_free(&files);
    dcp_store_free(&store);
}

static void loads_of_columns(void **state)
{
    struct dcp_store store;
    struct run run = { .store = &store, .n_tensors = sample_n_tensors(), .fails = -1 };

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    rank_threads_run(WORLD_SIZE, act, &run);
    assert_int_equal(run.codes[0], 0);
    run.load = run.columns = true;
    rank_threads_run(WORLD_SIZE, act, &run);
    assert_int_equal(run.codes[0], 0);
    assert_true(run.witnesses[0].n_gathers >= 2); /* what is wanted, what was read */
    each(&run);
    dcp_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves),
        cmocka_unit_test(saves_with_an_export),
        cmocka_unit_test(saves_of_many_sizes),
        cmocka_unit_test(crowds),
        cmocka_unit_test(loads),
        cmocka_unit_test(loads_of_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
