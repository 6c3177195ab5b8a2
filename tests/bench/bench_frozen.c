/* A save of a state most of which is frozen, as a delta on the step before it and in
 * full: a model with low-rank adapters beside its weights, and moments of these alone.
 * usage: bench_frozen [FOLDER [GIB [RUNS]]] */
#include "lib/bench.h"
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A weight of 8 MiB, and one hundredth of that in what is trained of its layer. */
enum { WIDTH = 2048, RANK = 7, N_KINDS = 4 };
#define FROZEN ((uint64_t)WIDTH * WIDTH * 2)
#define ADAPTER ((uint64_t)WIDTH * RANK * 4)

struct setup {
    char folder[400], (*names)[64];
    int n_layers;
    uint64_t bytes;
    unsigned char *memory;
    struct dcp_local_tensor *locals;
    struct dcp_state state;
};

/* A run of it. */
struct run {
    struct setup *setup;
    int delta;
    bool again; /* each save is by another process */
    struct dcp_store store;
    struct dcp_saver *saver;
    int64_t step;
    uint64_t written; /* by the last save */
};

static const int64_t square[] = { WIDTH, WIDTH }, low[] = { WIDTH, RANK };

static void describe(struct setup *s)
{
    static const char *const forms[N_KINDS] = { "layer.%d.weight", "layer.%d.lora",
                                                "optimizer.exp_avg.layer.%d.lora",
                                                "optimizer.exp_avg_sq.layer.%d.lora" };
    static const enum dcp_role roles[N_KINDS] = { DCP_ROLE_MODEL, DCP_ROLE_MODEL,
                                                  DCP_ROLE_EXP_AVG, DCP_ROLE_EXP_AVG_SQ };
    unsigned char *at = s->memory;

    for (int i = 0; i < s->n_layers * N_KINDS; i++) {
        int layer = i % s->n_layers, kind = i / s->n_layers;
        snprintf(s->names[i], sizeof s->names[i], forms[kind], layer);
        s->locals[i] = (struct dcp_local_tensor){
            .name = s->names[i],
            .param = kind > 1 ? s->names[s->n_layers + layer] : NULL,
            .role = roles[kind],
            .dtype = kind ? DCP_F32 : DCP_BF16,
            .ndim = 2,
            .shape = kind ? low : square,
            .data = at,
        };
        at += kind ? ADAPTER : FROZEN;
    }
    s->state = (struct dcp_state){ .locals = s->locals,
                                   .n_locals = (size_t)(s->n_layers * N_KINDS),
                                   .layout = "replicated" };
}

static void fill(unsigned char *to, uint64_t n)
{
    static uint64_t x = 88172645463325252u; /* xorshift: nothing can make it smaller */

    for (uint64_t i = 0; i < n; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(to + i, &x, 8);
    }
}

static void train(void *arg)
{
    struct setup *s = ((struct run *)arg)->setup;

    fill(s->memory + (uint64_t)s->n_layers * FROZEN,
         (uint64_t)s->n_layers * ADAPTER * (N_KINDS - 1));
    sync();
}

/* Bytes that this process gave to write(). */
static uint64_t written(void)
{
    unsigned long long bytes = 0;
    char line[128];
    FILE *file = fopen("/proc/self/io", "r");

    while (file && fgets(line, sizeof line, file))
        sscanf(line, "wchar: %llu", &bytes);
    if (file)
        fclose(file);
    return bytes;
}

static double save_s(void *arg)
{
    struct run *run = arg;
    const struct dcp_context ctx = { .store = &run->store, .threads = 2 };
    const struct dcp_save_options options = {
        .step = ++run->step, .keep = 1, .delta = run->delta, .in_place = true
    };
    struct dcp_error err = { 0 };
    uint64_t before = written();
    double started = bench_now();
    int rc = DCP_OK;

    if (run->again || !run->saver) {
        dcp_saver_free(run->saver);
        rc = dcp_saver_new(&ctx, &run->saver, &err);
    }
    if (!rc)
        rc = dcp_save_start(run->saver, &options, &run->setup->state, &err);
    if (!rc)
        rc = dcp_save_wait(run->saver, NULL, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    run->written = written() - before;
    return rc ? -1 : bench_now() - started;
}

struct pair {
    struct run delta, full;
};

static double delta_s(void *arg)
{
    return save_s(&((struct pair *)arg)->delta);
}

static double full_s(void *arg)
{
    return save_s(&((struct pair *)arg)->full);
}

/* Of each: the first is full. */
static bool begin(struct run *run, struct setup *s, const char *name, int delta)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    *run = (struct run){ .setup = s, .delta = delta };
    return !dcp_store_delta_dir(&run->store, path, true, NULL) && save_s(run) >= 0;
}

int main(int argc, char **argv)
{
    struct setup s = { 0 };
    double gib = argc > 2 ? strtod(argv[2], NULL) : 0.5;
    int runs = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 5;
    struct pair pair;

    snprintf(s.folder, sizeof s.folder, "%s/dcp-bench-%d",
             argc > 1 ? argv[1] : "/var/tmp", (int)getpid());
    s.n_layers = (int)(gib * (1 << 30) / (double)FROZEN);
    s.bytes = (uint64_t)s.n_layers * (FROZEN + (N_KINDS - 1) * ADAPTER);
    s.memory = malloc(s.bytes);
    s.names = calloc((size_t)(s.n_layers * N_KINDS), sizeof *s.names);
    s.locals = calloc((size_t)(s.n_layers * N_KINDS), sizeof *s.locals);
    setenv("F", s.folder, 1);
    if (!s.memory || !s.names || !s.locals || mkdir(s.folder, 0755))
        return 1;
    fill(s.memory, s.bytes);
    describe(&s);
    if (!begin(&pair.delta, &s, "delta", 1000000) || !begin(&pair.full, &s, "full", 0))
        return 1;
    printf("%.2f GiB, 1 rank, %d tensors, %.1f %% of the bytes trained, in %s, median of "
           "%d\n",
           (double)s.bytes / (1 << 30), s.n_layers * N_KINDS,
           300.0 * (double)ADAPTER / (double)(FROZEN + 3 * ADAPTER), s.folder, runs);
    bench_header();
    struct bench b = { .name = "save as a delta",
                       .floor = "the same save in full",
                       .act_s = delta_s,
                       .floor_s = full_s,
                       .prepare = train,
                       .arg = &pair,
                       .bytes = s.bytes,
                       .aim = 1 };
    /* `prepare` has the run as its first member. */
    bool met = bench_run(&b, runs);
    pair.delta.again = true;
    b.name = "the first of a process", b.aim = 0;
    met &= bench_run(&b, runs);
    double fewer = (double)pair.full.written / (double)pair.delta.written;
    printf("bytes written: %.1f MiB in full, %.2f MiB as a delta: %.0f times fewer "
           "(aim: 10)\n",
           (double)pair.full.written / (1 << 20), (double)pair.delta.written / (1 << 20),
           fewer);
    dcp_saver_free(pair.delta.saver);
    dcp_saver_free(pair.full.saver);
    dcp_store_free(&pair.delta.store);
    dcp_store_free(&pair.full.store);
    bench_shell("rm -rf \"$F\"");
    free(s.memory);
    free(s.names);
    free(s.locals);
    return met && fewer >= 10 ? 0 : 1;
}
