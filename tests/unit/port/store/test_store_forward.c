/* A store that passes calls on, and the lease that is one. */
#include "lib/fault.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct dcp_store memory;

static int setup(void **state)
{
    (void)state;
    return dcp_store_mem(&memory, NULL);
}

static int teardown(void **state)
{
    (void)state;
    dcp_store_free(&memory);
    return 0;
}

/* Every call comes to the store inside, which counts them, with what was given. */
static void calls_are_passed_on(void **state)
{
    struct fault seen = { 0 };
    struct dcp_store counting, store;
    struct dcp_store_forward wrapper;
    struct dcp_store_file *file;
    struct dcp_store_entry *entries;
    char text[4] = "";
    bool is_dir;
    uint64_t size;
    size_t n;

    (void)state;
    assert_int_equal(fault_store(&counting, &memory, &seen, NULL), 0);
    counting.max_header_bytes = 77;
    dcp_store_forward(&store, &wrapper, &counting);
    assert_int_equal(store.max_header_bytes, 77);
    assert_string_equal(store.root, memory.root);
    const struct dcp_store_ops *ops = store.ops;
    assert_int_equal(ops->make_dir(store.self, "a", NULL), 0);
    assert_int_equal(ops->create(store.self, "a/b", 3, &file, NULL), 0);
    assert_int_equal(ops->write_at(store.self, file, 0, "one", 3, NULL), 0);
    assert_int_equal(ops->sync(store.self, file, 3, NULL), 0);
    assert_int_equal(ops->close(store.self, file, NULL), 0);
    assert_int_equal(ops->reopen(store.self, "a/b", &file, NULL), 0);
    assert_int_equal(ops->write_at(store.self, file, 0, "t", 1, NULL), 0);
    assert_int_equal(ops->close(store.self, file, NULL), 0);
    assert_int_equal(ops->open(store.self, "a/b", &file, NULL), 0);
    assert_int_equal(ops->read_at(store.self, file, 0, text, 3, NULL), 0);
    assert_string_equal(text, "tne");
    assert_int_equal(ops->close(store.self, file, NULL), 0);
    assert_int_equal(ops->sync_dir(store.self, "a", NULL), 0);
    assert_int_equal(ops->publish(store.self, "a/b", "a/c", NULL), 0);
    assert_int_equal(ops->replace(store.self, "a/d", "four", 4, NULL), 0);
    assert_int_equal(ops->exchange(store.self, "a/c", "a/d", NULL), 0);
    assert_int_equal(ops->stat(store.self, "a/c", &is_dir, &size, NULL), 0);
    assert_int_equal(size, 4);
    assert_int_equal(ops->remove(store.self, "a/d", NULL), 0);
    assert_int_equal(ops->list(store.self, "a", &entries, &n, NULL), 0);
    assert_int_equal(n, 1);
    dcp_store_list_free(entries, n);
    assert_int_equal(ops->lock(store.self, NULL), 0);
    assert_int_equal(ops->lock(store.self, NULL), DCP_E_BUSY);
    ops->unlock(store.self);
    assert_int_equal(ops->free_bytes(store.self), UINT64_MAX);
    assert_int_equal(seen.count, 20);
    assert_null(ops->hold); /* the fake cannot */
    assert_null(ops->drop_cache);
    dcp_store_free(&store); /* owns nothing */
    dcp_store_free(&counting);
}

static int refuse(void *self, const char *from, const char *to, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    assert_ptr_equal(inner, &memory);
    return dcp_error_set(err, DCP_E_IO, "no '%s' for '%s'", to, from);
}

static void one_call_is_the_wrappers(void **state)
{
    struct dcp_store_forward wrapper;
    struct dcp_store store;

    (void)state;
    dcp_store_forward(&store, &wrapper, &memory);
    wrapper.ops.publish = refuse;
    assert_int_equal(dcp_store_write_file(&store, "a", "1", 1, NULL), 0);
    assert_int_equal(store.ops->publish(store.self, "a", "b", NULL), DCP_E_IO);
    assert_int_equal(memory.ops->publish(memory.self, "a", "b", NULL), 0);
}

static int hold_all(void *self, const char *name, bool exclusive,
                    struct dcp_store_file **out, struct dcp_error *err)
{
    (void)self, (void)name, (void)exclusive, (void)err;
    *out = NULL;
    return DCP_OK;
}

static void many_calls_are_the_wrappers(void **state)
{
    const struct dcp_store_ops own = { .publish = refuse, .hold = hold_all };
    struct dcp_store_forward wrapper;
    struct dcp_store store;
    bool is_dir;
    uint64_t size;

    (void)state;
    dcp_store_forward(&store, &wrapper, &memory);
    wrapper.ops.hold = NULL; /* as where the store below can hold nothing */
    dcp_store_override(&wrapper, &own);
    assert_int_equal(store.ops->publish(store.self, "a", "b", NULL), DCP_E_IO);
    assert_null(store.ops->hold);
    assert_int_equal(store.ops->stat(store.self, "none", &is_dir, &size, NULL),
                     DCP_E_NOT_FOUND);
}

static void a_lease_is_held_until_the_end(void **state)
{
    const char *folder = mkdtemp((char[]){ "lease.XXXXXX" });
    struct dcp_store mine, other;
    struct dcp_error err = { 0 };

    (void)state;
    assert_non_null(folder);
    assert_int_equal(dcp_store_dir(&mine, folder, false, NULL), 0);
    assert_int_equal(dcp_store_dir(&other, folder, false, NULL), 0);
    assert_int_equal(dcp_store_lease(&mine, NULL), 0);
    assert_int_equal(dcp_store_lease(&mine, NULL), 0);
    for (int i = 0; i < 2; i++) { /* what works under it takes it, and gives it back */
        assert_int_equal(mine.ops->lock(mine.self, NULL), 0);
        mine.ops->unlock(mine.self);
        const struct dcp_store_ops *ops = other.ops;
        assert_int_equal(dcp_store_lease(&other, &err), DCP_E_BUSY);
        assert_non_null(strstr(err.message, "is in use by process"));
        assert_ptr_equal(other.ops, ops);
    }
    assert_int_equal(dcp_store_write_file(&mine, "a", "1", 1, NULL), 0);
    dcp_store_free(&mine);
    assert_int_equal(dcp_store_lease(&other, NULL), 0);
    assert_int_equal(other.ops->remove(other.self, "a", NULL), 0);
    assert_int_equal(other.ops->remove(other.self, ".dcp-lock", NULL), 0);
    dcp_store_free(&other);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        EACH(calls_are_passed_on),
        EACH(one_call_is_the_wrappers),
        EACH(many_calls_are_the_wrappers),
        EACH(a_lease_is_held_until_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
