/* Ranks as processes, which save and load, do what both are measured by, and train, when
 * they are told; tests/bench/saves tells them. usage: bench_ranks WORLD BYTES TENSORS
 * [THREADS]
 *
 * A line of input: an act (see `acts`) and a folder. A line of output: seconds of the
 * slowest rank, CPU seconds and page faults of all, and the MiB that the largest rank has
 * held so far beside its tensors. */
#include "base/pool.h"
#include "lib/bench.h"
#include "lib/must.h"
#include <dcp/dcp.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_RANKS 64
#define PIECE ((size_t)1 << 20)
#define STEP_FLOATS ((size_t)1 << 20) /* what a step of training works on */
#define STEPS 200
#define ALIGN_ELEMS (16 * MAX_RANKS)

struct taken {
    double seconds, cpu_s, faults, peak_mib; /* page faults; beside the tensors */
};

/* What all see. */
struct board {
    pthread_barrier_t ready;
    int act; /* -1: there is nothing more to do */
    char folder[400];
    int64_t step;
    struct {
        struct taken taken;
        int failed;
    } ranks[MAX_RANKS];
};

struct rank {
    struct board *board;
    struct dcp_comm comm;
    int rank, world_size, n_tensors, threads;
    int64_t n_elems; /* of a tensor, of all ranks */
    float *data;     /* what this one has of each */
    char (*names)[64];
    struct dcp_local_tensor *locals;
    struct dcp_pool *pool;  /* of the copies in memory */
    char *copy;             /* where they go */
    float *work;            /* STEP_FLOATS */
    struct dcp_store store; /* of the saver, which is kept */
    struct dcp_saver *saver;
    struct taken taken; /* of an act that is not measured as a whole; else 0 */
};

/* who: RUSAGE_SELF, or RUSAGE_THREAD for the caller alone. */
static struct taken now_of(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (struct taken){
        .seconds = bench_now(),
        .cpu_s = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec),
        .faults = (double)u.ru_minflt,
        .peak_mib = (double)u.ru_maxrss / 1024,
    };
}

static struct taken now(void)
{
    return now_of(RUSAGE_SELF);
}

static struct taken between(struct taken began, struct taken end)
{
    return (struct taken){ end.seconds - began.seconds, end.cpu_s - began.cpu_s,
                           end.faults - began.faults, end.peak_mib };
}

static struct taken since(struct taken began)
{
    return between(began, now());
}

/* What each of n steps took this thread. */
static struct taken step_since(struct taken began, int n)
{
    struct taken all = between(began, now_of(RUSAGE_THREAD));
    return (struct taken){ all.seconds / n, all.cpu_s / n, all.faults / n, all.peak_mib };
}

static int64_t begin_of(const struct rank *r, int rank)
{
    return r->n_elems * rank / r->world_size;
}

static size_t tensor_bytes(const struct rank *r)
{
    return (size_t)(begin_of(r, r->rank + 1) - begin_of(r, r->rank)) * sizeof(float);
}

static size_t own_bytes(const struct rank *r)
{
    return tensor_bytes(r) * (size_t)r->n_tensors;
}

static struct dcp_context context_of(struct rank *r, const struct dcp_store *store)
{
    return (
        struct dcp_context){ .comm = &r->comm, .store = store, .threads = r->threads };
}

static struct dcp_state state_of(const struct rank *r)
{
    return (struct dcp_state){ .locals = r->locals,
                               .n_locals = (size_t)r->n_tensors,
                               .layout = "flat" };
}

static int complain(const struct rank *r, int rc, const struct dcp_error *err)
{
    if (rc)
        fprintf(stderr, "rank %d: %s\n", r->rank, err->message);
    return rc;
}

/* -- what the machine does at best --------------------------------------------------- */

static int open_plain(const struct rank *r, int flags)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%d", r->board->folder, r->rank);
    return open(path, flags, 0600);
}

/* One write after the other into a file whose room is taken, and one fsync. */
static int write_plainly(struct rank *r)
{
    size_t size_bytes = own_bytes(r);
    int fd = open_plain(r, O_WRONLY | O_CREAT | O_TRUNC), rc = fd < 0;
    rc = rc || posix_fallocate(fd, 0, (off_t)size_bytes);
    for (size_t at = 0, n; at < size_bytes && !rc; at += n) {
        n = size_bytes - at < PIECE ? size_bytes - at : PIECE;
        rc = write(fd, (const char *)r->data + at, n) != (ssize_t)n;
    }
    rc = rc || fsync(fd);
    return close(fd) || rc;
}

/* What that wrote, into the memory that a load fills. */
static int read_plainly(struct rank *r)
{
    size_t size_bytes = own_bytes(r);
    int fd = open_plain(r, O_RDONLY), rc = fd < 0;
    for (size_t at = 0, n; at < size_bytes && !rc; at += n) {
        n = size_bytes - at < PIECE ? size_bytes - at : PIECE;
        rc = read(fd, (char *)r->data + at, n) != (ssize_t)n;
    }
    return close(fd) || rc;
}

static int copy_job(void *arg, int worker, size_t i, struct dcp_error *err)
{
    struct rank *r = arg;
    size_t at = i * 4 * PIECE, left = own_bytes(r) - at;
    (void)worker;
    (void)err;
    memcpy(r->copy + at, (const char *)r->data + at, left < 4 * PIECE ? left : 4 * PIECE);
    return 0;
}

/* To memory that was touched before, by as many threads as stage a save. */
static int copy(struct rank *r)
{
    size_t size_bytes = own_bytes(r);
    if (!r->copy) {
        must(dcp_pool_new(r->threads, &r->pool, NULL) == 0);
        must((r->copy = malloc(size_bytes)) != NULL);
        memset(r->copy, 1, size_bytes);
    }
    struct taken began = now();
    int rc = dcp_pool_for(r->pool, (size_bytes - 1) / (4 * PIECE) + 1, copy_job, r, NULL);
    r->taken = since(began);
    return rc;
}

/* -- saves and loads ----------------------------------------------------------------- */

static int save_as(struct rank *r, struct dcp_save_options options)
{
    struct dcp_error err = { 0 };
    struct dcp_store store;
    struct dcp_context ctx = context_of(r, &store);
    struct dcp_state state = state_of(r);
    must(dcp_store_dir(&store, r->board->folder, true, &err) == 0);
    options.step = r->board->step;
    int rc = dcp_save(&ctx, &options, &state, NULL, &err);
    dcp_store_free(&store);
    return complain(r, rc, &err);
}

static int save(struct rank *r)
{
    return save_as(r, (struct dcp_save_options){ 0 });
}

static int save_bare(struct rank *r)
{
    return save_as(r, (struct dcp_save_options){ .no_read_back = true });
}

static int save_parity(struct rank *r)
{
    return save_as(r, (struct dcp_save_options){ .parity = 2 });
}

static int load(struct rank *r)
{
    struct dcp_error err = { 0 };
    struct dcp_store store;
    struct dcp_context ctx = context_of(r, &store);
    struct dcp_state state = state_of(r);
    struct dcp_load_options options = { .step = -1 };
    must(dcp_store_dir(&store, r->board->folder, true, &err) == 0);
    int rc = dcp_load(&ctx, &options, &state, NULL, &err);
    dcp_store_free(&store);
    return complain(r, rc, &err);
}

/* -- training beside a save ---------------------------------------------------------- */

static int start_as(struct rank *r, struct dcp_save_options options,
                    struct dcp_error *err)
{
    struct dcp_state state = state_of(r);
    if (!r->saver) {
        must(dcp_store_dir(&r->store, r->board->folder, true, err) == 0);
        struct dcp_context ctx = context_of(r, &r->store);
        must(dcp_saver_new(&ctx, &r->saver, err) == 0);
    }
    options.step = r->board->step;
    options.keep = 1;
    return dcp_save_start(r->saver, &options, &state, err);
}

static int start(struct rank *r, struct dcp_error *err)
{
    return start_as(r, (struct dcp_save_options){ 0 }, err);
}

/* How long training stands still, and what that touches for the first time. */
static int stall(struct rank *r)
{
    struct dcp_error err = { 0 };
    struct taken began = now();
    int rc = start(r, &err);
    r->taken = since(began);
    rc = rc ? rc : dcp_save_wait(r->saver, NULL, &err);
    return complain(r, rc, &err);
}

/* What goes on behind training. */
static int behind_as(struct rank *r, struct dcp_save_options options)
{
    struct dcp_error err = { 0 };
    int rc = start_as(r, options, &err);
    struct taken began = now();
    rc = rc ? rc : dcp_save_wait(r->saver, NULL, &err);
    r->taken = since(began);
    return complain(r, rc, &err);
}

static int behind(struct rank *r)
{
    return behind_as(r, (struct dcp_save_options){ 0 });
}

static int behind_bare(struct rank *r)
{
    return behind_as(r, (struct dcp_save_options){ .no_read_back = true });
}

static int behind_proved(struct rank *r)
{
    return behind_as(r, (struct dcp_save_options){ .verify_after_save = true });
}

static void train_step(struct rank *r)
{
    for (size_t i = 1; i < STEP_FLOATS; i++)
        r->work[i] = 0.5F * r->work[i - 1] + 0.25F * r->work[i] + 1;
}

/* A step, alone. */
static int train(struct rank *r)
{
    struct taken began = now_of(RUSAGE_THREAD);
    for (int i = 0; i < STEPS; i++)
        train_step(r);
    r->taken = step_since(began, STEPS);
    return 0;
}

/* A step while a save is written. */
static int train_saving(struct rank *r)
{
    struct dcp_error err = { 0 };
    bool done = false;
    int rc = start(r, &err), n = 0;
    struct taken began = now_of(RUSAGE_THREAD);
    for (; !rc && !done; n++) {
        train_step(r);
        rc = dcp_save_poll(r->saver, &done, NULL, &err);
    }
    r->taken = step_since(began, n);
    return complain(r, rc, &err);
}

static const struct {
    const char *name;
    int (*run)(struct rank *r);
} acts[] = {
    { "write", write_plainly },
    { "read", read_plainly },
    { "copy", copy },
    { "save", save },
    { "bare", save_bare },
    { "parity", save_parity },
    { "load", load },
    { "stall", stall },
    { "train", train },
    { "train-saving", train_saving },
    { "behind", behind },
    { "behind-bare", behind_bare },
    { "behind-proved", behind_proved },
};
#define N_ACTS ((int)(sizeof acts / sizeof *acts))

static void run(struct rank *r)
{
    struct board *b = r->board;
    while (pthread_barrier_wait(&b->ready), b->act >= 0) {
        r->taken = (struct taken){ 0 };
        struct taken began = now();
        b->ranks[r->rank].failed = acts[b->act].run(r);
        b->ranks[r->rank].taken = r->taken.seconds > 0 ? r->taken : since(began);
        b->ranks[r->rank].taken.peak_mib -= (double)own_bytes(r) / (1 << 20);
        pthread_barrier_wait(&b->ready);
    }
}

/* Finite numbers, which nobody can make much smaller. */
static void make(struct rank *r)
{
    size_t n = own_bytes(r) / sizeof(float), n_tensors = (size_t)r->n_tensors;
    uint64_t x = 88172645463325252u + (uint64_t)r->rank;
    must((r->data = malloc(n * sizeof(float))) != NULL);
    must((r->work = calloc(STEP_FLOATS, sizeof(float))) != NULL);
    must((r->names = calloc(n_tensors, sizeof *r->names)) != NULL);
    must((r->locals = calloc(n_tensors, sizeof *r->locals)) != NULL);
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint32_t bits = ((uint32_t)x & 0x83ffffff) | 0x3c000000; /* 2^-7 to 2 */
        memcpy(r->data + i, &bits, sizeof bits);
    }
    for (size_t i = 0; i < n_tensors; i++) {
        snprintf(r->names[i], sizeof r->names[i], "h.%zu.weight", i);
        r->locals[i] = (struct dcp_local_tensor){
            .name = r->names[i],
            .param = r->names[i],
            .dtype = DCP_F32,
            .ndim = 1,
            .shape = &r->n_elems,
            .region = { .kind = DCP_FLAT,
                        .begin = begin_of(r, r->rank),
                        .end = begin_of(r, r->rank + 1) },
            .data = (char *)r->data + i * tensor_bytes(r),
        };
    }
}

static void be_rank(struct rank *r)
{
    const struct dcp_comm_tcp_options options = { .rank = r->rank,
                                                  .world_size = r->world_size,
                                                  .host = "127.0.0.1",
                                                  .port = 20000 + getppid() % 20000,
                                                  .job = "bench" };
    struct dcp_error err = { 0 };
    make(r);
    if (dcp_comm_tcp(&r->comm, &options, &err)) {
        fprintf(stderr, "rank %d: %s\n", r->rank, err.message);
        abort();
    }
    run(r);
    dcp_saver_free(r->saver);
    dcp_comm_free(&r->comm);
    _exit(0);
}

static void next_act(struct board *b)
{
    char line[500], word[16];
    b->act = -1;
    if (!fgets(line, sizeof line, stdin))
        return;
    must(sscanf(line, "%15s %399[^\n]", word, b->folder) == 2);
    for (int i = 0; i < N_ACTS; i++)
        if (!strcmp(word, acts[i].name))
            b->act = i;
    must(b->act >= 0);
    b->step++;
}

static void tell(const struct board *b, int world_size)
{
    struct taken all = { 0 };
    for (int r = 0; r < world_size; r++) {
        const struct taken *one = &b->ranks[r].taken;
        must(!b->ranks[r].failed);
        all.seconds = one->seconds > all.seconds ? one->seconds : all.seconds;
        all.cpu_s += one->cpu_s;
        all.faults += one->faults;
        all.peak_mib = one->peak_mib > all.peak_mib ? one->peak_mib : all.peak_mib;
    }
    printf("%.6f %.6f %.0f %.2f\n", all.seconds, all.cpu_s, all.faults, all.peak_mib);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: bench_ranks WORLD BYTES TENSORS [THREADS]\n");
        return 2;
    }
    int world_size = (int)strtol(argv[1], NULL, 10);
    struct rank r = { .world_size = world_size,
                      .n_tensors = (int)strtol(argv[3], NULL, 10),
                      .threads = argc == 5 ? (int)strtol(argv[4], NULL, 10) : 1 };
    must(world_size > 0 && world_size <= MAX_RANKS && r.n_tensors > 0 && r.threads > 0);
    r.n_elems = strtoll(argv[2], NULL, 10) / r.n_tensors / (int64_t)sizeof(float);
    if (r.n_elems > ALIGN_ELEMS) /* parts begin on cache lines, as those of layers do */
        r.n_elems -= r.n_elems % ALIGN_ELEMS;
    r.board = mmap(NULL, sizeof *r.board, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(r.board != MAP_FAILED);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&r.board->ready, &shared, (unsigned)world_size + 1);
    for (r.rank = 0; r.rank < world_size; r.rank++)
        if (fork() == 0)
            be_rank(&r);
    for (;;) {
        next_act(r.board);
        pthread_barrier_wait(&r.board->ready);
        if (r.board->act < 0)
            break;
        pthread_barrier_wait(&r.board->ready);
        tell(r.board, world_size);
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}
