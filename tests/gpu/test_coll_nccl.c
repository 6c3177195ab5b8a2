/* NCCL's collectives: a rank is a thread. On GPUs there is one for each; the fake of CUDA
 * has eight, shows what each rank called in which order and on which stream, and runs the
 * streams in every order that a GPU may. */
#include "lib/check_coll.h"
#include "lib/cuda.h"
#include "port/comm/threads.h"
#include "trainer/coll/coll.h"
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_WORLD_SIZE = 8, TIMEOUT_MS = 20000 };

struct rank {
    struct dcp_comm *comm;
    struct coll coll;
    struct kernels kernels;
    int (*act)(struct rank *rank);
    int failed;
    struct dcp_error err;
};

static int failed(const struct rank *r, const char *what)
{
    fprintf(stderr, "rank %d of %d: %s: %s\n", r->comm->rank, r->comm->world_size, what,
            r->err.message);
    return 1;
}

static int dies_early = -1; /* a rank that knows where the others meet, and never comes */

static void die_early(struct rank *r)
{
    (void)r;
#ifdef CUDA_FAKE_NCCL_H
    ncclUniqueId id;
    dcp_agree(r->comm, DCP_OK, &r->err);
    dcp_comm_bcast(r->comm, &id, sizeof id, 0, &r->err);
    dcp_comm_threads_kill(r->comm);
#endif
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    int n = 0;
    if (r->comm->rank == dies_early) {
        die_early(r);
        return NULL;
    }
    cuda_must(cudaGetDeviceCount(&n));
    cuda_must(cudaSetDevice(r->comm->rank % n));
    r->kernels.ops = ops_cuda();
    if (r->kernels.ops->open(&r->kernels.ctx, &r->err)) {
        r->failed = failed(r, "no kernels");
        return NULL;
    }
    int rc = coll_nccl(&r->coll, &r->kernels, r->comm, &r->err);
    if (dies_early >= 0)
        r->failed = rc != DCP_E_COMM || r->err.rank != dies_early ||
                    r->err.rank_state != DCP_RANK_DEAD;
    else if (rc)
        r->failed = failed(r, "no collectives");
    else
        r->failed = r->act(r);
    coll_free(&r->coll);
    r->kernels.ops->close(r->kernels.ctx);
    return NULL;
}

/* All ranks of a process group do the act; returns how many failed. */
static int run_ranks(int world_size, int timeout_ms, int (*act)(struct rank *rank))
{
    struct dcp_comm comms[MAX_WORLD_SIZE];
    struct rank ranks[MAX_WORLD_SIZE] = { { .failed = 0 } };
    pthread_t threads[MAX_WORLD_SIZE];
    int n_failed = 0;
    assert_int_equal(dcp_comm_threads(comms, world_size, NULL), 0);
    for (int r = 0; r < world_size; r++) {
        comms[r].timeout_ms = timeout_ms;
        ranks[r].comm = &comms[r];
        ranks[r].act = act;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < world_size; r++) {
        pthread_join(threads[r], NULL);
        n_failed += ranks[r].failed != 0;
    }
    for (int r = 0; r < world_size; r++) /* a rank whose comm is gone counts as dead */
        dcp_comm_free(&comms[r]);
    return n_failed;
}

/* Ranks that there can be. */
static int most_ranks(void)
{
    int n = 0;
#ifdef CUDA_FAKE_NCCL_H
    n = MAX_WORLD_SIZE;
#else
    cuda_must(cudaGetDeviceCount(&n));
#endif
    return n < MAX_WORLD_SIZE ? n : MAX_WORLD_SIZE;
}

static void set_way(const char *way)
{
#ifdef CUDA_FAKE_NCCL_H
    setenv("CUDA_FAKE", way, 1);
#else
    (void)way;
#endif
}

/* --- what every coll does --- */

static int check(struct rank *r)
{
    return check_coll(&r->coll, 3001);
}

static void all_world_sizes(void **state)
{
    (void)state;
    static const char *const ways[] = { "late", "others", "eager" };
    for (int w = 0; w < 3; w++) {
        set_way(ways[w]);
        for (int world_size = 1; world_size <= most_ranks(); world_size++)
            assert_int_equal(run_ranks(world_size, TIMEOUT_MS, check), 0);
    }
    set_way("late");
}

/* --- kernels before, between and behind --- */

/* What a kernel wrote before is what is gathered; what is called after the wait finds it
 * gathered; many are in flight. */
static int interleave(struct rank *r)
{
    enum { N = 1000, TIMES = 24 };
    const struct ops *ops = r->kernels.ops;
    void *ctx = r->kernels.ctx;
    int world_size = r->coll.world_size, rank = r->coll.rank, wrong = 0, rc = 0;
    float *in[TIMES], *all[TIMES], *out[TIMES], *source = array_bytes(N, 4);
    void *half = array_bytes(N, 2);
    int64_t counts[MAX_WORLD_SIZE];
    uint64_t calls[TIMES];
    for (int k = 0; k < world_size; k++)
        counts[k] = N;
    for (int t = 0; t < TIMES; t++) {
        in[t] = array_bytes(N, 4);
        all[t] = array_bytes(N * world_size, 4);
        out[t] = array_bytes(N * world_size, 4);
        for (int i = 0; i < N; i++)
            source[i] = (float)(t * 1000 + rank);
        rc |= ops->put(ctx, in[t], source, N * 4, NULL);
        ops->zero(ctx, all[t], (uint64_t)N * 4 * (uint64_t)world_size);
        ops->cast(ctx, DCP_BF16, N, in[t], half); /* 1000 t + rank of bf16 */
        ops->widen(ctx, DCP_BF16, N, half, in[t]);
        if (t >= 12) {
            rc |= coll_wait(&r->coll, calls[t - 12], &r->err);
            ops->copy(ctx, out[t - 12], all[t - 12],
                      (uint64_t)N * 4 * (uint64_t)world_size);
        }
        rc |=
            coll_all_gather_begin(&r->coll, in[t], counts, 4, all[t], &calls[t], &r->err);
    }
    for (int t = TIMES - 12; t < TIMES; t++) {
        rc |= coll_wait(&r->coll, calls[t], &r->err);
        ops->copy(ctx, out[t], all[t], (uint64_t)N * 4 * (uint64_t)world_size);
    }
    rc |= ops->sync(ctx, &r->err);
    for (int t = 0; t < TIMES; t++)
        for (int k = 0; k < world_size; k++) {
            float want = (float)(t * 1000 + k), got = out[t][k * N + N - 1];
            wrong += !(fabsf(got - want) <= want / 128); /* rounded */
        }
    array_free(source), array_free(half);
    for (int t = 0; t < TIMES; t++)
        array_free(in[t]), array_free(all[t]), array_free(out[t]);
    return rc || wrong ? failed(r, "kernels and collectives are out of order") : 0;
}

static void kernels_and_collectives(void **state)
{
    (void)state;
    static const char *const ways[] = { "late", "others", "eager" };
    for (int w = 0; w < 3; w++) {
        set_way(ways[w]);
        assert_int_equal(run_ranks(most_ranks(), TIMEOUT_MS, interleave), 0);
    }
    set_way("late");
}

#ifdef CUDA_FAKE_NCCL_H

/* --- what is called --- */

static int look_at_calls(struct rank *r)
{
    enum { N = 64 };
    struct nccl_record calls[N];
    int world_size = r->coll.world_size, rank = r->coll.rank, bad = 0;
    int64_t even[MAX_WORLD_SIZE], uneven[MAX_WORLD_SIZE], total = 0;
    for (int k = 0; k < world_size; k++) {
        even[k] = 10;
        uneven[k] = k;
        total += 10;
    }
    int64_t *in = array_bytes(total, 8), *out = array_bytes(total, 8);
    nccl_records(calls, 0);

    /* Even parts are one reduce-scatter; uneven ones a reduction to each owner. */
    bad += coll_reduce_scatter(&r->coll, in, even, out, &r->err);
    int n = nccl_records(calls, N);
    bad += n != 1 || strcmp(calls[0].what, "reducescatter") || calls[0].size_bytes != 80;
    bad += coll_reduce_scatter(&r->coll, in, uneven, out, &r->err);
    n = nccl_records(calls, N);
    bad += n != world_size - 1;
    for (int i = 0; i < n; i++)
        bad += strcmp(calls[i].what, "reduce") || calls[i].peer != i + 1 ||
               calls[i].size_bytes != 8 * (size_t)(i + 1);
    for (int i = 0; i < n; i++)
        bad += calls[i].group != calls[0].group || calls[i].stream != calls[0].stream ||
               calls[i].world_size != world_size || calls[i].rank != rank;
    cudaStream_t stream = calls[0].stream;
    if (bad)
        return failed(r, "a reduce-scatter calls something else");

    /* Even parts are one all-gather; uneven ones a broadcast from each owner. */
    bad += coll_all_gather(&r->coll, in, even, 4, out, &r->err);
    n = nccl_records(calls, N);
    bad += n != 1 || strcmp(calls[0].what, "allgather") || calls[0].size_bytes != 40 ||
           calls[0].stream != stream;
    bad += coll_all_gather(&r->coll, in, uneven, 2, out, &r->err);
    n = nccl_records(calls, N);
    bad += n != world_size - 1;
    for (int i = 0; i < n; i++)
        bad += strcmp(calls[i].what, "broadcast") || calls[i].peer != i + 1 ||
               calls[i].size_bytes != 2 * (size_t)(i + 1) || calls[i].stream != stream ||
               calls[i].group != calls[0].group;
    if (bad)
        return failed(r, "a gather calls something else");

    /* A message to each rank that has a part, and one from each, in one group. */
    bad += coll_all_to_all(&r->coll, in, uneven, 1, 2, 4, out, &r->err);
    n = nccl_records(calls, N);
    bad += n != world_size - 2 + (rank > 1 ? world_size : 0);
    for (int i = 0; i < n; i++)
        bad += calls[i].group != calls[0].group || calls[i].stream != stream ||
               (strcmp(calls[i].what, "send") && strcmp(calls[i].what, "recv")) ||
               calls[i].size_bytes !=
                   4 * (size_t)coll_in_round(
                           strcmp(calls[i].what, "send") ? rank : calls[i].peer, 1, 2);
    bad += r->kernels.ops->sync(r->kernels.ctx, &r->err);
    array_free(in), array_free(out);
    return bad ? failed(r, "an all-to-all calls something else") : 0;
}

static void calls_are_right(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(MAX_WORLD_SIZE, TIMEOUT_MS, look_at_calls), 0);
}

/* --- ranks that fail --- */

enum { ABSENT = 2 };
static atomic_int n_there; /* ranks that have their coll */

/* The absent rank leaves when all others have theirs. */
static void leave(const struct rank *r)
{
    while (atomic_load(&n_there) < r->comm->world_size - 1)
        usleep(1000);
}

static int gather_once(struct rank *r)
{
    float in[4] = { 0 }, out[4 * MAX_WORLD_SIZE];
    int64_t counts[MAX_WORLD_SIZE];
    void *from, *to;
    const struct ops *ops = r->kernels.ops;
    for (int k = 0; k < r->coll.world_size; k++)
        counts[k] = 4;
    int rc = ops->alloc(r->kernels.ctx, sizeof in, "a test", &from, &r->err);
    rc |= ops->alloc(r->kernels.ctx, sizeof out, "a test", &to, &r->err);
    rc |= ops->put(r->kernels.ctx, from, in, sizeof in, &r->err);
    if (!rc)
        rc = coll_all_gather(&r->coll, from, counts, sizeof *in, to, &r->err);
    if (!rc)
        rc = ops->get(r->kernels.ctx, out, to,
                      sizeof *in * 4 * (size_t)r->coll.world_size, &r->err);
    ops->free(r->kernels.ctx, from), ops->free(r->kernels.ctx, to);
    return rc;
}

static int named(struct rank *r, int rc, enum dcp_rank_state rank_state)
{
    struct dcp_error again = { 0 };
    if (rc != DCP_E_COMM || r->err.rank != ABSENT || r->err.rank_state != (int)rank_state)
        return failed(r, "the absent rank is not named");
    double one = 1; /* nothing goes on after a failure */
    if (coll_all_reduce(&r->coll, &one, 1, &again) != DCP_E_COMM)
        return failed(r, "a coll goes on after a failure");
    return 0;
}

static int silent(struct rank *r)
{
    r->comm->timeout_ms = 4000;
    if (r->comm->rank == ABSENT) {
        leave(r);
        return 0;
    }
    atomic_fetch_add(&n_there, 1);
    return named(r, gather_once(r), DCP_RANK_SILENT);
}

static int dead(struct rank *r)
{
    r->comm->timeout_ms = 1000000; /* it must not come to that */
    if (r->comm->rank == ABSENT) {
        leave(r);
        dcp_comm_threads_kill(r->comm);
        return 0;
    }
    atomic_fetch_add(&n_there, 1);
    return named(r, gather_once(r), DCP_RANK_DEAD);
}

static void absent_ranks_are_named(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(4, TIMEOUT_MS, silent), 0);
    atomic_store(&n_there, 0);
    assert_int_equal(run_ranks(4, TIMEOUT_MS, dead), 0);
    dies_early = ABSENT;
    assert_int_equal(run_ranks(4, 1000000, NULL), 0);
    dies_early = -1;
}

/* Something else failed while an exchange is under way, whose other rank never comes: the
 * memory it is in can be freed. */
static int leaving(struct rank *r)
{
    int64_t counts[2] = { 8, 8 };
    uint64_t call;
    char *items;
    const struct ops *ops = r->kernels.ops;
    if (r->comm->rank == 1) {
        leave(r);
        return 0;
    }
    atomic_fetch_add(&n_there, 1);
    int rc = ops->alloc(r->kernels.ctx, 32, "a test", (void **)&items, &r->err);
    if (!rc)
        rc = coll_all_to_all_begin(&r->coll, items, counts, 0, 8, 1, items + 16, &call,
                                   &r->err);
    if (!rc)
        rc = coll_wait(&r->coll, call, &r->err);
    if (rc)
        return failed(r, "an exchange cannot be begun");
    coll_abort(&r->coll);
    ops->free(r->kernels.ctx, items);
    return 0;
}

static void a_rank_can_leave(void **state)
{
    (void)state;
    atomic_store(&n_there, 0);
    assert_int_equal(run_ranks(2, TIMEOUT_MS, leaving), 0);
}

static int broken(struct rank *r)
{
    nccl_fail_next(ncclSystemError);
    int rc = gather_once(r);
    return rc == DCP_E_COMM && strstr(r->err.message, "NCCL cannot gather: unhandled")
               ? 0
               : failed(r, "NCCL's failure is not told");
}

static void failures_are_told(void **state)
{
    (void)state;
    assert_int_equal(run_ranks(2, TIMEOUT_MS, broken), 0);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_world_sizes),  cmocka_unit_test(kernels_and_collectives),
#ifdef CUDA_FAKE_NCCL_H
        cmocka_unit_test(calls_are_right),  cmocka_unit_test(absent_ranks_are_named),
        cmocka_unit_test(a_rank_can_leave), cmocka_unit_test(failures_are_told),
#endif
    };
    cuda_need();
    setenv("CUDA_FAKE_OPEN", "1", 1);
    cuda_use_arrays();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
