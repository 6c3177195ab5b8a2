#include "run_folder.h"

#include "base/mem.h"
#include "rank_threads.h"
#include <dcp/checkpoint.h>
#include <dcp/reshard.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *name;
    int ndim;
    int64_t shape[2];
    bool is_norm; /* its weights are 1 */
} params[] = {
    { "wte.weight", 2, { 96, 16 }, false },
    { "h.0.ln_1.weight", 1, { 16 }, true },
    { "h.0.attn.c_attn.weight", 2, { 16, 48 }, false },
    { "h.1.ln_1.weight", 1, { 16 }, true },
    { "h.1.attn.c_attn.weight", 2, { 16, 48 }, false },
    { "h.1.attn.c_attn.bias", 1, { 48 }, false },
};
#define N_PARAMS DCP_ARRAY_LEN(params)

static const struct {
    enum dcp_role role;
    enum dcp_dtype dtype;
    double scale;
} kinds[] = {
    { DCP_ROLE_MODEL, DCP_BF16, 1 },
    { DCP_ROLE_MASTER, DCP_F32, 1 },
    { DCP_ROLE_EXP_AVG, DCP_F32, 0.125 },
    { DCP_ROLE_EXP_AVG_SQ, DCP_F32, 0.015625 },
};
#define N_KINDS DCP_ARRAY_LEN(kinds)

static const char *const objects[][2] = {
    { "model_config", "{\"model_type\":\"toy\",\"n_layer\":2,\"n_head\":2,\"n_embd\":16,"
                      "\"vocab_size\":96,"
                      "\"n_positions\":32}" },
    { "scheduler", "{\"last_batch_iteration\":299}" },
    { "rng", "{\"seed\":1337,\"counter\":4800}" },
    { "data", "{\"cursor\":153600}" },
    { "trainer", "{\"step\":300,\"tokens\":614400}" },
};

struct run {
    struct dcp_store *store;
    int64_t step;
    int codes[RUN_FOLDER_WORLD_SIZE]; /* of the ranks */
    struct dcp_error errors[RUN_FOLDER_WORLD_SIZE];
};

/* Between -0.5 and 0.5; every step is another state. */
static double number(size_t p, size_t kind, int64_t elem, int64_t step)
{
    double v =
        params[p].is_norm
            ? 1
            : (double)((elem * 37 + (int64_t)p * 11 + step / 100) % 101 - 50) / 100;
    if (kinds[kind].role == DCP_ROLE_EXP_AVG_SQ)
        v *= v;
    return v * kinds[kind].scale;
}

static int fill(struct dcp_local_tensor *local, size_t p, size_t kind, int64_t n,
                int64_t step, struct dcp_error *err)
{
    local->data = dcp_mem_calloc((size_t)n, dcp_dtype_size(local->dtype));
    if (!local->data)
        return dcp_error_memory(err, "a piece");
    for (int64_t i = 0; i < n; i++) {
        double v = number(p, kind, local->region.begin + i, step);
        char *to = (char *)local->data + (size_t)i * dcp_dtype_size(local->dtype);
        int rc = dcp_cast(DCP_F64, local->dtype, &v, to, 1, err);
        if (rc)
            return rc;
    }
    return DCP_OK;
}

/* ZeRO-3: each tensor in as many equal parts as there are ranks; all sizes allow it. */
static struct dcp_region part_of(int64_t n_elems, int rank)
{
    int64_t part = n_elems / RUN_FOLDER_WORLD_SIZE;
    return (struct dcp_region){ .kind = DCP_FLAT,
                                .begin = part * rank,
                                .end = part * (rank + 1) };
}

static int save(struct run *run, struct dcp_comm *comm, struct dcp_error *err)
{
    struct dcp_local_tensor locals[N_PARAMS * N_KINDS] = { 0 };
    char names[N_PARAMS * N_KINDS][96];
    struct dcp_object list[DCP_ARRAY_LEN(objects)];
    int rc = DCP_OK;
    for (size_t i = 0; i < DCP_ARRAY_LEN(objects); i++)
        list[i] = (struct dcp_object){ .name = objects[i][0],
                                       .kind = DCP_OBJECT_JSON,
                                       .data = objects[i][1],
                                       .size_bytes = strlen(objects[i][1]) };
    for (size_t i = 0; i < N_PARAMS * N_KINDS && !rc; i++) {
        size_t kind = i / N_PARAMS, p = i % N_PARAMS;
        int64_t n = params[p].shape[0] * (params[p].ndim > 1 ? params[p].shape[1] : 1);
        struct dcp_region region = part_of(n, comm->rank);
        snprintf(names[i], sizeof names[i], "%s%s%s%s", kind ? "optimizer." : "",
                 kind ? dcp_role_name(kinds[kind].role) : "", kind ? "." : "",
                 params[p].name);
        locals[i] = (struct dcp_local_tensor){ .name = names[i],
                                               .param = params[p].name,
                                               .role = kinds[kind].role,
                                               .dtype = kinds[kind].dtype,
                                               .ndim = params[p].ndim,
                                               .shape = params[p].shape,
                                               .region = region };
        rc = fill(&locals[i], p, kind, region.end - region.begin, run->step, err);
    }
    struct dcp_context ctx = { .comm = comm, .store = run->store };
    struct dcp_save_options options = { .step = run->step };
    struct dcp_state state = { .locals = locals,
                               .n_locals = N_PARAMS * N_KINDS,
                               .objects = list,
                               .n_objects = DCP_ARRAY_LEN(objects),
                               .layout = "zero3",
                               .mesh = { RUN_FOLDER_WORLD_SIZE, 1, 1 } };
    if (!rc)
        rc = dcp_save(&ctx, &options, &state, NULL, err);
    for (size_t i = 0; i < N_PARAMS * N_KINDS; i++)
        free(locals[i].data);
    return rc;
}

static void save_rank(void *arg, struct dcp_comm *comm)
{
    struct run *run = arg;
    run->codes[comm->rank] = save(run, comm, &run->errors[comm->rank]);
}

int run_folder_make(const char *path)
{
    struct dcp_store store;
    struct dcp_error err = { 0 };
    char unfinished[4096];
    if (dcp_store_dir(&store, path, true, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    int failed = 0;
    for (int64_t step = 100; step <= 300; step += 100) {
        struct run run = { .store = &store, .step = step };
        rank_threads_run(RUN_FOLDER_WORLD_SIZE, save_rank, &run);
        for (int r = 0; r < RUN_FOLDER_WORLD_SIZE; r++)
            if (run.codes[r]) {
                fprintf(stderr, "rank %d: %s\n", r, run.errors[r].message);
                failed = 1;
            }
    }
    dcp_store_free(&store);
    snprintf(unfinished, sizeof unfinished, "%s/.tmp-step-00000400", path);
    return mkdir(unfinished, 0777) ? 1 : failed;
}
