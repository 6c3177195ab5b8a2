/* A state of which little is trained: what is frozen is written once, by the first save
 * of a run, whoever saves next; and what is damaged is never built on. */
#include "lib/rank_threads.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* Of each rank: frozen weights, and between them, by their names, small ones that are
 * trained, with a moment each. */
enum { LAYERS = 3, FROZEN = 410003, TRAINED = 1000 };

/* -- a store that counts ------------------------------------------------------------- */

struct counting {
    struct dcp_store_forward forward;
    struct dcp_store memory, delta;
    _Atomic uint64_t written, read;
    void (*on_write)(void *arg); /* before the next write of a block; once */
    void *arg;
    char told[2048]; /* warnings */
};

static int count_write(void *self, struct dcp_store_file *file, uint64_t offset,
                       const void *data, size_t n, struct dcp_error *err)
{
    struct counting *counting = self;
    void (*on_write)(void *arg) = counting->on_write;

    counting->on_write = NULL;
    if (on_write)
        on_write(counting->arg);
    counting->written += n;
    return counting->memory.ops->write_at(counting->memory.self, file, offset, data, n,
                                          err);
}

static int count_read(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                      size_t n, struct dcp_error *err)
{
    struct counting *counting = self;

    counting->read += n;
    return counting->memory.ops->read_at(counting->memory.self, file, offset, out, n,
                                         err);
}

static void hear(void *self, enum dcp_log_level level, const char *message)
{
    struct counting *counting = self;
    size_t n = strlen(counting->told);

    if (level == DCP_LOG_WARN)
        snprintf(counting->told + n, sizeof counting->told - n, "%s\n", message);
}

static void counting_init(struct counting *counting)
{
    struct dcp_store counted;

    *counting = (struct counting){ .written = 0 };
    assert_int_equal(dcp_store_mem(&counting->memory, NULL), 0);
    dcp_store_forward(&counted, &counting->forward, &counting->memory);
    counting->forward.ops.write_at = count_write;
    counting->forward.ops.read_at = count_read;
    assert_int_equal(dcp_store_delta(&counting->delta, &counted, NULL, NULL, NULL), 0);
}

static void counting_fini(struct counting *counting)
{
    dcp_store_free(&counting->delta);
    dcp_store_free(&counting->memory);
}

/* -- a state ------------------------------------------------------------------------- */

struct lora {
    float *data; /* all of it */
    char names[3 * LAYERS][32];
    int64_t frozen, trained; /* elements of a tensor, of all ranks */
    struct dcp_local_tensor locals[3 * LAYERS];
    struct dcp_state state;
};
enum { ALL = LAYERS * (FROZEN + 2 * TRAINED) };

static void add(struct lora *lora, const char *form, int layer, enum dcp_role role,
                const int64_t *shape, float *data, const struct dcp_comm *comm)
{
    size_t i = lora->state.n_locals++;
    int64_t n = *shape / comm->world_size;

    snprintf(lora->names[i], sizeof lora->names[i], form, layer);
    lora->locals[i] = (struct dcp_local_tensor){
        .name = lora->names[i],
        .role = role,
        .dtype = DCP_F32,
        .ndim = 1,
        .shape = shape,
        .region = { .kind = DCP_FLAT,
                    .begin = comm->rank * n,
                    .end = comm->rank * n + n },
        .data = data,
    };
}

static void lora_init(struct lora *lora, const struct dcp_comm *comm)
{
    *lora = (struct lora){ .data = malloc(ALL * sizeof(float)),
                           .frozen = (int64_t)FROZEN * comm->world_size,
                           .trained = (int64_t)TRAINED * comm->world_size,
                           .state = { .locals = lora->locals,
                                      .layout = "of mine",
                                      .mesh = { comm->world_size, 1, 1 } } };
    assert_non_null(lora->data);
    float *at = lora->data;
    for (int l = 0; l < LAYERS; l++, at += FROZEN)
        add(lora, "layer.%d.weight", l, DCP_ROLE_MODEL, &lora->frozen, at, comm);
    for (int l = 0; l < LAYERS; l++, at += TRAINED)
        add(lora, "layer.%d.lora", l, DCP_ROLE_MODEL, &lora->trained, at, comm);
    for (int l = 0; l < LAYERS; l++, at += TRAINED)
        add(lora, "layer.%d.lora.moment", l, DCP_ROLE_OPTIM, &lora->trained, at, comm);
    for (int i = 0; i < ALL; i++)
        lora->data[i] = (float)(i % 9973) + (float)comm->rank / 4;
}

static void train(struct lora *lora)
{
    for (int i = LAYERS * FROZEN; i < ALL; i++)
        lora->data[i] = lora->data[i] * 1.001f + 0.1f;
}

/* What a step gives is this state. */
static void check(const struct lora *lora, const struct dcp_store *store, int64_t step,
                  struct dcp_comm *comm)
{
    const struct dcp_context ctx = { .store = store, .comm = comm };
    struct lora into;

    lora_init(&into, comm);
    memset(into.data, 0, ALL * sizeof(float));
    struct dcp_load_result result;
    assert_int_equal(dcp_load(&ctx, &(struct dcp_load_options){ .step = step },
                              &into.state, &result, NULL),
                     0);
    assert_int_equal(result.step, step);
    dcp_catalog_free(result.catalog);
    assert_memory_equal(into.data, lora->data, ALL * sizeof(float));
    free(into.data);
}

/* -- saves --------------------------------------------------------------------------- */

struct run {
    struct counting counting;
    struct dcp_comm self;
    struct dcp_log log;
    struct dcp_context ctx;
    struct dcp_saver *saver;
    struct lora lora;
    struct dcp_save_result result;
};

static void run_init(struct run *run)
{
    counting_init(&run->counting);
    dcp_comm_self(&run->self);
    run->log = (struct dcp_log){ hear, &run->counting, DCP_LOG_WARN };
    run->ctx = (struct dcp_context){ .store = &run->counting.delta, .log = &run->log };
    assert_int_equal(dcp_saver_new(&run->ctx, &run->saver, NULL), 0);
    lora_init(&run->lora, &run->self);
}

static void run_fini(struct run *run)
{
    dcp_saver_free(run->saver);
    free(run->lora.data);
    counting_fini(&run->counting);
}

static int save_as(struct run *run, const struct dcp_save_options *options)
{
    run->counting.written = run->counting.read = 0;
    run->counting.told[0] = '\0';
    int rc = dcp_save_start(run->saver, options, &run->lora.state, NULL);
    return rc ? rc : dcp_save_wait(run->saver, &run->result, NULL);
}

static int save(struct run *run, int64_t step, int delta)
{
    return save_as(run, &(struct dcp_save_options){
                            .step = step, .delta = delta, .in_place = true });
}

static void next_process(struct run *run)
{
    dcp_saver_free(run->saver);
    assert_int_equal(dcp_saver_new(&run->ctx, &run->saver, NULL), 0);
}

/* The step that another one is a delta on, as a number; 0: it is none. */
static int64_t base_of(const struct run *run, int64_t step)
{
    struct dcp_step found;

    assert_int_equal(dcp_find(&run->ctx, step, &found, NULL), 0);
    return found.chain ? strtoll(found.base + strlen("step-"), NULL, 10) : 0;
}

/* Flips a bit of a float of the state, in the shard of a step. */
static void damage(struct run *run, int64_t step, int rank, int world_size, size_t tensor)
{
    char path[128], name[64];
    struct dcp_catalog *catalog;
    struct dcp_store *memory = &run->counting.memory;
    struct dcp_store_file *file;
    unsigned char byte;

    snprintf(name, sizeof name, "step-%08lld", (long long)step);
    snprintf(path, sizeof path, "%s/shard-%05d-of-%05d.safetensors", name, rank,
             world_size);
    assert_int_equal(dcp_catalog_new(&catalog, NULL), 0);
    assert_int_equal(dcp_format_of_steps()->index(
                         &(struct dcp_source){ memory, name, true }, catalog, NULL),
                     0);
    uint64_t offset = 300; /* in the header */
    for (size_t p = 0; tensor != SIZE_MAX && p < catalog->n_pieces; p++)
        if ((size_t)catalog->pieces[p].tensor == tensor &&
            catalog->pieces[p].rank == rank)
            offset = catalog->pieces[p].offset + catalog->pieces[p].stored_size / 2;
    dcp_catalog_free(catalog);
    assert_int_equal(memory->ops->reopen(memory->self, path, &file, NULL), 0);
    assert_int_equal(memory->ops->read_at(memory->self, file, offset, &byte, 1, NULL), 0);
    byte ^= 4;
    assert_int_equal(memory->ops->write_at(memory->self, file, offset, &byte, 1, NULL),
                     0);
    assert_int_equal(memory->ops->close(memory->self, file, NULL), 0);
}

/* -- tests --------------------------------------------------------------------------- */

static void what_is_frozen_is_written_once(void **state)
{
    struct run run;

    (void)state;
    run_init(&run);
    assert_int_equal(save(&run, 1, 9), 0);
    uint64_t full = run.counting.written;
    assert_in_range(full, ALL * 4, ALL * 4 + 100000);
    assert_int_equal(run.result.base_bytes, 0);
    for (int64_t step = 2; step <= 3; step++) {
        train(&run.lora);
        assert_int_equal(save(&run, step, 9), 0);
        assert_in_range(run.counting.written, 1, full / 20);
        assert_in_range(run.counting.read, 1, full / 20); /* nor read */
        assert_int_equal(base_of(&run, step), 1);
        assert_in_range(run.result.base_bytes, LAYERS * FROZEN * 4UL, full);
        assert_in_range(run.result.written_bytes, 1, run.counting.written);
        check(&run.lora, run.ctx.store, step, &run.self);
    }
    assert_string_equal(run.counting.told, "");
    run_fini(&run);
}

/* It reads the base once, to know it, and goes on counting. */
static void the_next_process_goes_on(void **state)
{
    struct run run;

    (void)state;
    run_init(&run);
    for (int64_t step = 1; step <= 6; step++) {
        assert_int_equal(save(&run, step, 3), 0);
        bool is_full = step == 1 || step == 4;
        assert_int_equal(base_of(&run, step), is_full ? 0 : step < 4 ? 1 : 4);
        assert_true((run.counting.written > ALL * 4) == is_full);
        assert_true(is_full || run.counting.read > ALL * 4);
        check(&run.lora, run.ctx.store, step, &run.self);
        train(&run.lora);
        next_process(&run);
    }
    assert_int_equal(save(&run, 7, 9), 0);
    assert_int_equal(base_of(&run, 7), 4);
    assert_int_equal(save(&run, 8, 9), 0); /* it knows the base by now */
    assert_in_range(run.counting.read, 1, ALL / 5);
    run_fini(&run);
}

/* A base in which something is damaged that is read: the step does without it. */
static void what_is_damaged_is_not_built_on(void **state)
{
    static const struct {
        size_t tensor;
        bool verify, again; /* read back from the disk; by the next process */
        const char *told;
    } cases[] = {
        { SIZE_MAX, false, false, "has another header" },
        { LAYERS, false, false, "is corrupt: a digest differs" },
        { 0, true, false, "is corrupt: a digest differs" },
        { 0, false, true, "is corrupt: a digest differs" },
    };
    struct run run;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_init(&run);
        assert_int_equal(save(&run, 1, 9), 0);
        damage(&run, 1, 0, 1, cases[i].tensor);
        if (cases[i].again)
            next_process(&run);
        train(&run.lora);
        assert_int_equal(save_as(&run, &(struct dcp_save_options){ .step = 2,
                                                                   .delta = 9,
                                                                   .in_place = true,
                                                                   .verify_after_save =
                                                                       cases[i].verify }),
                         0);
        assert_non_null(strstr(run.counting.told, cases[i].told));
        assert_int_equal(base_of(&run, 2), 0);
        check(&run.lora, run.ctx.store, 2, &run.self);
        train(&run.lora);
        assert_int_equal(save(&run, 3, 9), 0); /* the bad base is not asked again */
        assert_int_equal(base_of(&run, 3), 0);
        assert_int_equal(save(&run, 4, 9), 0);
        assert_int_equal(base_of(&run, 4), 3);
        check(&run.lora, run.ctx.store, 4, &run.self);
        run_fini(&run);
    }
}

static void a_base_that_is_gone(void **state)
{
    struct run run;

    (void)state;
    run_init(&run);
    assert_int_equal(save(&run, 1, 9), 0);
    const struct dcp_store *memory = &run.counting.memory;
    assert_int_equal(memory->ops->remove(memory->self, "step-00000001", NULL), 0);
    assert_int_equal(save(&run, 2, 9), 0);
    assert_non_null(strstr(run.counting.told, "stored in full"));
    assert_int_equal(base_of(&run, 2), 0);
    check(&run.lora, run.ctx.store, 2, &run.self);
    run_fini(&run);
}

/* That is found when the shards are written: the next save does without it. */
static void a_base_that_cannot_be_entered(void **state)
{
    struct run run;

    (void)state;
    run_init(&run);
    assert_int_equal(save(&run, 1, 9), 0);
    const struct dcp_store *memory = &run.counting.memory;
    assert_int_equal(
        memory->ops->remove(memory->self, "step-00000001/manifest.json", NULL), 0);
    assert_int_not_equal(save(&run, 2, 9), 0);
    assert_int_equal(save(&run, 3, 9), 0);
    assert_int_equal(base_of(&run, 3), 0);
    check(&run.lora, run.ctx.store, 3, &run.self);
    run_fini(&run);
}

static void take_away(void *arg)
{
    const struct dcp_store *memory = arg;

    memory->ops->remove(memory->self, "step-00000001/shard-00000-of-00001.safetensors",
                        NULL);
}

static void a_base_that_goes_while_it_is_saved_against(void **state)
{
    struct run run;

    (void)state;
    run_init(&run);
    assert_int_equal(save(&run, 1, 9), 0);
    run.counting.on_write = take_away;
    run.counting.arg = &run.counting.memory;
    assert_int_not_equal(save(&run, 2, 9), 0);
    assert_int_equal(save(&run, 3, 9), 0);
    check(&run.lora, run.ctx.store, 3, &run.self);
    run_fini(&run);
}

static void other_tensors_have_no_base(void **state)
{
    struct run run;

    (void)state;
    run_init(&run);
    assert_int_equal(save(&run, 1, 9), 0);
    run.lora.state.n_locals--;
    assert_int_equal(save(&run, 2, 9), 0);
    assert_non_null(strstr(run.counting.told, "has other pieces"));
    assert_int_equal(base_of(&run, 2), 0);
    run_fini(&run);
}

static void change(void *arg)
{
    ((float *)arg)[5] += 1;
}

/* Its digests are taken, and its bytes are read again. */
static void a_state_that_changes_while_it_is_saved(void **state)
{
    struct run run;

    (void)state;
    run_init(&run);
    assert_int_equal(save(&run, 1, 9), 0);
    train(&run.lora);
    run.counting.on_write = change;                     /* the head of the delta */
    run.counting.arg = run.lora.data + LAYERS * FROZEN; /* what is frozen is not read */
    assert_int_equal(save(&run, 2, 9), DCP_E_CORRUPT);
    assert_int_equal(save(&run, 2, 9), 0);
    check(&run.lora, run.ctx.store, 2, &run.self);
    run_fini(&run);
}

/* -- several ranks ------------------------------------------------------------------- */

static void save_on_ranks(void *arg, struct dcp_comm *comm)
{
    struct run *run = arg;
    struct dcp_context ctx = { .store = &run->counting.delta, .comm = comm };
    struct lora lora;
    struct dcp_saver *saver;

    ctx.log = comm->rank == 0 ? &run->log : NULL;
    lora_init(&lora, comm);
    for (int64_t step = 1; step <= 4; step++) {
        if (step == 1 || step == 3) /* another process */
            assert_int_equal(dcp_saver_new(&ctx, &saver, NULL), 0);
        const struct dcp_save_options options = { .step = step, .delta = 9 };
        assert_int_equal(dcp_save_start(saver, &options, &lora.state, NULL), 0);
        assert_int_equal(dcp_save_wait(saver, NULL, NULL), 0);
        check(&lora, ctx.store, step, comm);
        train(&lora);
        if (comm->rank == 0 && step == 3)
            damage(run, 1, 1, 2, LAYERS);
        if (step == 2 || step == 4)
            dcp_saver_free(saver);
    }
    free(lora.data);
}

static void one_rank_does_without_its_base(void **state)
{
    struct run run;
    struct dcp_store_entry *entries;
    size_t n;

    (void)state;
    run_init(&run);
    rank_threads_run(2, save_on_ranks, &run);
    for (int64_t step = 2; step <= 4; step++)
        assert_int_equal(base_of(&run, step), 1);
    assert_non_null(strstr(run.counting.told, "a digest differs"));
    const struct dcp_store *memory = &run.counting.memory;
    assert_int_equal(memory->ops->list(memory->self, "step-00000004", &entries, &n, NULL),
                     0);
    assert_string_equal(entries[3].name, "shard-00000-of-00002.safetensors.delta");
    assert_string_equal(entries[5].name, "shard-00001-of-00002.safetensors");
    dcp_store_list_free(entries, n);
    /* Another number of ranks has nothing in common. */
    assert_int_equal(save(&run, 5, 9), 0);
    assert_int_equal(base_of(&run, 5), 0);
    assert_string_equal(run.counting.told, "");
    run_fini(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_frozen_is_written_once),
        cmocka_unit_test(the_next_process_goes_on),
        cmocka_unit_test(what_is_damaged_is_not_built_on),
        cmocka_unit_test(a_base_that_is_gone),
        cmocka_unit_test(a_base_that_cannot_be_entered),
        cmocka_unit_test(a_base_that_goes_while_it_is_saved_against),
        cmocka_unit_test(other_tensors_have_no_base),
        cmocka_unit_test(a_state_that_changes_while_it_is_saved),
        cmocka_unit_test(one_rank_does_without_its_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
