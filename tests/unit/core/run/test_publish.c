/* Publication: a target has its name only when it is complete and durable, and what a
 * crash leaves does not stand in the way. */
#include "core/run/publish.h"
#include "lib/acts.h"
#include "lib/fault.h"
#include "port/store/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

static void write_text(const struct dcp_store *store, const char *name, const char *text)
{
    assert_int_equal(dcp_store_write_file(store, name, text, strlen(text), NULL), 0);
}

static void check_text(const struct dcp_store *store, const char *name, const char *text)
{
    void *data;
    size_t n;

    assert_int_equal(dcp_store_read_file(store, name, 100, &data, &n, NULL), 0);
    assert_string_equal(data, text);
    free(data);
}

static bool exists(const struct dcp_store *store, const char *name)
{
    bool is_dir;
    uint64_t size;

    return store->ops->stat(store->self, name, &is_dir, &size, NULL) == 0;
}

static size_t count(const struct dcp_store *store)
{
    struct dcp_store_entry *entries;
    size_t n;

    assert_int_equal(store->ops->list(store->self, "", &entries, &n, NULL), 0);
    dcp_store_list_free(entries, n);
    return n;
}

static void a_folder_that_others_filled(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_publication publish;

    assert_int_equal(store->ops->make_dir(store->self, "made", NULL), 0);
    write_text(store, "made/a", "1");
    assert_int_equal(dcp_publish_adopt(&publish, store, "step", "made", false, NULL), 0);
    dcp_publish_fini(&publish); /* not committed: it stays */
    assert_true(exists(store, "made/a"));
    assert_int_equal(dcp_publish_adopt(&publish, store, "step", "made", false, NULL), 0);
    assert_int_equal(dcp_publish_commit(&publish, NULL, false, NULL), 0);
    dcp_publish_fini(&publish);
    check_text(store, "step/a", "1");
    assert_int_equal(count(store), 1);
}

static void a_folder(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_publication publish;

    assert_int_equal(dcp_publish_begin(&publish, store, "step", false, NULL), 0);
    assert_string_equal(publish.prefix, ".tmp-step/");
    write_text(store, ".tmp-step/a", "1");
    assert_false(exists(store, "step"));
    assert_int_equal(dcp_publish_commit(&publish, NULL, false, NULL), 0);
    assert_true(exists(store, "step/a"));
    dcp_publish_fini(&publish);
    assert_int_equal(count(store), 1);
    /* And it is durable: a power cut changes nothing. */
    assert_int_equal(dcp_store_mem_crash(store, NULL), 0);
    check_text(store, "step/a", "1");
}

static void one_file(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_publication publish;

    assert_int_equal(dcp_publish_begin(&publish, store, "model.bin", false, NULL), 0);
    write_text(store, ".tmp-model.bin/data", "1");
    assert_int_equal(dcp_publish_commit(&publish, "data", false, NULL), 0);
    dcp_publish_fini(&publish);
    assert_int_equal(dcp_store_mem_crash(store, NULL), 0);
    check_text(store, "model.bin", "1");
}

static void what_exists_stays(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_publication publish;
    struct dcp_error err = { 0 };

    write_text(store, "out", "old");
    assert_int_equal(dcp_publish_begin(&publish, store, "out", false, &err),
                     DCP_E_EXISTS);
    assert_string_equal(err.message, "'out' already exists in 'memory'");
    dcp_publish_fini(&publish);
    assert_int_equal(count(store), 1);

    /* It came while the target was made. */
    assert_int_equal(dcp_publish_begin(&publish, store, "late", false, NULL), 0);
    write_text(store, ".tmp-late/a", "1");
    write_text(store, "late", "other");
    err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_publish_commit(&publish, NULL, false, &err), DCP_E_EXISTS);
    assert_string_equal(err.message, "'late' already exists in 'memory': another process "
                                     "made it meanwhile");
    dcp_publish_fini(&publish);
    check_text(store, "late", "other");
    assert_false(exists(store, ".tmp-late"));
}

/* A look that fails says nothing about the name. */
static void what_cannot_be_looked_at(void **state)
{
    struct dcp_store *store = *state, faulty;
    struct dcp_publication publish;

    for (int force = 0; force < 2; force++) {
        struct fault fault = { .kind = FAULT_FAIL, .at = 1 };
        assert_int_equal(fault_store(&faulty, store, &fault, NULL), 0);
        assert_int_equal(dcp_publish_begin(&publish, &faulty, "out", force, NULL),
                         DCP_E_IO);
        dcp_publish_fini(&publish);
        dcp_store_free(&faulty);
        assert_int_equal(count(store), 0);
    }
}

static void abandoned(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_publication publish;

    assert_int_equal(dcp_publish_begin(&publish, store, "step", false, NULL), 0);
    write_text(store, ".tmp-step/a", "1");
    dcp_publish_fini(&publish);
    assert_int_equal(count(store), 0);
}

static void left_by_the_dead(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_publication publish;

    assert_int_equal(store->ops->make_dir(store->self, ".tmp-step", NULL), 0);
    write_text(store, ".tmp-step/old", "1");
    assert_int_equal(dcp_publish_begin(&publish, store, "step", false, NULL), 0);
    assert_false(exists(store, ".tmp-step/old"));
    write_text(store, ".tmp-step/new", "2");
    assert_int_equal(dcp_publish_commit(&publish, NULL, false, NULL), 0);
    dcp_publish_fini(&publish);
    assert_true(exists(store, "step/new"));
}

/* A reshard takes no lease: what a living process makes stays, and is not mixed with. */
static void left_by_the_living(void **state)
{
    char folder[256];
    struct dcp_store dir;
    struct dcp_publication first, second;

    (void)state;
    acts_folder(folder);
    assert_int_equal(dcp_store_dir(&dir, folder, false, NULL), 0);
    assert_int_equal(dcp_publish_begin(&first, &dir, "out", false, NULL), 0);
    write_text(&dir, ".tmp-out/a", "1");
    assert_int_equal(dcp_publish_begin(&second, &dir, "out", false, NULL), 0);
    assert_string_equal(second.prefix, ".tmp-out~2/");
    write_text(&dir, ".tmp-out~2/a", "2");
    check_text(&dir, ".tmp-out/a", "1");
    assert_int_equal(dcp_publish_commit(&second, NULL, false, NULL), 0);
    assert_int_equal(dcp_publish_commit(&first, NULL, false, NULL), DCP_E_EXISTS);
    dcp_publish_fini(&second);
    dcp_publish_fini(&first);
    check_text(&dir, "out/a", "2");
    assert_int_equal(count(&dir), 1);

    /* What is being made under the name of one that was replaced stays, too. */
    assert_int_equal(dcp_publish_begin(&first, &dir, "out", true, NULL), 0);
    write_text(&dir, ".tmp-out/a", "3");
    assert_int_equal(dcp_publish_commit(&first, NULL, true, NULL), 0);
    assert_int_equal(dcp_publish_begin(&second, &dir, "out", true, NULL), 0);
    assert_string_equal(second.prefix, ".tmp-out/");
    write_text(&dir, ".tmp-out/a", "4");
    assert_int_equal(dcp_publish_clear(&first, NULL), 0);
    check_text(&dir, ".tmp-out/a", "4");
    assert_int_equal(dcp_publish_commit(&second, NULL, true, NULL), 0);
    dcp_publish_fini(&second);
    dcp_publish_fini(&first);
    check_text(&dir, "out/a", "4");
    assert_int_equal(count(&dir), 1);
    dcp_store_free(&dir);
    acts_folder_remove(folder);
}

/* A folder by a folder, a file by a file, one by the other. */
static void check_replacing(struct dcp_store *store)
{
    for (int old_dir = 0; old_dir < 2; old_dir++)
        for (int new_dir = 0; new_dir < 2; new_dir++) {
            struct dcp_publication publish;
            if (old_dir)
                assert_int_equal(store->ops->make_dir(store->self, "out", NULL), 0);
            write_text(store, old_dir ? "out/a" : "out", "old");
            assert_int_equal(dcp_publish_begin(&publish, store, "out", true, NULL), 0);
            write_text(store, ".tmp-out/a", "new");
            check_text(store, old_dir ? "out/a" : "out", "old");
            assert_int_equal(
                dcp_publish_commit(&publish, new_dir ? NULL : "a", true, NULL), 0);
            dcp_publish_fini(&publish);
            check_text(store, new_dir ? "out/a" : "out", "new");
            assert_int_equal(count(store), 1);
            assert_int_equal(dcp_store_mem_crash(store, NULL), 0);
            check_text(store, new_dir ? "out/a" : "out", "new");
            assert_int_equal(store->ops->remove(store->self, "out", NULL), 0);
            assert_int_equal(store->ops->sync_dir(store->self, "", NULL), 0);
        }
}

static void replaced(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_store_ops without = *store->ops;
    const struct dcp_store_ops *ops = store->ops;

    check_replacing(store);
    without.exchange = NULL; /* as on NFS */
    store->ops = &without;
    check_replacing(store);
    store->ops = ops;
}

static const struct dcp_store *shared;

/* As one of another process that takes the name just before. */
static int publish_late(void *self, const char *from, const char *to,
                        struct dcp_error *err)
{
    (void)self;
    write_text(shared, to, "theirs");
    return shared->ops->publish(shared->self, from, to, err);
}

static void replaced_in_a_race(void **state)
{
    struct dcp_store_forward forward;
    struct dcp_store late;
    struct dcp_publication publish;

    shared = *state;
    dcp_store_forward(&late, &forward, shared);
    forward.ops.publish = publish_late;
    assert_int_equal(dcp_publish_begin(&publish, &late, "out", true, NULL), 0);
    write_text(&late, ".tmp-out/a", "ours");
    assert_int_equal(dcp_publish_commit(&publish, NULL, true, NULL), 0);
    dcp_publish_fini(&publish);
    check_text(shared, "out/a", "ours");
    assert_int_equal(count(shared), 1);
    dcp_store_free(&late);
}

/* Whatever fails or stops while something is replaced, and also when the power goes
 * then: the old or the new stands there, whole. */
static void replaced_with_faults(void **state)
{
    struct dcp_store *store = *state;
    static const enum fault_kind kinds[] = { FAULT_FAIL, FAULT_STOP };

    for (int k = 0; k < 4; k++)
        for (uint64_t at = 1;; at++) {
            struct fault fault = { .kind = kinds[k % 2], .at = at };
            struct dcp_publication publish;
            struct dcp_store faulty;
            void *data;
            size_t n;
            store->ops->remove(store->self, "out", NULL);
            assert_int_equal(store->ops->make_dir(store->self, "out", NULL), 0);
            write_text(store, "out/a", "old");
            assert_int_equal(store->ops->sync_dir(store->self, "out", NULL), 0);
            assert_int_equal(store->ops->sync_dir(store->self, "", NULL), 0);
            assert_int_equal(fault_store(&faulty, store, &fault, NULL), 0);
            int rc = dcp_publish_begin(&publish, &faulty, "out", true, NULL);
            if (!rc) {
                char name[32];
                snprintf(name, sizeof name, "%sa", publish.prefix);
                write_text(store, name, "new");
                rc = dcp_publish_commit(&publish, NULL, true, NULL);
            }
            dcp_publish_fini(&publish);
            dcp_store_free(&faulty);
            if (k >= 2)
                assert_int_equal(dcp_store_mem_crash(store, NULL), 0);
            assert_int_equal(dcp_store_read_file(store, "out/a", 100, &data, &n, NULL),
                             0);
            if (!rc)
                assert_string_equal(data, "new");
            free(data);
            if (fault.count < at)
                break;
        }
}

/* The act behind it, in a folder of the file system too. */
static void check_exchange(struct dcp_store *store)
{
    const struct dcp_store_ops *ops = store->ops;

    assert_int_equal(ops->make_dir(store->self, "folder", NULL), 0);
    write_text(store, "folder/a", "inside");
    write_text(store, "file", "outside");
    assert_int_equal(ops->exchange(store->self, "folder/a", "file", NULL), 0);
    check_text(store, "folder/a", "outside");
    check_text(store, "file", "inside");
    assert_int_equal(ops->exchange(store->self, "folder", "file", NULL), 0);
    check_text(store, "folder", "inside");
    check_text(store, "file/a", "outside");
    assert_int_equal(ops->exchange(store->self, "folder", "none", NULL), DCP_E_NOT_FOUND);
    assert_int_equal(ops->exchange(store->self, "none", "folder", NULL), DCP_E_NOT_FOUND);
    assert_int_equal(ops->exchange(store->self, "gone/a", "folder", NULL),
                     DCP_E_NOT_FOUND);
    assert_int_not_equal(ops->exchange(store->self, "../folder", "folder", NULL), 0);
    check_text(store, "folder", "inside");
}

static void exchanged(void **state)
{
    struct dcp_store *store = *state, dir;
    char folder[256];

    check_exchange(store);
    assert_int_equal(dcp_store_mem_crash(store, NULL), 0);
    check_text(store, "folder", "inside");
    check_text(store, "file/a", "outside");
    acts_folder(folder);
    assert_int_equal(dcp_store_dir(&dir, folder, false, NULL), 0);
    check_exchange(&dir);
    dcp_store_free(&dir);
    acts_folder_remove(folder);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, acts_setup, acts_teardown)
    const struct CMUnitTest tests[] = {
        EACH(a_folder),
        EACH(a_folder_that_others_filled),
        EACH(one_file),
        EACH(what_exists_stays),
        EACH(abandoned),
        EACH(left_by_the_dead),
        EACH(left_by_the_living),
        EACH(replaced),
        EACH(replaced_in_a_race),
        EACH(exchanged),
        EACH(replaced_with_faults),
        EACH(what_cannot_be_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
