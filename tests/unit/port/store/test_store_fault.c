/* A store that fails on purpose fails where it was told to, and nowhere else. */
#include <dcp/store.h>

#include "base/mem.h"
#include "lib/fault.h"
#include "lib/store_forms.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A fixed row of operations; returns the first failure. */
static int act(struct dcp_store *on)
{
    struct dcp_store saved = store;
    struct dcp_store_file *file = NULL;
    struct dcp_store_entry *entries = NULL;
    size_t n = 0;
    char got[4];
    store = *on;
    int rc = make_dir("d");
    if (!rc)
        rc = create("d/f", 4, &file);
    if (!rc)
        rc = write_at(file, 0, "data");
    if (!rc)
        rc = store.ops->read_at(store.self, file, 0, got, 4, NULL);
    if (!rc)
        rc = store.ops->sync(store.self, file, 4, NULL);
    if (file) {
        int close_rc = store.ops->close(store.self, file, NULL);
        rc = rc ? rc : close_rc;
    }
    if (!rc)
        rc = store.ops->list(store.self, "d", &entries, &n, NULL);
    dcp_store_list_free(entries, n);
    if (!rc)
        rc = stat_code("d/f");
    if (!rc)
        rc = sync_dir("d");
    if (!rc)
        rc = publish("d", "e");
    if (!rc)
        rc = replace("latest", "e");
    if (!rc)
        rc = store.ops->lock(store.self, NULL);
    if (!rc)
        rc = store.ops->open(store.self, "e/f", &file, NULL);
    if (!rc)
        rc = store.ops->close(store.self, file, NULL);
    if (!rc)
        rc = remove_name("e");
    store.ops->unlock(store.self);
    store = saved;
    return rc;
}

#define N_ACTS 15

static int act_with(struct fault *fault)
{
    struct dcp_store inner, faulty;
    assert_int_equal(dcp_store_mem(&inner, NULL), 0);
    assert_int_equal(fault_store(&faulty, &inner, fault, NULL), 0);
    int rc = act(&faulty);
    dcp_store_free(&faulty);
    dcp_store_free(&inner);
    return rc;
}

static void every_operation_can_fail(void **state)
{
    (void)state;
    struct fault fault = { .kind = FAULT_NONE };
    assert_int_equal(act_with(&fault), 0);
    assert_int_equal(fault.count, N_ACTS);
    static const enum fault_kind kinds[] = { FAULT_FAIL, FAULT_TEAR, FAULT_STOP };
    for (size_t k = 0; k < DCP_ARRAY_LEN(kinds); k++)
        for (uint64_t at = 1; at <= N_ACTS + 1; at++) {
            fault = (struct fault){ .kind = kinds[k], .at = at };
            assert_int_equal(act_with(&fault), at <= N_ACTS ? DCP_E_IO : 0);
            assert_true(fault.count >= (at <= N_ACTS ? at : N_ACTS));
        }
}

static void faults_strike_as_told(void **state)
{
    (void)state;
    struct fault fault = { .kind = FAULT_TEAR, .at = 2 };
    struct dcp_store inner;
    struct dcp_store_file *file;
    assert_int_equal(dcp_store_mem(&inner, NULL), 0);
    assert_int_equal(fault_store(&store, &inner, &fault, NULL), 0);
    assert_int_equal(create("f", 0, &file), 0);
    assert_int_equal(write_at(file, 0, "12345678"), DCP_E_IO);
    assert_int_equal(store.ops->close(store.self, file, NULL), 0);
    void *text;
    size_t n;
    assert_int_equal(dcp_store_read_file(&store, "f", 100, &text, &n, NULL), 0);
    assert_string_equal(text, "1234"); /* the first half */
    free(text);
    fault = (struct fault){ .kind = FAULT_FAIL, .at = 1 };
    assert_int_equal(make_dir("d"), DCP_E_IO);
    assert_int_equal(make_dir("d"), 0); /* only once */
    fault = (struct fault){ .kind = FAULT_STOP, .at = 2 };
    assert_int_equal(make_dir("e"), 0);
    assert_int_equal(make_dir("f"), DCP_E_IO);
    assert_int_equal(stat_code("d"), DCP_E_IO); /* and for ever */
    dcp_store_free(&store);
    store = inner; /* which has what worked, and nothing else */
    struct dcp_store_entry *entries;
    assert_int_equal(store.ops->list(store.self, "", &entries, &n, NULL), 0);
    assert_int_equal(n, 3);
    assert_string_equal(entries[0].name, "d");
    assert_string_equal(entries[1].name, "e");
    assert_string_equal(entries[2].name, "f");
    dcp_store_list_free(entries, n);
    dcp_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_can_fail),
        cmocka_unit_test(faults_strike_as_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
