/* A store in which deltas read as what they stand for: any bytes, on any thread, and
 * nothing when anything below it fails. */
/* labels: tsan */
#include "base/pool.h"
#include "lib/acts.h"
#include "lib/delta_folder.h"
#include "lib/fault.h"
#include <dcp/delta.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The folders in memory, and deltas read through `fault`. */
struct deltas {
    struct dcp_store memory, store;
    struct fault fault;
};

static int setup(void **state)
{
    struct deltas *deltas = calloc(1, sizeof *deltas);
    struct dcp_store faulty;

    assert_non_null(deltas);
    assert_int_equal(dcp_store_mem(&deltas->memory, NULL), 0);
    delta_folder_make(&deltas->memory);
    assert_int_equal(fault_store(&faulty, &deltas->memory, &deltas->fault, NULL), 0);
    assert_int_equal(dcp_store_delta(&deltas->store, &faulty, NULL, NULL, NULL), 0);
    *state = deltas;
    return 0;
}

static int teardown(void **state)
{
    struct deltas *deltas = *state;

    dcp_store_free(&deltas->store);
    dcp_store_free(&deltas->memory);
    free(deltas);
    return 0;
}

/* Reads a part of "f"; what comes is right. */
static int read_part(const struct dcp_store *store, const char *name, int number,
                     uint64_t at, size_t n, struct dcp_error *err)
{
    struct dcp_store_file *file;
    unsigned char *out = malloc(n + 1);
    int rc = store->ops->open(store->self, name, &file, err);

    assert_non_null(out);
    if (!rc) {
        rc = store->ops->read_at(store->self, file, at, out, n, err);
        if (!rc)
            assert_memory_equal(out, delta_folder_bytes(number) + at, n);
        store->ops->close(store->self, file, NULL);
    }
    free(out);
    return rc;
}

struct reads {
    const struct dcp_store *store;
    struct dcp_store_file *file;
};

static int one_read(void *arg, int worker, size_t i, struct dcp_error *err)
{
    const struct reads *reads = arg;
    uint64_t seed = i + 1, at = acts_random(&seed) % DELTA_FOLDER_BYTES;
    size_t n = (size_t)(acts_random(&seed) % 300000);
    unsigned char *out = malloc(300000);

    (void)worker;
    n = n < DELTA_FOLDER_BYTES - at ? n : (size_t)(DELTA_FOLDER_BYTES - at);
    int rc =
        out ? reads->store->ops->read_at(reads->store->self, reads->file, at, out, n, err)
            : dcp_error_memory(err, "a test");
    if (!rc && memcmp(out, delta_folder_bytes(2) + at, n) != 0)
        rc = dcp_error_set(err, DCP_E_DIFFERS, "other bytes");
    free(out);
    return rc;
}

static void any_bytes_on_any_thread(void **state)
{
    const struct dcp_store *store = &((struct deltas *)*state)->store;
    struct reads reads = { .store = store };
    struct dcp_pool *pool;
    unsigned char byte;

    assert_int_equal(dcp_pool_new(3, &pool, NULL), 0);
    assert_int_equal(store->ops->open(store->self, "two/f", &reads.file, NULL), 0);
    assert_int_equal(dcp_pool_for(pool, 200, one_read, &reads, NULL), 0);
    assert_int_equal(
        store->ops->read_at(store->self, reads.file, DELTA_FOLDER_BYTES, &byte, 0, NULL),
        0);
    assert_int_equal(
        store->ops->read_at(store->self, reads.file, DELTA_FOLDER_BYTES, &byte, 1, NULL),
        DCP_E_CORRUPT);
    store->ops->close(store->self, reads.file, NULL);
    dcp_pool_free(pool);
    assert_int_equal(read_part(store, "one/f", 1, 0, DELTA_FOLDER_BYTES, NULL), 0);
    assert_int_equal(read_part(store, "base/f", 0, 5, 100, NULL), 0);
}

static void names_are_those_of_the_full_folder(void **state)
{
    const struct dcp_store *store = &((struct deltas *)*state)->store;
    struct dcp_store_entry *entries;
    struct dcp_store_file *file;
    char *base;
    int chain;
    size_t n;
    bool is_dir;
    uint64_t size;

    assert_int_equal(store->ops->list(store->self, "two", &entries, &n, NULL), 0);
    assert_int_equal(n, 2);
    assert_string_equal(entries[0].name, "f");
    assert_int_equal(entries[0].size_bytes, DELTA_FOLDER_BYTES);
    assert_true(!strcmp(entries[1].name, "sub") && entries[1].is_dir);
    dcp_store_list_free(entries, n);
    assert_int_equal(store->ops->list(store->self, "two/sub", &entries, &n, NULL), 0);
    assert_true(n == 1 && !strcmp(entries[0].name, "note"));
    dcp_store_list_free(entries, n);
    assert_int_equal(store->ops->list(store->self, "two/none", &entries, &n, NULL),
                     DCP_E_NOT_FOUND);
    assert_int_equal(store->ops->stat(store->self, "two/f", &is_dir, &size, NULL), 0);
    assert_true(!is_dir && size == DELTA_FOLDER_BYTES);
    assert_int_equal(store->ops->stat(store->self, "two/sub", &is_dir, &size, NULL), 0);
    assert_true(is_dir);
    assert_int_equal(store->ops->stat(store->self, "two/f.delta", &is_dir, &size, NULL),
                     DCP_E_NOT_FOUND);
    assert_int_equal(store->ops->open(store->self, "two/f.delta", &file, NULL),
                     DCP_E_NOT_FOUND);
    assert_int_equal(dcp_delta_base(store, "two", &base, &chain, NULL), 0);
    assert_true(!strcmp(base, "../one") && chain == 2);
    free(base);
    assert_int_equal(dcp_delta_base(store, "base", &base, &chain, NULL), DCP_E_NOT_FOUND);
}

/* Whatever fails below, what is read is right or an error. */
static void nothing_wrong_when_an_operation_fails(void **state)
{
    struct deltas *deltas = *state;
    const struct dcp_store *store = &deltas->store;
    int failed = 0;

    for (uint64_t at = 1;; at++) {
        struct dcp_error err = { 0 };
        deltas->fault = (struct fault){ .kind = FAULT_FAIL, .at = at };
        int rc = read_part(store, "two/f", 2, 1000, (1u << 20) + 5, &err);
        assert_int_equal(!rc, !err.message[0]);
        failed += rc != 0;
        if (deltas->fault.count < at)
            break;
    }
    assert_true(failed > 10);
    deltas->fault = (struct fault){ .kind = FAULT_NONE };
    assert_int_equal(read_part(store, "two/f", 2, 1000, (1u << 20) + 5, NULL), 0);
}

/* Another byte in a file of the store. */
static void flip(const struct dcp_store *memory, const char *name, size_t at)
{
    unsigned char *data;
    size_t n;

    assert_int_equal(dcp_store_read_file(memory, name, 8 << 20, (void **)&data, &n, NULL),
                     0);
    data[at % n] ^= 8;
    assert_int_equal(memory->ops->remove(memory->self, name, NULL), 0);
    assert_int_equal(dcp_store_write_file(memory, name, data, n, NULL), 0);
    free(data);
}

static void open_again(struct deltas *deltas, struct dcp_store *out)
{
    struct dcp_store faulty;

    assert_int_equal(fault_store(&faulty, &deltas->memory, &deltas->fault, NULL), 0);
    assert_int_equal(dcp_store_delta(out, &faulty, NULL, NULL, NULL), 0);
}

static void every_changed_byte_is_found(void **state)
{
    struct deltas *deltas = *state;
    const struct dcp_store *store = &deltas->store;
    static const char *const files[] = { "two/delta.json", "two/f.delta",
                                         "one/delta.json", "one/f.delta", "base/f" };
    uint64_t seed = 9;

    for (size_t f = 0; f < sizeof files / sizeof *files; f++)
        for (int i = 0; i < 60; i++) {
            size_t at = (size_t)acts_random(&seed);
            struct dcp_store again;
            flip(&deltas->memory, files[f], at);
            open_again(deltas, &again); /* one that is open knows a description already */
            assert_int_equal(read_part(&again, "two/f", 2, 0, DELTA_FOLDER_BYTES, NULL),
                             DCP_E_CORRUPT);
            dcp_store_free(&again);
            flip(&deltas->memory, files[f], at);
        }
    flip(&deltas->memory, "two/sub/note", 1);
    struct dcp_store_file *file;
    assert_int_equal(store->ops->open(store->self, "two/sub/note", &file, NULL),
                     DCP_E_CORRUPT);
    flip(&deltas->memory, "two/sub/note", 1);
    assert_int_equal(read_part(store, "two/f", 2, 0, DELTA_FOLDER_BYTES, NULL), 0);
}

/* A file that is open stays what it was made of; opened anew it is what is there now. */
static void a_folder_that_is_made_anew(void **state)
{
    struct deltas *deltas = *state;
    const struct dcp_store *store = &deltas->store, *memory = &deltas->memory;

    assert_int_equal(read_part(store, "two/f", 2, 0, 100, NULL), 0);
    assert_int_equal(memory->ops->publish(memory->self, "two", "old", NULL), 0);
    assert_int_equal(read_part(store, "two/f", 2, 0, 100, NULL), DCP_E_NOT_FOUND);
    assert_int_equal(read_part(store, "old/f", 2, 0, 100, NULL), 0);
    assert_int_equal(memory->ops->publish(memory->self, "one", "two", NULL), 0);
    assert_int_equal(read_part(store, "two/f", 1, 0, 100, NULL), 0);
    assert_int_equal(read_part(store, "old/f", 2, 0, 100, NULL), DCP_E_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(any_bytes_on_any_thread, setup, teardown),
        cmocka_unit_test_setup_teardown(names_are_those_of_the_full_folder, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(nothing_wrong_when_an_operation_fails, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(every_changed_byte_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(a_folder_that_is_made_anew, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
