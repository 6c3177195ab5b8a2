/* wrap: malloc calloc realloc strdup posix_memalign */
/* Every allocation of save, load, find, verify, prune and reshard fails, one at a time:
 * the answer is MEMORY or right, nothing crashes or leaks, and nothing half is published.
 *
 * In the ordinary build the allocator of the whole process is taken over, so that those
 * of the libraries fail, too. Under a sanitizer, which has its own, only the calls of
 * libdcp are (the linker wraps them), and it watches what happens to memory. */
#include "base/fs.h"
#include "cli/source.h"
#include "lib/acts.h"
#include "lib/rank_threads.h"
#include "lib/sample.h"
#include "lib/slower.h"
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* --- allocations that fail when told --- */

static long fail_at, n_calls, n_live; /* atomic; fail_at 0: none */

static bool fails(void)
{
    long at = __atomic_load_n(&fail_at, __ATOMIC_RELAXED);

    if (!at || __atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED) != at)
        return false;
    errno = ENOMEM;
    return true;
}

#ifdef TEST_IS_WRAPPED

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
int __real_posix_memalign(void **out, size_t align, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);
int __wrap_posix_memalign(void **out, size_t align, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : __real_realloc(old, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

int __wrap_posix_memalign(void **out, size_t align, size_t size)
{
    return fails() ? ENOMEM : __real_posix_memalign(out, align, size);
}

#define SET_JSON_ALLOCATOR() (void)0

#else

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *p);

#define EXPORT __attribute__((visibility("default")))

static void *counted(void *p)
{
    if (p)
        __atomic_add_fetch(&n_live, 1, __ATOMIC_RELAXED);
    return p;
}

EXPORT void *malloc(size_t size)
{
    return fails() ? NULL : counted(__libc_malloc(size));
}

EXPORT void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(n, size));
}

EXPORT void *realloc(void *old, size_t size)
{
    if (!old)
        return malloc(size);
    return fails() ? NULL : __libc_realloc(old, size);
}

EXPORT int posix_memalign(void **out, size_t align, size_t size)
{
    *out = fails() ? NULL : counted(__libc_memalign(align, size));
    return *out ? 0 : ENOMEM;
}

EXPORT void free(void *p)
{
    if (p)
        __atomic_sub_fetch(&n_live, 1, __ATOMIC_RELAXED);
    __libc_free(p);
}

/* jansson 2.14 forgets that the buffer of a token could not grow, and goes on with a text
 * that lacks a character. No caller can see that, so these allocations work here: their
 * sizes are the powers of two from 32 on. */
static void *json_malloc(size_t size)
{
    bool of_token = size >= 32 && (size & (size - 1)) == 0;

    return of_token ? counted(__libc_malloc(size)) : malloc(size);
}

#define SET_JSON_ALLOCATOR() json_set_alloc_funcs(json_malloc, free)

#endif

/* Allocations of an act fail only between these two. */
static long wanted;

static void arm(void)
{
    __atomic_store_n(&n_calls, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&fail_at, wanted, __ATOMIC_SEQ_CST);
}

static void disarm(void)
{
    __atomic_store_n(&fail_at, 0, __ATOMIC_SEQ_CST);
}

/* Runs an act with its n-th allocation failing, for all n, `stride` apart from the
 * hundredth on. */
static void fail_each(void (*act)(void), long least, long stride)
{
    wanted = 0;
    stride = stride < SLOWER ? SLOWER : stride;
    act(); /* and libraries have what they keep for ever */
    for (wanted = 1;; wanted += wanted < 100 / SLOWER ? 1 : stride) {
        long live = n_live;
        act();
        assert_int_equal(n_live, live);
        if (n_calls < wanted)
            break;
    }
    assert_true(wanted > least); /* the loop saw all of the act */
}

/* --- what the acts work with --- */

static struct sample samples[2]; /* of two ranks, */
static struct sample one;        /* and of one */
static struct dcp_store store;   /* with complete steps 1 and 2 of world size 2 */
static char folder[256], source[300], target[300], bundle[300];

static void prepare(void)
{
    struct dcp_store dir;
    struct acts acts = { .store = &store,
                         .layout = "zero3",
                         .world_size = 2,
                         .step = 1,
                         .salt = 1,
                         .small = true };
    int n = sample_n_tensors() - 1;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(acts_save(&acts), 0);
    acts.step = acts.salt = 2;
    assert_int_equal(acts_save(&acts), 0);
    for (int r = 0; r < 2; r++)
        sample_make_first(&samples[r], n, "zero3", 2, r, true, 2);
    sample_make_first(&one, n, "flat", 1, 0, true, 2);
    acts_folder(folder);
    snprintf(source, sizeof source, "%s/source", folder);
    snprintf(target, sizeof target, "%s/target", folder);
    snprintf(bundle, sizeof bundle, "%s/bundle", folder);
    assert_int_equal(dcp_store_dir(&dir, source, true, NULL), 0);
    acts.store = &dir;
    assert_int_equal(acts_save(&acts), 0);
    dcp_store_free(&dir);
}

static void clean_up(void)
{
    for (int r = 0; r < 2; r++)
        sample_free(&samples[r]);
    sample_free(&one);
    dcp_store_free(&store);
    acts_folder_remove(folder);
}

/* --- acts --- */

static void save_one(enum dcp_codec codec, const struct dcp_export *second, int parity)
{
    struct dcp_store fresh;
    struct dcp_context ctx = { .store = &fresh, .threads = 1 };
    struct dcp_save_options options = {
        .step = 3, .keep = 2, .codec = codec, .parity = parity, .consolidated = second
    };
    struct dcp_step step;

    assert_int_equal(dcp_store_mem(&fresh, NULL), 0);
    arm();
    int rc = dcp_save(&ctx, &options, &one.state, NULL, NULL);
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    int found = dcp_find(&ctx, -1, &step, NULL);
    assert_true(found == 0 || (rc && found == DCP_E_NOT_FOUND));
    assert_int_equal(fresh.ops->lock(fresh.self, NULL), 0); /* the lease was given back */
    dcp_store_free(&fresh);
}

static void save_plainly(void)
{
    save_one(DCP_CODEC_NONE, NULL, 0);
}

static void save_with_all(void)
{
    static const struct dcp_export second = { "pytorch_model.bin", "torch", DCP_BF16 };
    save_one(DCP_CODEC_PLANES, &second, 2);
}

/* A lack of memory says nothing of the step: there is no fall-back to an older one. */
static void load_one(void)
{
    struct dcp_context ctx = { .store = &store, .threads = 1 };
    struct dcp_load_options options = { .step = -1 };
    struct dcp_load_result result = { 0 };

    arm();
    int rc = dcp_load(&ctx, &options, &one.state, &result, NULL);
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    if (!rc) {
        assert_int_equal(result.step, 2);
        assert_int_equal(sample_wrong(&one, 2), 0);
        dcp_catalog_free(result.catalog);
    }
}

static void look(void)
{
    struct dcp_context ctx = { .store = &store };
    struct dcp_source native = { &store, "step-00000002", true };
    struct dcp_step step, *steps;
    size_t n;

    arm();
    int rc = dcp_find(&ctx, -1, &step, NULL);
    assert_true((rc == DCP_OK && step.step == 2) || rc == DCP_E_MEMORY);
    rc = dcp_steps(&store, &steps, &n, NULL, NULL);
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    if (!rc)
        assert_true(n == 2 && (steps[0].complete || steps[0].why.code == DCP_E_MEMORY));
    free(steps);
    rc = dcp_verify(&native, &(struct dcp_verify_options){ .threads = 1 }, NULL, NULL);
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    disarm();
}

static void index_native(void)
{
    struct dcp_source native = { &store, "step-00000002", true };
    struct dcp_catalog *catalog;

    arm();
    int rc = dcp_catalog_new(&catalog, NULL);
    if (!rc)
        rc = dcp_format_find("native")->index(&native, catalog, NULL);
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    dcp_catalog_free(catalog);
}

/* A step of which parity gives what is lost: found, loaded, verified, repaired, or there
 * was no memory for it. */
static void reconstruct_here(void)
{
    static const char *const lost[] = {
        "step-00000001/manifest.json", "step-00000001/shard-00000-of-00001.safetensors"
    };
    struct dcp_store fresh;
    struct dcp_context ctx = { .store = &fresh, .threads = 1 };
    struct dcp_source native = { &fresh, "step-00000001", true };
    struct dcp_save_options save = { .step = 1, .parity = 2 };
    struct dcp_load_options options = { .step = -1 };
    const struct dcp_repair_options alone = { .threads = 1 };

    assert_int_equal(dcp_store_mem(&fresh, NULL), 0);
    assert_int_equal(dcp_save(&ctx, &save, &one.state, NULL, NULL), 0);
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++)
        assert_int_equal(fresh.ops->remove(fresh.self, lost[i], NULL), 0);
    arm();
    int rc = dcp_load(&ctx, &options, &one.state, NULL, NULL);
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    rc = dcp_verify(&native, &(struct dcp_verify_options){ .threads = 1 }, NULL, NULL);
    if (rc != DCP_E_CORRUPT && rc != DCP_E_MEMORY && rc != DCP_E_UNSUPPORTED)
        fail_msg("verify: %s", dcp_error_name(rc)); /* UNSUPPORTED: it could not look */
    rc = dcp_repair(&fresh, "step-00000001", &alone, NULL, NULL);
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    assert_int_equal(fresh.ops->lock(fresh.self, NULL), 0);
    assert_int_equal(dcp_repair(&fresh, "step-00000001", &alone, NULL, NULL), DCP_E_BUSY);
    fresh.ops->unlock(fresh.self);
    assert_int_equal(dcp_repair(&fresh, "step-00000001", &alone, NULL, NULL), 0);
    dcp_store_free(&fresh);
}

static void prune_here(void)
{
    struct dcp_store fresh;
    struct dcp_step step;
    struct dcp_context ctx = { .store = &fresh, .threads = 1 };

    assert_int_equal(dcp_store_mem(&fresh, NULL), 0);
    for (int64_t i = 1; i <= 2; i++) {
        struct dcp_save_options options = { .step = i };
        assert_int_equal(dcp_save(&ctx, &options, &one.state, NULL, NULL), 0);
    }
    arm();
    int rc = dcp_prune(&fresh, &(struct dcp_retention){ .keep = 1 }, NULL, NULL);
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    assert_int_equal(dcp_find(&ctx, -1, &step, NULL), 0);
    assert_int_equal(step.step, 2);
    dcp_store_free(&fresh);
}

static void reshard_to(const char *format)
{
    struct dcp_reshard_options options = { .world_size = format ? 0 : 3,
                                           .format = format,
                                           .dtype = DCP_BF16,
                                           .only = DCP_ONLY_MODEL,
                                           .threads = 1 };
    struct dcp_location location;
    struct dcp_reshard *job;

    if (dcp_fs_exists(target))
        acts_folder_remove(target);
    arm();
    int rc = dcp_location_open(source, &location, NULL);
    if (rc ==
        DCP_E_UNSUPPORTED) { /* a format that could not look says that it is not it */
        disarm();
        return;
    }
    if (!rc) {
        rc = dcp_reshard_plan(&location, target, &options, &job, NULL);
        if (!rc) {
            rc = dcp_reshard_run(job, NULL);
            dcp_reshard_free(job);
        }
        dcp_location_close(&location);
    }
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    assert_int_equal(dcp_fs_exists(target), rc == DCP_OK);
}

static void reshard(void)
{
    reshard_to(NULL);
}

static void export(void)
{
    reshard_to("torch");
}

static void pack(void)
{
    reshard_to("bundle");
}

static void unpack(void)
{
    struct dcp_location location;
    struct dcp_catalog *catalog = NULL;

    arm();
    int rc = dcp_location_open(bundle, &location, NULL);
    if (!rc) {
        rc = dcp_location_index(&location, &catalog, NULL);
        if (!rc)
            rc = dcp_verify(&location.source,
                            &(struct dcp_verify_options){ .threads = 1 }, NULL, NULL);
        dcp_catalog_free(catalog);
        dcp_location_close(&location);
    }
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY || rc == DCP_E_UNSUPPORTED);
}

/* A path that is none: names beside it are looked at. */
static void look_for_near(void)
{
    struct dcp_main m = { 0 };
    struct dcp_location location;
    struct dcp_error err = { 0 };

    arm();
    int rc = dcp_source_open(&m, "sorce", &location, &err);
    disarm();
    assert_true(rc == DCP_E_NOT_FOUND || rc == DCP_E_MEMORY);
    if (!wanted)
        assert_string_equal(err.hint, "did you mean 'source'?");
}

static int pin_it(void *self, struct dcp_marks *marks, struct dcp_error *err)
{
    (void)self;
    (void)err;
    marks->pinned = true;
    return DCP_OK;
}

static void mark_here(void)
{
    struct dcp_store run;
    struct dcp_marks marks;

    assert_int_equal(dcp_store_dir(&run, source, false, NULL), 0);
    arm();
    int rc = dcp_marks_change(&run, "step-00000002", pin_it, NULL, &marks, NULL);
    disarm();
    assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
    assert_int_equal(dcp_marks_read(&run, "step-00000002", &marks, NULL), 0);
    assert_true(rc || marks.pinned);
    dcp_store_free(&run);
}

/* --- two ranks --- */

struct pair {
    struct dcp_store *store;
    pthread_barrier_t ready;
    int codes[2];
    bool load;
};

static void rank_of_two(void *arg, struct dcp_comm *comm)
{
    struct pair *pair = arg;
    struct dcp_context ctx = { .comm = comm, .store = pair->store, .threads = 1 };
    struct dcp_save_options save = { .step = 3 };
    struct dcp_load_options load = { .step = -1 };

    comm->timeout_ms = 200; /* a rank without memory to agree falls silent */
    pthread_barrier_wait(&pair->ready);
    if (comm->rank == 0)
        arm();
    pthread_barrier_wait(&pair->ready);
    const struct dcp_state *state = &samples[comm->rank].state;
    pair->codes[comm->rank] = pair->load ? dcp_load(&ctx, &load, state, NULL, NULL)
                                         : dcp_save(&ctx, &save, state, NULL, NULL);
    pthread_barrier_wait(&pair->ready);
    if (comm->rank == 0)
        disarm();
    pthread_barrier_wait(&pair->ready);
}

static void run_two(bool load)
{
    struct dcp_store fresh;
    struct pair pair = { .load = load };

    assert_int_equal(dcp_store_mem(&fresh, NULL), 0);
    assert_int_equal(pthread_barrier_init(&pair.ready, NULL, 2), 0);
    pair.store = load ? &store : &fresh;
    rank_threads_run(2, rank_of_two, &pair);
    for (int r = 0; r < 2; r++) {
        int rc = pair.codes[r];
        assert_true(rc == DCP_OK || rc == DCP_E_MEMORY || rc == DCP_E_COMM);
        if (!rc && load)
            assert_int_equal(sample_wrong(&samples[r], 2), 0);
    }
    pthread_barrier_destroy(&pair.ready);
    dcp_store_free(&fresh);
}

static void save_two(void)
{
    run_two(false);
}

static void load_two(void)
{
    run_two(true);
}

/* --- tests --- */

static void saves(void **state)
{
    (void)state;
    fail_each(save_plainly, 100, 3);
    fail_each(save_with_all, 150, 3);
}

static void loads(void **state)
{
    (void)state;
    fail_each(load_one, 50, 3);
}

static void looks(void **state)
{
    (void)state;
    fail_each(look, 80, 5);
    fail_each(index_native, 30, 1);
    fail_each(prune_here, 30, 3);
    fail_each(reconstruct_here, 100, 7);
    fail_each(mark_here, 5, 1);
}

static void hints(void **state)
{
    (void)state;
    char *back = getcwd(NULL, 0);

    assert_non_null(back);
    assert_int_equal(chdir(folder), 0);
    fail_each(look_for_near, 5, 1);
    assert_int_equal(chdir(back), 0);
    free(back);
}

static void reshards(void **state)
{
    (void)state;
    fail_each(reshard, 100, 3);
    fail_each(export, 100, 3);
}

/* libarchive ends the process when its own memory runs out, so archives are read only
 * where libdcp's allocations alone fail. */
static void archives(void **state)
{
    (void)state;
    fail_each(pack, 100, 3);
    assert_int_equal(rename(target, bundle), 0);
#ifdef TEST_IS_WRAPPED
    fail_each(unpack, 100, 3);
#else
    unpack();
#endif
}

static void two_ranks(void **state)
{
    (void)state;
    fail_each(save_two, 100, 37);
    fail_each(load_two, 50, 37);
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) /* thousands of small files: a disk is slow */
        setenv("TMPDIR", "/dev/shm", 0);
    SET_JSON_ALLOCATOR();
    prepare();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves),    cmocka_unit_test(loads),
        cmocka_unit_test(looks),    cmocka_unit_test(reshards),
        cmocka_unit_test(archives), cmocka_unit_test(two_ranks),
        cmocka_unit_test(hints),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clean_up();
    return failed;
}
