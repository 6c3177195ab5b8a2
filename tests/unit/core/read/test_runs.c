/* Ranks that load columns of what was saved in rows read their columns, and prove them
 * together; what does not add up is read by blocks, as everything is otherwise. */
/* labels: tsan */
#include "base/mem.h"
#include "lib/must.h"
#include "lib/rank_threads.h"
#include "lib/step_files.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

enum { ROWS = 384, COLUMNS = 1000, SAVED_BY = 2, MOST = 8 };
#define TENSOR_BYTES ((size_t)ROWS * COLUMNS * sizeof(float))

/* Which columns a rank wants. */
enum cut {
    SHARES,
    PAIRS,     /* the same for two ranks each */
    BUT_ONE,   /* shares of all ranks but the last, which wants nothing */
    BUT_LAST,  /* shares, but nobody wants the last one */
    CROSSING,  /* what begins in the middle also to the next rank's end */
    SOME_WHOLE /* shares, and the last rank wants all */
};

/* How a rank's reads go wrong. */
enum wrong { RIGHT, FLIP_RUNS, FAIL_RUNS, FAIL_ALL };

struct rank_store {
    struct dcp_store_forward wrapper; /* first */
    struct dcp_store store;
    enum wrong wrong;
    size_t run_bytes; /* what it reads of a row */
};

struct job {
    const struct dcp_store *store;
    bool load;
    int64_t step;
    enum cut cut;
    enum dcp_dtype dtype;
    enum dcp_codec codec;
    int wrong_rank;
    enum wrong wrong;
    bool no_verify, zeros; /* zeros: where ranks cross, and at the end */
    const char *also;      /* rank 1 wants this tensor, too */
    struct rank_store stores[MOST];
    int codes[MOST];
    struct dcp_error errs[MOST];
    int64_t n_wrong;
    int64_t loaded; /* the step */
};

static atomic_ullong n_read;

static int read_at(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                   size_t n, struct dcp_error *err)
{
    struct rank_store *rank = self;
    const struct dcp_store *inner = rank->wrapper.inner;
    bool run = n == rank->run_bytes;

    n_read += n;
    if (rank->wrong == FAIL_RUNS && run)
        return dcp_error_set(err, DCP_E_IO, "the disk is tired");
    DCP_TRY(inner->ops->read_at(inner->self, file, offset, out, n, err));
    if (rank->wrong == FLIP_RUNS && run)
        ((unsigned char *)out)[n / 2] ^= 4;
    return DCP_OK;
}

static int open_file(void *self, const char *name, struct dcp_store_file **out,
                     struct dcp_error *err)
{
    struct rank_store *rank = self;
    const struct dcp_store *inner = rank->wrapper.inner;

    if (rank->wrong == FAIL_ALL && strstr(name, "shard-00001") &&
        strstr(name, ".safetensors"))
        return dcp_error_set(err, DCP_E_NOT_FOUND, "'%s' is gone", name);
    return inner->ops->open(inner->self, name, out, err);
}

/* Exact in 16 bits, too. */
static float value(const struct job *job, int64_t row, int64_t column)
{
    bool zero = job->zeros && (column >= COLUMNS / 4 && column < COLUMNS);

    return zero ? 0 : (float)((row * 31 + column * 7 + 5 * job->step) % 251);
}

static void columns_of(const struct job *job, int rank, int n, int64_t *out_from,
                       int64_t *out_to)
{
    int parts = job->cut == PAIRS && n > 1 ? n / 2 : job->cut == BUT_ONE ? n - 1 : n;
    int r = job->cut == PAIRS ? rank % parts : rank;

    *out_from = r * COLUMNS / parts;
    *out_to = (r + 1) * COLUMNS / parts;
    if ((job->cut == BUT_ONE || job->cut == BUT_LAST) && rank == n - 1)
        *out_from = *out_to = 0;
    if (job->cut == CROSSING && rank) /* 0 .. 1/2, 1/4 .. 3/4 of two ranks */
        *out_from -= COLUMNS / n / 2, *out_to -= COLUMNS / n / 2;
    if (job->cut == SOME_WHOLE && rank == n - 1)
        *out_from = 0, *out_to = COLUMNS;
}

static float as_float(enum dcp_dtype dtype, const unsigned char *data, int64_t i)
{
    float f;

    must(
        !dcp_cast(dtype, DCP_F32, data + (size_t)i * dcp_dtype_size(dtype), &f, 1, NULL));
    return f;
}

static void run(void *arg, struct dcp_comm *comm)
{
    struct job *job = arg;
    struct rank_store *mine = &job->stores[comm->rank];
    const int64_t shape[] = { ROWS, COLUMNS };
    int64_t offset[2] = { 0, 0 }, size[2] = { ROWS, COLUMNS }, from, to;

    if (job->load) {
        columns_of(job, comm->rank, comm->world_size, &from, &to);
        offset[1] = from;
        size[1] = to - from;
    } else {
        size[0] = ROWS / comm->world_size;
        offset[0] = comm->rank * size[0];
    }
    struct dcp_local_tensor locals[2] = {
        { .name = "w",
          .dtype = job->dtype,
          .ndim = 2,
          .shape = shape,
          .region = { .kind = DCP_BOX, .offset = offset, .size = size },
          .data = malloc(TENSOR_BYTES) },
    };
    unsigned char *data = locals[0].data;
    must(data);
    memset(data, job->load ? 0x5a : 0, TENSOR_BYTES);
    for (int64_t i = 0; i < size[0] * size[1] && !job->load; i++)
        ((float *)(void *)data)[i] =
            value(job, offset[0] + i / size[1], offset[1] + i % size[1]);
    locals[1] = locals[0];
    locals[1].name = job->also;
    mine->wrong = comm->rank == job->wrong_rank ? job->wrong : RIGHT;
    mine->run_bytes = job->load ? (size_t)size[1] * sizeof(float) : 0;
    dcp_store_forward(&mine->store, &mine->wrapper, job->store);
    mine->wrapper.ops.read_at = read_at;
    mine->wrapper.ops.open = open_file;

    struct dcp_state state = { .layout = "dim0",
                               .locals = locals,
                               .n_locals = job->also && comm->rank == 1 ? 2 : 1 };
    struct dcp_context ctx = { .comm = comm, .store = &mine->store, .threads = 2 };
    struct dcp_save_options save = { .step = job->step, .codec = job->codec };
    struct dcp_load_options load = { .step = job->step,
                                     .allow_cast = true,
                                     .no_verify = job->no_verify };
    struct dcp_load_result result = { 0 };
    struct dcp_error err = { 0 };
    if (job->load && !size[1])
        state.n_locals = 0;
    int rc = job->load ? dcp_load(&ctx, &load, &state, &result, &err)
                       : dcp_save(&ctx, &save, &state, NULL, &err);
    job->codes[comm->rank] = rc;
    job->errs[comm->rank] = err;
    dcp_catalog_free(result.catalog);
    if (comm->rank == 0)
        job->loaded = result.step;
    struct job saved = *job;
    saved.step = result.step;
    for (int64_t i = 0; i < size[0] * size[1] && job->load && !rc; i++)
        if (as_float(job->dtype, data, i) !=
            value(&saved, offset[0] + i / size[1], offset[1] + i % size[1]))
            __atomic_fetch_add(&job->n_wrong, 1, __ATOMIC_RELAXED);
    free(data);
}

/* All ranks end with this code, and read so many times the tensor at most. */
static void expect(struct job *job, int world_size, int code, double least, double most)
{
    n_read = 0;
    job->n_wrong = 0;
    rank_threads_run(world_size, run, job);
    for (int r = 0; r < world_size; r++) {
        if (job->codes[r] != code)
            fail_msg("rank %d of %d: %d, %s", r, world_size, job->codes[r],
                     job->errs[r].message);
        assert_string_equal(job->errs[r].message, job->errs[0].message);
    }
    assert_int_equal(job->n_wrong, 0);
    double shares = (double)n_read / (double)TENSOR_BYTES;
    if (job->load && (shares < least || shares > most))
        fail_msg("%d ranks read %.3f of the tensor", world_size, shares);
}

static void save(struct job *job, int64_t step)
{
    job->load = false;
    job->step = step;
    job->dtype = DCP_F32;
    expect(job, SAVED_BY, 0, 0, 0);
    job->load = true;
}

static int setup(void **state)
{
    struct dcp_store *store = calloc(1, sizeof *store);
    struct job *job = calloc(1, sizeof *job);

    assert_non_null(store);
    assert_non_null(job);
    assert_int_equal(dcp_store_mem(store, NULL), 0);
    job->store = store;
    *state = job;
    return 0;
}

static int teardown(void **state)
{
    struct job *job = *state;
    struct dcp_store *store = (struct dcp_store *)(uintptr_t)job->store;

    dcp_store_free(store);
    free(store);
    free(job);
    return 0;
}

static const int worlds[] = { 2, 3, MOST };

static void each_reads_its_share(void **state)
{
    struct job *job = *state;

    save(job, 1);
    for (size_t w = 0; w < DCP_ARRAY_LEN(worlds); w++)
        for (int dtype = 0; dtype < 2; dtype++) {
            job->dtype = dtype ? DCP_BF16 : DCP_F32;
            job->cut = SHARES;
            expect(job, worlds[w], 0, 1, 1.05);
            job->cut = BUT_ONE;
            if (worlds[w] > 2)
                expect(job, worlds[w], 0, 1, 1.05);
        }
}

/* Two ranks that want the same read it both. */
static void replicas(void **state)
{
    struct job *job = *state;

    save(job, 1);
    job->cut = PAIRS;
    expect(job, MOST, 0, 2, 2.05);
    expect(job, 4, 0, 2, 2.05);
    job->wrong = FLIP_RUNS;
    for (job->wrong_rank = 0; job->wrong_rank < MOST; job->wrong_rank++)
        expect(job, MOST, 0, 2, 2 + MOST + 0.05);
}

/* What nothing proves is read by blocks. */
static void not_each_element_once(void **state)
{
    const enum cut cuts[] = { BUT_LAST, CROSSING, SOME_WHOLE };
    struct job *job = *state;

    save(job, 1);
    for (size_t w = 0; w < DCP_ARRAY_LEN(worlds); w++)
        for (size_t c = 0; c < DCP_ARRAY_LEN(cuts); c++) {
            job->cut = cuts[c];
            expect(job, worlds[w], 0, 1, worlds[w] + 0.05);
            assert_true(n_read >=
                        (size_t)(worlds[w] - (job->cut == BUT_LAST)) * TENSOR_BYTES);
        }
}

static void codecs_have_blocks(void **state)
{
    struct job *job = *state;

    job->codec = DCP_CODEC_ZSTD;
    save(job, 1);
    job->no_verify = true; /* by blocks in any case */
    expect(job, MOST, 0, 0, MOST);
    double by_blocks = (double)n_read / (double)TENSOR_BYTES;
    job->no_verify = false;
    expect(job, MOST, 0, 0, 1.1 * by_blocks);
}

static void unproved(void **state)
{
    struct job *job = *state;

    save(job, 1);
    job->no_verify = true;
    expect(job, 3, 0, 1, 3.05);
}

/* A run that was read wrong, or not at all, once. */
static void read_again_by_blocks(void **state)
{
    struct job *job = *state;

    job->zeros = true; /* rank 1 reads what gives nothing to a fingerprint */
    save(job, 1);
    for (job->wrong = FLIP_RUNS; job->wrong <= FAIL_RUNS; job->wrong++)
        for (job->wrong_rank = 0; job->wrong_rank < 3; job->wrong_rank++)
            expect(job, 3, 0, 3, 4.05);
}

/* One byte of a step's columns. */
static void damage(const struct dcp_store *store, const char *step, int64_t column)
{
    struct step_files files;

    step_files_read(&files, store, step);
    size_t f = step_files_find(&files, "shard-00001-of-00002.safetensors");
    size_t half = TENSOR_BYTES / 2;
    unsigned char *data = files.files[f].data;
    data[files.files[f].n - half + (size_t)(50 * COLUMNS + column) * 4 + 2] ^= 1;
    step_files_put(&files, files.files[f].name, data, files.files[f].n);
    step_files_free(&files);
}

static void damage_is_named(void **state)
{
    struct job *job = *state;

    save(job, 1);
    save(job, 2);
    damage(job->store, "step-00000002", COLUMNS - 1);
    for (size_t w = 0; w < DCP_ARRAY_LEN(worlds); w++) {
        expect(job, worlds[w], DCP_E_CORRUPT, 1, worlds[w] + 1.05);
        assert_non_null(strstr(job->errs[0].message,
                               "tensor 'w' elements 192000..383999 are "
                               "corrupt: the block digest differs"));
        assert_non_null(strstr(job->errs[0].message, "shard-00001-of-00002.safetensors"));
    }
    job->step = -1; /* the newest that is whole */
    expect(job, 3, 0, 2, 8);
    assert_int_equal(job->loaded, 1);
}

/* What two ranks read alike, and wrong, adds up to nothing: each element is to be read
 * once. */
static void damage_where_ranks_cross(void **state)
{
    struct job *job = *state;

    job->zeros = true;
    save(job, 1);
    damage(job->store, "step-00000001", COLUMNS / 3);
    job->cut = CROSSING;
    expect(job, 2, DCP_E_CORRUPT, 1, 3.05);
}

static void a_file_that_is_gone(void **state)
{
    struct job *job = *state;

    save(job, 1);
    job->wrong = FAIL_ALL;
    for (job->wrong_rank = 0; job->wrong_rank < 3; job->wrong_rank++) {
        expect(job, 3, DCP_E_NOT_FOUND, 0, 8);
        assert_non_null(strstr(job->errs[0].message, "is gone"));
    }
}

/* A rank that wants what is not there fails for all. */
static void a_rank_that_fails(void **state)
{
    struct job *job = *state;

    save(job, 1);
    job->also = "nothing";
    expect(job, 3, DCP_E_MISMATCH, 0, 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_reads_its_share, setup, teardown),
        cmocka_unit_test_setup_teardown(replicas, setup, teardown),
        cmocka_unit_test_setup_teardown(not_each_element_once, setup, teardown),
        cmocka_unit_test_setup_teardown(codecs_have_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(unproved, setup, teardown),
        cmocka_unit_test_setup_teardown(read_again_by_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(damage_where_ranks_cross, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rank_that_fails, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
