/* Ranks as processes, which save, load, and write the same bytes as plainly as can be,
 * when they are told; tests/bench/saves tells them. usage: bench_ranks WORLD BYTES
 * TENSORS
 *
 * A line of input: "write FOLDER", "save FOLDER" or "load FOLDER". A line of output:
 * seconds of the slowest rank, and CPU seconds of all. */
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

enum act { WRITE, SAVE, LOAD, END };

/* What all see. */
struct board {
    pthread_barrier_t ready;
    enum act act;
    char folder[400];
    int64_t step;
    struct {
        double seconds, cpu_s;
        int failed;
    } ranks[MAX_RANKS];
};

struct rank {
    struct board *board;
    struct dcp_comm comm;
    int rank, world_size, n_tensors;
    int64_t n_elems; /* of a tensor, of all ranks */
    float *data;     /* what this one has of each */
    char (*names)[64];
};

static int64_t begin_of(const struct rank *r, int rank)
{
    return r->n_elems * rank / r->world_size;
}

static size_t own_bytes(const struct rank *r)
{
    return (size_t)(begin_of(r, r->rank + 1) - begin_of(r, r->rank)) * sizeof(float);
}

/* One write after the other into a file whose room is taken, and one fsync. */
static int write_plainly(const struct rank *r)
{
    char path[500];
    size_t size_bytes = own_bytes(r) * (size_t)r->n_tensors;
    const char *data = (const char *)r->data;
    snprintf(path, sizeof path, "%s/%d", r->board->folder, r->rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), rc = fd < 0;
    rc = rc || posix_fallocate(fd, 0, (off_t)size_bytes);
    for (size_t at = 0, n; at < size_bytes && !rc; at += n) {
        n = size_bytes - at < PIECE ? size_bytes - at : PIECE;
        rc = write(fd, data + at, n) != (ssize_t)n;
    }
    rc = rc || fsync(fd);
    return close(fd) || rc;
}

static int checkpoint(struct rank *r)
{
    struct dcp_error err = { 0 };
    struct dcp_store store;
    size_t n = (size_t)r->n_tensors;
    struct dcp_local_tensor *locals = calloc(n, sizeof *locals);
    must(locals && dcp_store_dir(&store, r->board->folder, true, &err) == 0);
    for (size_t i = 0; i < n; i++)
        locals[i] = (struct dcp_local_tensor){
            .name = r->names[i],
            .param = r->names[i],
            .dtype = DCP_F32,
            .ndim = 1,
            .shape = &r->n_elems,
            .region = { .kind = DCP_FLAT,
                        .begin = begin_of(r, r->rank),
                        .end = begin_of(r, r->rank + 1) },
            .data = (char *)r->data + i * own_bytes(r),
        };
    struct dcp_state state = { .locals = locals, .n_locals = n, .layout = "flat" };
    struct dcp_context ctx = { .comm = &r->comm, .store = &store, .threads = 1 };
    struct dcp_save_options save = { .step = r->board->step };
    struct dcp_load_options load = { .step = -1 };
    int rc = r->board->act == SAVE ? dcp_save(&ctx, &save, &state, NULL, &err)
                                   : dcp_load(&ctx, &load, &state, NULL, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", r->rank, err.message);
    dcp_store_free(&store);
    free(locals);
    return rc;
}

static double cpu_of(const struct rusage *u)
{
    return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
           1e-6 * (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec);
}

static void run(struct rank *r)
{
    struct board *b = r->board;
    while (pthread_barrier_wait(&b->ready), b->act != END) {
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        double began = bench_now();
        b->ranks[r->rank].failed = b->act == WRITE ? write_plainly(r) : checkpoint(r);
        b->ranks[r->rank].seconds = bench_now() - began;
        getrusage(RUSAGE_SELF, &after);
        b->ranks[r->rank].cpu_s = cpu_of(&after) - cpu_of(&before);
        pthread_barrier_wait(&b->ready);
    }
}

/* Data that no file system can make smaller. */
static void make(struct rank *r)
{
    size_t size_bytes = own_bytes(r) * (size_t)r->n_tensors;
    uint64_t x = 88172645463325252u + (uint64_t)r->rank;
    must((r->data = malloc(size_bytes)) != NULL);
    must((r->names = calloc((size_t)r->n_tensors, sizeof *r->names)) != NULL);
    for (size_t at = 0; at + 8 <= size_bytes; at += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy((char *)r->data + at, &x, 8);
    }
    for (int i = 0; i < r->n_tensors; i++)
        snprintf(r->names[i], sizeof r->names[i], "h.%d.weight", i);
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
    dcp_comm_free(&r->comm);
    _exit(0);
}

/* False: there is nothing more to do. */
static bool next_act(struct board *b)
{
    char line[500], word[16];
    static const char *const words[] = { "write", "save", "load" };
    b->act = END;
    if (!fgets(line, sizeof line, stdin))
        return false;
    must(sscanf(line, "%15s %399[^\n]", word, b->folder) == 2);
    for (int i = 0; i < END; i++)
        if (!strcmp(word, words[i]))
            b->act = (enum act)i;
    must(b->act != END);
    b->step += b->act == SAVE;
    return true;
}

static void tell(const struct board *b, int world_size)
{
    double seconds = 0, cpu_s = 0;
    for (int r = 0; r < world_size; r++) {
        must(!b->ranks[r].failed);
        seconds = b->ranks[r].seconds > seconds ? b->ranks[r].seconds : seconds;
        cpu_s += b->ranks[r].cpu_s;
    }
    printf("%.6f %.6f\n", seconds, cpu_s);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: bench_ranks WORLD BYTES TENSORS\n");
        return 2;
    }
    int world_size = (int)strtol(argv[1], NULL, 10);
    struct rank r = { .world_size = world_size,
                      .n_tensors = (int)strtol(argv[3], NULL, 10) };
    must(world_size > 0 && world_size <= MAX_RANKS && r.n_tensors > 0);
    r.n_elems = strtoll(argv[2], NULL, 10) / r.n_tensors / (int64_t)sizeof(float);
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
    for (bool more = true; more;) {
        more = next_act(r.board);
        pthread_barrier_wait(&r.board->ready);
        if (!more)
            break;
        pthread_barrier_wait(&r.board->ready);
        tell(r.board, world_size);
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}
