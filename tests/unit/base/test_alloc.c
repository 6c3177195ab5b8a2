/* Every allocation of base and port fails once: nothing crashes, nothing leaks, and what
 * could not be done is reported as such. */
#include <dcp/comm.h>
#include <dcp/store.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/fs.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "lib/fault.h"
#include "port/store/mem.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    puts("skipped: a sanitizer brings an allocator of its own");
    return 77;
}

#else

/* --- an allocator that fails when told; it takes the place of libc's --- */

static long fail_at; /* the n-th allocation from now, 0: none; atomic, as all of these */
static long n_calls, n_live;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t align, size_t size);
void __libc_free(void *p);

static bool fails(void)
{
    return __atomic_add_fetch(&n_calls, 1, __ATOMIC_RELAXED) ==
           __atomic_load_n(&fail_at, __ATOMIC_RELAXED);
}

static void *counted(void *p)
{
    if (p)
        __atomic_add_fetch(&n_live, 1, __ATOMIC_RELAXED);
    else
        errno = ENOMEM;
    return p;
}

#define EXPORT __attribute__((visibility("default")))

EXPORT void *malloc(size_t size)
{
    return counted(fails() ? NULL : __libc_malloc(size));
}

EXPORT void *calloc(size_t n, size_t size)
{
    return counted(fails() ? NULL : __libc_calloc(n, size));
}

EXPORT void *realloc(void *old, size_t size)
{
    if (!old)
        return malloc(size);
    if (!fails())
        return __libc_realloc(old, size);
    errno = ENOMEM;
    return NULL;
}

EXPORT int posix_memalign(void **out, size_t align, size_t size)
{
    void *p = counted(fails() ? NULL : __libc_memalign(align, size));
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

EXPORT void free(void *p)
{
    if (p)
        __atomic_sub_fetch(&n_live, 1, __ATOMIC_RELAXED);
    __libc_free(p);
}

/* Runs an act with its n-th allocation failing, for all n. It returns DCP_OK only when
 * that failure did not matter. */
static void fail_each(int (*act)(void))
{
    assert_int_equal(act(), DCP_OK); /* and libraries have what they keep for ever */
    for (long n = 1;; n++) {
        long live = n_live;
        n_calls = 0;
        fail_at = n;
        int rc = act();
        bool reached = n_calls >= n;
        fail_at = 0;
        assert_true(rc == DCP_OK || rc == DCP_E_MEMORY);
        assert_int_equal(n_live, live);
        if (!reached) {
            assert_int_equal(rc, DCP_OK);
            assert_true(n > 1);
            return;
        }
    }
}

/* --- acts --- */

static int use_store(struct dcp_store *store)
{
    struct dcp_error err = { 0 };
    struct dcp_store_entry *entries = NULL;
    size_t n = 0, size;
    void *data = NULL;
    const struct dcp_store_ops *ops = store->ops;
    ops->remove(store->self, "step", NULL); /* what an earlier round left */
    ops->remove(store->self, "tmp", NULL);
    int rc = ops->lock(store->self, &err);
    if (!rc)
        rc = ops->make_dir(store->self, "tmp", &err);
    if (!rc)
        rc = dcp_store_write_file(store, "tmp/f", "text", 4, &err);
    if (!rc)
        rc = ops->sync_dir(store->self, "tmp", &err);
    if (!rc)
        rc = ops->publish(store->self, "tmp", "step", &err);
    if (!rc)
        rc = ops->replace(store->self, "latest", "step", 4, &err);
    if (!rc)
        rc = ops->list(store->self, "step", &entries, &n, &err);
    dcp_store_list_free(entries, n);
    if (!rc)
        rc = dcp_store_read_file(store, "step/f", 100, &data, &size, &err);
    free(data);
    if (!rc)
        rc = ops->remove(store->self, "step", &err);
    ops->unlock(store->self);
    return rc;
}

static int use_store_mem(void)
{
    struct dcp_store store, faulty;
    struct fault fault = { 0 };
    int rc = dcp_store_mem(&store, NULL);
    if (rc)
        return rc;
    rc = fault_store(&faulty, &store, &fault, NULL);
    if (!rc)
        rc = use_store(&faulty);
    if (!rc)
        rc = dcp_store_mem_crash(&store, NULL);
    dcp_store_free(&faulty);
    dcp_store_free(&store);
    return rc;
}

static char folder[] = "/tmp/dcp-test-alloc-XXXXXX";

static int use_store_dir(void)
{
    struct dcp_store store;
    int rc = dcp_store_dir(&store, folder, true, NULL);
    if (!rc)
        rc = use_store(&store);
    dcp_store_free(&store);
    return rc;
}

static int use_fs(void)
{
    char path[64];
    void *data = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/a", folder);
    dcp_fs_remove_all(path, NULL);
    snprintf(path, sizeof path, "%s/a/b/c", folder);
    int rc = dcp_fs_make_dirs(path, NULL);
    if (!rc)
        rc = dcp_fs_read_file("/proc/self/maps", 1 << 20, &data, &n, NULL);
    free(data);
    snprintf(path, sizeof path, "%s/a", folder);
    return rc ? rc : dcp_fs_remove_all(path, NULL);
}

static int use_json(void)
{
    static const char text[] = "{\"a\": [1, 2.5, \"text\"], \"b\": {\"c\": null}}";
    DCP_CLEANUP_JSON json_t *value = NULL;
    int rc = dcp_json_parse(text, sizeof text - 1, "it", &value, NULL);
    DCP_CLEANUP_FREE char *again = value ? dcp_json_text(value, 1) : NULL;
    return rc ? rc : again ? DCP_OK : DCP_E_MEMORY;
}

static int use_memory(void)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    for (int i = 0; i < 100; i++)
        dcp_buf_add_fmt(&buf, "%d", i);
    DCP_CLEANUP_FREE void *aligned = dcp_mem_aligned(64, 100);
    struct dcp_arena *arena = dcp_arena_new();
    bool done = aligned && arena;
    for (size_t i = 0; done && i < 100; i++)
        done = dcp_arena_alloc(arena, i, 100) != NULL;
    dcp_arena_free(arena);
    return done ? dcp_buf_check(&buf, NULL) : DCP_E_MEMORY;
}

static int use_comms(void)
{
    struct dcp_comm self, comms[3];
    size_t size;
    void *all = NULL;
    dcp_comm_self(&self);
    int rc = dcp_comm_allgatherv(&self, "text", 4, &all, &size, NULL);
    free(all);
    if (!rc)
        rc = dcp_comm_threads(comms, 3, NULL);
    for (int r = 0; !rc && r < 3; r++)
        dcp_comm_free(&comms[r]);
    return rc;
}

static int count(void *arg, int worker, size_t i, struct dcp_error *err)
{
    (void)worker;
    (void)err;
    __atomic_add_fetch((size_t *)arg, i, __ATOMIC_RELAXED);
    return DCP_OK;
}

/* Jobs that cannot be queued run on the caller: without memory no job is lost. */
static struct dcp_pool *pool;

static int use_pool(void)
{
    size_t sum = 0;
    int rc = dcp_pool_for(pool, 10, count, &sum, NULL);
    return rc ? rc : sum == 45 ? DCP_OK : DCP_E_DIFFERS;
}

/* --- tests --- */

static void stores(void **state)
{
    (void)state;
    fail_each(use_store_mem);
    fail_each(use_store_dir);
}

static void files(void **state)
{
    (void)state;
    fail_each(use_fs);
}

static void texts_and_memory(void **state)
{
    (void)state;
    fail_each(use_json);
    fail_each(use_memory);
}

static void comms_and_pools(void **state)
{
    (void)state;
    fail_each(use_comms);
    assert_int_equal(dcp_pool_new(2, &pool, NULL), 0);
    fail_each(use_pool);
    dcp_pool_free(pool);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores),
        cmocka_unit_test(files),
        cmocka_unit_test(texts_and_memory),
        cmocka_unit_test(comms_and_pools),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dcp_fs_remove_all(folder, NULL);
    return failed;
}

#endif
