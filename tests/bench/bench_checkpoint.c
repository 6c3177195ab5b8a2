/* Durable save, asynchronous stall, load, reshard 8 -> 4 and consolidation of a training
 * state, each in turn with what the machine does at best. usage: bench_checkpoint [FOLDER
 * [GIB [RUNS]]] */
#include "lib/bench.h"
#include "lib/rank_threads.h"
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANKS 8
#define ROWS 1024
enum { N_KINDS = 4 }; /* weight, master, exp_avg, exp_avg_sq, all float32 here */

struct setup {
    char folder[400];
    int n_params;
    int64_t cols;
    uint64_t bytes;
    unsigned char *memory[RANKS]; /* every rank's part, tensor after tensor */
    struct dcp_store store;
    int64_t step;
    double seconds; /* of rank 0 */
    int world_size, failures;
    bool load;
    int parity;
};

static const enum dcp_role roles[N_KINDS] = { DCP_ROLE_MODEL, DCP_ROLE_MASTER,
                                              DCP_ROLE_EXP_AVG, DCP_ROLE_EXP_AVG_SQ };

/* zero3 cut by hand: rank r of RANKS holds rows r*128 .. (r+1)*128 as a flat range. */
static struct dcp_local_tensor *locals_of(struct setup *s, int world_size, int rank,
                                          int64_t (*shape)[2], char (*names)[64])
{
    struct dcp_local_tensor *locals =
        calloc((size_t)(s->n_params * N_KINDS), sizeof *locals);
    int64_t part = ROWS * s->cols / world_size;

    *shape[0] = ROWS;
    (*shape)[1] = s->cols;
    for (int i = 0; i < s->n_params * N_KINDS; i++) {
        int param = i % s->n_params, kind = i / s->n_params;
        if (kind)
            snprintf(names[i], 64, "optimizer.%s.h.%d.weight", dcp_role_name(roles[kind]),
                     param);
        else
            snprintf(names[i], 64, "h.%d.weight", param);
        locals[i] = (struct dcp_local_tensor){
            .name = names[i],
            .param = names[param],
            .role = roles[kind],
            .dtype = DCP_F32,
            .ndim = 2,
            .shape = *shape,
            .region = { .kind = DCP_FLAT,
                        .begin = rank * part,
                        .end = (rank + 1) * part },
            .data = s->memory[rank] + (size_t)i * (size_t)part * 4,
        };
    }
    return locals;
}

static void act(void *arg, struct dcp_comm *comm)
{
    struct setup *s = arg;
    int64_t shape[1][2];
    char(*names)[64] = calloc((size_t)(s->n_params * N_KINDS), sizeof *names);
    struct dcp_local_tensor *locals =
        locals_of(s, comm->world_size, comm->rank, shape, names);
    struct dcp_state state = { .locals = locals,
                               .n_locals = (size_t)(s->n_params * N_KINDS),
                               .layout = "zero3" };
    struct dcp_context ctx = { .comm = comm,
                               .store = &s->store,
                               .threads = comm->world_size > 1 ? 1 : 2 };
    struct dcp_error err = { 0 };
    double started = bench_now();
    int rc;

    if (s->load) {
        struct dcp_load_options options = { .step = s->step };
        rc = dcp_load(&ctx, &options, &state, NULL, &err);
    } else {
        struct dcp_save_options options = { .step = s->step,
                                            .keep = 1,
                                            .parity = s->parity };
        rc = dcp_save(&ctx, &options, &state, NULL, &err);
    }
    if (rc) {
        fprintf(stderr, "rank %d: %s\n", comm->rank, err.message);
        __atomic_fetch_add(&s->failures, 1, __ATOMIC_SEQ_CST);
    }
    if (comm->rank == 0)
        s->seconds = bench_now() - started;
    free(locals);
    free(names);
}

static double save_s(void *arg)
{
    struct setup *s = arg;
    s->step++;
    s->load = false;
    rank_threads_run(RANKS, act, s);
    return s->failures ? -1 : s->seconds;
}

static double save_parity_s(void *arg)
{
    struct setup *s = arg;
    s->parity = 2;
    double seconds = save_s(arg);
    s->parity = 0;
    return seconds;
}

static double load_s(void *arg)
{
    struct setup *s = arg;
    s->load = true;
    rank_threads_run(RANKS, act, s);
    return s->failures ? -1 : s->seconds;
}

static void clean(void *arg)
{
    (void)arg;
    bench_shell("cd \"$F\" && rm -rf dd out copy model.safetensors && sync -f .");
}

/* Two of the eight shards: saved with parity, lost, and rebuilt. */
static void lose(void *arg)
{
    clean(arg);
    if (save_parity_s(arg) >= 0)
        bench_shell("rm \"$F\"/run/step-*/shard-0000[25]-of-*");
}

static double repair_s(void *arg)
{
    (void)arg;
    return bench_shell(DCP_BIN_DIR "/dcp-reshard repair -q > /dev/null \"$F\"/run");
}

/* Commands see the folder as $F. */
static double dd_s(void *arg)
{
    (void)arg;
    return bench_shell("dd if=\"$F\"/source of=\"$F\"/dd bs=1M conv=fsync status=none");
}

static double cat_s(void *arg)
{
    (void)arg;
    return bench_shell("cat \"$F\"/run/step-*/shard-*.safetensors > /dev/null");
}

static void cold(void *arg)
{
    struct setup *s = arg;
    char path[512];
    clean(arg);
    snprintf(path, sizeof path, "%s/run", s->folder);
    bench_drop_cache(path);
}

/* The stall of one rank that holds everything, staging memory warm, against memcpy of the
 * same bytes. */
struct stall {
    struct setup *setup;
    struct dcp_saver *saver;
    struct dcp_state state;
    unsigned char *copy;
};

static double one_stall_s(void *arg)
{
    struct stall *t = arg;
    struct dcp_save_options options = { .step = ++t->setup->step, .keep = 1 };
    struct dcp_save_result result;
    struct dcp_error err = { 0 };
    double started = bench_now();

    if (dcp_save_start(t->saver, &options, &t->state, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    double stall = bench_now() - started;
    return dcp_save_wait(t->saver, &result, &err) ? -1 : stall;
}

static double memcpy_s(void *arg)
{
    struct stall *t = arg;
    struct setup *s = t->setup;
    double started = bench_now();
    for (int r = 0; r < RANKS; r++)
        memcpy(t->copy + (uint64_t)r * (s->bytes / RANKS), s->memory[r],
               s->bytes / RANKS);
    return bench_now() - started;
}

static double reshard_s(void *arg)
{
    (void)arg;
    return bench_shell(DCP_BIN_DIR
                       "/dcp-reshard -q > /dev/null \"$F\"/run \"$F\"/out --world 4");
}

static double consolidate_s(void *arg)
{
    (void)arg;
    return bench_shell(DCP_BIN_DIR
                       "/dcp-reshard -q > /dev/null \"$F\"/run \"$F\"/model.safetensors"
                       " --to safetensors");
}

static double cp_s(void *arg)
{
    (void)arg;
    return bench_shell("cp -r \"$F\"/run/step-* \"$F\"/copy && sync -f \"$F\"/copy");
}

static bool run_stall(struct setup *s, int runs)
{
    struct stall t = { .setup = s };
    int64_t shape[1][2];
    char(*names)[64] = calloc((size_t)(s->n_params * N_KINDS), sizeof *names);
    struct dcp_context ctx = { .store = &s->store };
    struct dcp_local_tensor *locals = locals_of(s, 1, 0, shape, names);
    struct dcp_error err = { 0 };
    bool met = false;

    t.copy = malloc(s->bytes);
    t.state = (struct dcp_state){ .locals = locals,
                                  .n_locals = (size_t)(s->n_params * N_KINDS),
                                  .layout = "replicated" };
    if (t.copy && dcp_saver_new(&ctx, &t.saver, &err) == 0 && one_stall_s(&t) >= 0 &&
        memcpy_s(&t) >= 0)
        met = bench_run(&(struct bench){ .name = "asynchronous stall",
                                         .floor = "memcpy, one thread",
                                         .act_s = one_stall_s,
                                         .floor_s = memcpy_s,
                                         .arg = &t,
                                         .bytes = s->bytes,
                                         .aim = 1.5 },
                        runs);
    dcp_saver_free(t.saver);
    free(t.copy);
    free(locals);
    free(names);
    return met;
}

int main(int argc, char **argv)
{
    struct setup s = { 0 };
    double gib = argc > 2 ? strtod(argv[2], NULL) : 2;
    int runs = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 5;
    bool met = true;
    struct dcp_error err = { 0 };
    char path[512];

    snprintf(s.folder, sizeof s.folder, "%s/dcp-bench-%d",
             argc > 1 ? argv[1] : "/var/tmp", (int)getpid());
    s.cols = 1024;
    s.n_params = (int)(gib * 1024 / (4 * N_KINDS));
    s.bytes = (uint64_t)s.n_params * N_KINDS * ROWS * (uint64_t)s.cols * 4;
    unsigned char *memory = malloc(s.bytes);
    snprintf(path, sizeof path, "%s/run", s.folder);
    setenv("F", s.folder, 1);
    if (!memory || mkdir(s.folder, 0755) || dcp_store_dir(&s.store, path, true, &err)) {
        fprintf(stderr, "cannot set up %s: %s\n", s.folder, err.message);
        return 1;
    }
    uint64_t x = 88172645463325252u; /* xorshift: data no file system can make smaller */
    for (uint64_t i = 0; i < s.bytes / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(memory + 8 * i, &x, 8);
    }
    for (int r = 0; r < RANKS; r++)
        s.memory[r] = memory + (uint64_t)r * (s.bytes / RANKS);
    snprintf(path, sizeof path, "%s/source", s.folder);
    FILE *source = fopen(path, "w");
    if (!source || fwrite(memory, 1, s.bytes, source) != s.bytes || fclose(source))
        return 1;
    printf("%.2f GiB, %d ranks, %d tensors, in %s, median of %d\n",
           (double)s.bytes / (1 << 30), RANKS, s.n_params * N_KINDS, s.folder, runs);
    bench_header();
    struct bench b = { .name = "durable save, 8 ranks",
                       .floor = "dd conv=fsync",
                       .act_s = save_s,
                       .floor_s = dd_s,
                       .prepare = clean,
                       .arg = &s,
                       .bytes = s.bytes,
                       .aim = 1.5 };
    met &= bench_run(&b, runs);
    b.name = "durable save, 8 + 2", b.act_s = save_parity_s, b.aim = 0;
    met &= bench_run(&b, runs);
    b.name = "repair of 2 of 8 + 2", b.act_s = repair_s, b.prepare = lose;
    met &= bench_run(&b, runs);
    b.aim = 1.5, b.prepare = clean;
    b.name = "load, 8 ranks, cold", b.floor = "cat, cold", b.prepare = cold;
    b.act_s = load_s, b.floor_s = cat_s;
    met &= bench_run(&b, runs);
    b.name = "load, 8 ranks, cached", b.floor = "cat, cached", b.prepare = NULL,
    b.aim = 0;
    met &= bench_run(&b, runs);
    b.name = "reshard 8 -> 4", b.floor = "cp -r + sync", b.prepare = clean, b.aim = 1.5;
    b.act_s = reshard_s, b.floor_s = cp_s;
    met &= bench_run(&b, runs);
    b.name = "consolidate", b.act_s = consolidate_s;
    met &= bench_run(&b, runs);
    met &= run_stall(&s, runs);
    bench_shell("rm -rf \"$F\"");
    dcp_store_free(&s.store);
    free(memory);
    return met ? 0 : 1;
}
