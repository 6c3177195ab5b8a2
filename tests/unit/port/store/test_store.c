/* labels: tsan */
/* What every store must do, and what each one does besides. */
#include <dcp/store.h>

#include "base/fs.h"
#include "base/mem.h"
#include "lib/fault.h"
#include "lib/store_forms.h"
#include "port/store/mem.h"
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* "a b/ c" for the files a and c and the folder b. */
static void check_list(const char *dir, const char *wanted)
{
    struct dcp_store_entry *entries;
    size_t n;
    char text[500] = "";
    assert_int_equal(store.ops->list(store.self, dir, &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s%s", i ? " " : "",
                 entries[i].name, entries[i].is_dir ? "/" : "");
    dcp_store_list_free(entries, n);
    assert_string_equal(text, wanted);
}

/* --- the contract --- */

static void files(void **state)
{
    (void)state;
    struct dcp_store_file *file, *other = NULL;
    char got[16] = "";
    bool is_dir;
    uint64_t size;
    assert_int_equal(create("f", 100, &file), 0);
    assert_int_equal(create("f", 100, &other), DCP_E_EXISTS);
    assert_null(other);
    assert_int_equal(write_at(file, 5, "world"), 0);
    assert_int_equal(write_at(file, 0, "hello"), 0);
    assert_int_equal(store.ops->read_at(store.self, file, 3, got, 4, NULL), 0);
    assert_string_equal(got, "lowo");
    if (store.ops->flush_hint)
        store.ops->flush_hint(store.self, file, 0, 10);
    assert_int_equal(store.ops->sync(store.self, file, 10, NULL), 0);
    if (store.ops->drop_cache)
        store.ops->drop_cache(store.self, file);
    assert_int_equal(store.ops->close(store.self, file, NULL), 0);
    assert_int_equal(store.ops->stat(store.self, "f", &is_dir, &size, NULL), 0);
    assert_false(is_dir);
    assert_int_equal(size, 10);
    check_text("f", "helloworld");

    struct dcp_error err = { 0 };
    assert_int_equal(store.ops->open(store.self, "f", &file, NULL), 0);
    assert_int_equal(store.ops->read_at(store.self, file, 6, got, 5, &err),
                     DCP_E_CORRUPT);
    assert_int_equal(store.ops->read_at(store.self, file, UINT64_MAX / 2, got, 1, NULL),
                     DCP_E_CORRUPT);
    assert_int_equal(store.ops->read_at(store.self, file, 10, got, 0, NULL), 0);
    assert_int_equal(store.ops->close(store.self, file, NULL), 0);
    assert_int_equal(store.ops->open(store.self, "g", &file, NULL), DCP_E_NOT_FOUND);
    assert_null(file);
    assert_int_equal(create("absent/f", 0, &file), DCP_E_NOT_FOUND);
    assert_int_equal(create("f/f", 0, &file), DCP_E_NOT_FOUND);
    assert_int_equal(put("empty", ""), 0);
    check_text("empty", "");
}

static void whole_files(void **state)
{
    (void)state;
    void *data = NULL;
    size_t n;
    assert_int_equal(put("f", "1234"), 0);
    assert_int_equal(put("f", "5"), DCP_E_EXISTS);
    check_text("f", "1234");
    assert_int_equal(dcp_store_read_file(&store, "f", 4, &data, &n, NULL), 0);
    free(data);
    assert_int_equal(dcp_store_read_file(&store, "f", 3, &data, &n, NULL), DCP_E_CORRUPT);
    assert_null(data);
    struct dcp_error err = { 0 };
    dcp_store_read_file(&store, "f", 3, &data, &n, &err);
    assert_string_equal(err.message, "'f' has 4 bytes; such a file has 3 at most");
    assert_string_equal(err.hint, "");
    err = (struct dcp_error){ 0 };
    store.max_header_bytes = 2; /* of headers alone */
    assert_int_equal(dcp_store_read_header(&store, "f", 4, &data, &n, &err),
                     DCP_E_CORRUPT);
    assert_string_equal(err.hint, "--limit-header SIZE allows more");
    assert_int_equal(dcp_store_read_file(&store, "f", 4, &data, &n, NULL), 0);
    free(data);
    store.max_header_bytes = 4;
    assert_int_equal(dcp_store_read_header(&store, "f", 3, &data, &n, NULL), 0);
    free(data);
    store.max_header_bytes = 0;
    assert_int_equal(dcp_store_read_file(&store, "g", 3, &data, &n, NULL),
                     DCP_E_NOT_FOUND);
    assert_int_equal(make_dir("d"), 0);
    assert_int_equal(dcp_store_read_file(&store, "d", 3, &data, &n, NULL), DCP_E_IO);
}

static void folders(void **state)
{
    (void)state;
    bool is_dir = false;
    uint64_t size = 1;
    check_list("", "");
    assert_int_equal(make_dir("b"), 0);
    assert_int_equal(make_dir("b"), DCP_E_EXISTS);
    assert_int_equal(make_dir("x/y"), DCP_E_NOT_FOUND);
    assert_int_equal(put("c", "c"), 0);
    assert_int_equal(put("B", ""), 0);
    assert_int_equal(put("b/f10", ""), 0);
    assert_int_equal(put("b/f9", ""), 0);
    assert_int_equal(make_dir("b/sub"), 0);
    assert_int_equal(put("b/sub/deep", "deep"), 0);
    check_list("", "B b/ c");
    check_list("b", "f10 f9 sub/");
    check_list("b/sub", "deep");
    check_text("b/sub/deep", "deep");
    assert_int_equal(sync_dir(""), 0);
    assert_int_equal(sync_dir("b/sub"), 0);
    assert_int_equal(sync_dir("absent"), DCP_E_NOT_FOUND);
    assert_int_not_equal(sync_dir("c"), 0);
    assert_int_equal(store.ops->stat(store.self, "b", &is_dir, &size, NULL), 0);
    assert_true(is_dir);
    assert_int_equal(store.ops->stat(store.self, "", &is_dir, &size, NULL), 0);
    assert_true(is_dir);
    struct dcp_store_entry *entries;
    size_t n;
    assert_int_equal(store.ops->list(store.self, "absent", &entries, &n, NULL),
                     DCP_E_NOT_FOUND);
    assert_null(entries);

    assert_int_equal(remove_name("b"), 0);
    check_list("", "B c");
    assert_int_equal(remove_name("b"), DCP_E_NOT_FOUND);
    assert_int_equal(remove_name("c"), 0);
    assert_int_equal(stat_code("c"), DCP_E_NOT_FOUND);
}

static void publishing(void **state)
{
    (void)state;
    assert_int_equal(make_dir("tmp"), 0);
    assert_int_equal(put("tmp/f", "new"), 0);
    assert_int_equal(make_dir("old"), 0);
    assert_int_equal(put("file", "file"), 0);
    assert_int_equal(publish("tmp", "old"), DCP_E_EXISTS); /* though it is empty */
    assert_int_equal(publish("tmp", "file"), DCP_E_EXISTS);
    assert_int_equal(publish("file", "tmp/f"), DCP_E_EXISTS);
    assert_int_equal(publish("absent", "x"), DCP_E_NOT_FOUND);
    assert_int_equal(publish("tmp", "absent/x"), DCP_E_NOT_FOUND);
    assert_int_not_equal(publish("tmp", "tmp/x"), 0);
    check_text("tmp/f", "new");
    assert_int_equal(publish("tmp", "step"), 0);
    check_text("step/f", "new");
    assert_int_equal(publish("file", "step/file"), 0); /* from folder to folder */
    check_list("", "old/ step/");
    check_list("step", "f file");
}

static void replacing(void **state)
{
    (void)state;
    assert_int_equal(replace("latest", "one, and long"), 0);
    check_text("latest", "one, and long");
    assert_int_equal(replace("latest", "two"), 0);
    check_text("latest", "two");
    assert_int_equal(replace("latest", ""), 0);
    check_text("latest", "");
    assert_int_equal(make_dir("d"), 0);
    assert_int_equal(replace("d/x", "y"), 0);
    assert_int_not_equal(replace("d", "y"), 0);
    assert_int_equal(replace("absent/x", "y"), DCP_E_NOT_FOUND);
    check_list("", "d/ latest"); /* and no temporary file */
    check_list("d", "x");
}

/* No name leaves the root. */
static void bad_names(void **state)
{
    (void)state;
    static const char *const bad[] = { "/etc/passwd", "..",   "../x", "a/../b", ".",
                                       "./a",         "a//b", "a/",   "/",      "a/.",
                                       "a/..",        "//a",  "" };
    static const char *const good[] = { "a", "a/b", "...", ".a", "a..", "..a/b.", "-" };
    for (size_t i = 0; i < DCP_ARRAY_LEN(good); i++)
        assert_true(dcp_store_name_ok(good[i]));
    assert_false(dcp_store_name_ok(NULL));
    assert_int_equal(make_dir("a"), 0);
    for (size_t i = 0; i < DCP_ARRAY_LEN(bad); i++) {
        const char *name = bad[i];
        struct dcp_store_file *file;
        struct dcp_store_entry *entries;
        size_t n;
        assert_false(dcp_store_name_ok(name));
        assert_int_not_equal(create(name, 0, &file), 0);
        assert_int_not_equal(store.ops->open(store.self, name, &file, NULL), 0);
        assert_int_not_equal(make_dir(name), 0);
        assert_int_not_equal(remove_name(name), 0);
        assert_int_not_equal(replace(name, "x"), 0);
        assert_int_not_equal(publish("a", name), 0);
        assert_int_not_equal(publish(name, "z"), 0);
        if (!*name)
            continue; /* the root, for those that take folders */
        assert_int_not_equal(stat_code(name), 0);
        assert_int_not_equal(sync_dir(name), 0);
        assert_int_not_equal(store.ops->list(store.self, name, &entries, &n, NULL), 0);
    }
    check_list("", "a/");
}

static void one_lease(void **state)
{
    (void)state;
    struct dcp_error err = { 0 };
    assert_int_equal(store.ops->lock(store.self, NULL), 0);
    assert_int_equal(store.ops->lock(store.self, &err), DCP_E_BUSY);
    assert_non_null(strstr(err.message, "in use by"));
    store.ops->unlock(store.self);
    store.ops->unlock(store.self);
    assert_int_equal(store.ops->lock(store.self, NULL), 0);
    store.ops->unlock(store.self);
    assert_true(store.ops->free_bytes(store.self) > 0);
}

/* Threads on files of their own, and four on one. */
struct writer {
    struct dcp_store_file *shared;
    int id, rc;
};

static void *write_much(void *arg)
{
    struct writer *me = arg;
    char name[32], text[65];
    snprintf(name, sizeof name, "f%d", me->id);
    memset(text, 'a' + me->id, 64);
    text[64] = '\0';
    struct dcp_store_file *file;
    me->rc = create(name, 6400, &file);
    for (uint64_t i = 0; !me->rc && i < 100; i++) {
        me->rc = write_at(file, i * 64, text);
        if (!me->rc)
            me->rc = write_at(me->shared, (i * 4 + (uint64_t)me->id) * 64, text);
    }
    if (!me->rc)
        me->rc = store.ops->sync(store.self, file, 6400, NULL);
    if (!me->rc)
        me->rc = store.ops->close(store.self, file, NULL);
    if (!me->rc)
        me->rc = replace("latest", name);
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    struct dcp_store_file *shared;
    struct writer writers[4];
    pthread_t threads[4];
    assert_int_equal(create("shared", 25600, &shared), 0);
    for (int i = 0; i < 4; i++) {
        writers[i] = (struct writer){ .shared = shared, .id = i };
        assert_int_equal(pthread_create(&threads[i], NULL, write_much, &writers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(writers[i].rc, 0);
    }
    char got[64];
    for (uint64_t i = 0; i < 400; i++) {
        assert_int_equal(store.ops->read_at(store.self, shared, i * 64, got, 64, NULL),
                         0);
        for (int j = 0; j < 64; j++)
            assert_int_equal(got[j], 'a' + (int)(i % 4));
    }
    assert_int_equal(store.ops->close(store.self, shared, NULL), 0);
    check_list("", "f0 f1 f2 f3 latest shared");
}

/* --- what a power cut leaves in the store in memory --- */

static void crash(void)
{
    assert_int_equal(dcp_store_mem_crash(&store, NULL), 0);
}

static void unsynced_is_lost(void **state)
{
    (void)state;
    struct dcp_store_file *file;
    assert_int_equal(put("name_unsynced", "data"), 0);
    crash();
    check_list("", "");

    assert_int_equal(create("data_unsynced", 4, &file), 0);
    assert_int_equal(write_at(file, 0, "data"), 0);
    assert_int_equal(sync_dir(""), 0);
    crash();
    check_text("data_unsynced", ""); /* the name without the bytes */
    assert_int_equal(store.ops->close(store.self, file, NULL), 0);

    assert_int_equal(put("whole", "one"), 0);
    assert_int_equal(sync_dir(""), 0);
    assert_int_equal(store.ops->open(store.self, "whole", &file, NULL), 0);
    assert_int_equal(write_at(file, 0, "two and more"), 0);
    assert_int_equal(store.ops->close(store.self, file, NULL), 0);
    check_text("whole", "two and more");
    crash();
    check_text("whole", "one");

    assert_int_equal(remove_name("whole"), 0);
    crash();
    check_text("whole", "one"); /* the removal was not synced */
    assert_int_equal(remove_name("whole"), 0);
    assert_int_equal(sync_dir(""), 0);
    crash();
    assert_int_equal(stat_code("whole"), DCP_E_NOT_FOUND);
}

static void commit_survives_when_synced_before(void **state)
{
    (void)state;
    assert_int_equal(make_dir("tmp"), 0);
    assert_int_equal(put("tmp/a", "a"), 0);
    assert_int_equal(publish("tmp", "unsynced"), 0);
    crash();
    check_list("", "unsynced/");
    check_list("unsynced", ""); /* the names in it were not made durable */

    assert_int_equal(make_dir("tmp"), 0);
    assert_int_equal(put("tmp/a", "a"), 0);
    assert_int_equal(sync_dir("tmp"), 0);
    assert_int_equal(publish("tmp", "step"), 0);
    crash();
    check_text("step/a", "a");
    assert_int_equal(replace("latest", "step"), 0);
    crash();
    check_text("latest", "step");
    assert_int_equal(store.ops->lock(store.self, NULL), 0);
    crash(); /* the holder is dead */
    assert_int_equal(store.ops->lock(store.self, NULL), 0);
}

static void space_runs_out(void **state)
{
    (void)state;
    struct dcp_store_file *file;
    struct dcp_error err = { 0 };
    assert_true(store.ops->free_bytes(store.self) == UINT64_MAX);
    dcp_store_mem_limit(&store, 10);
    assert_int_equal(create("f", 8, &file), 0);
    assert_int_equal(store.ops->free_bytes(store.self), 2);
    struct dcp_store_file *more;
    assert_int_equal(store.ops->create(store.self, "g", 3, &more, &err), DCP_E_NO_SPACE);
    assert_non_null(strstr(err.message, "needs 3 B, 2 B are free"));
    assert_int_equal(stat_code("g"), DCP_E_NOT_FOUND);
    assert_int_equal(write_at(file, 7, "abc"), 0);
    assert_int_equal(write_at(file, 10, "d"), DCP_E_NO_SPACE);
    assert_int_equal(write_at(file, 0, "d"), DCP_E_IO); /* the file is lost */
    assert_int_equal(store.ops->sync(store.self, file, 10, NULL), DCP_E_IO);
    assert_int_equal(store.ops->close(store.self, file, NULL), DCP_E_IO);
    assert_int_equal(replace("r", "x"), DCP_E_NO_SPACE);
    assert_int_equal(remove_name("f"), 0);
    assert_int_equal(store.ops->free_bytes(store.self), 10);
    assert_int_equal(put("r", "0123456789"), 0);
}

/* --- which store a test gets --- */

static char folder[64];
static struct dcp_store inner_store;
static struct fault no_fault;

static int open_dir(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/dcp-test-store-XXXXXX");
    return mkdtemp(folder) ? dcp_store_dir(&store, folder, false, NULL) : -1;
}

static int close_dir(void **state)
{
    (void)state;
    dcp_store_free(&store);
    return dcp_fs_remove_all(folder, NULL);
}

static int open_mem(void **state)
{
    (void)state;
    return dcp_store_mem(&store, NULL);
}

static int close_store(void **state)
{
    (void)state;
    dcp_store_free(&store);
    dcp_store_free(&inner_store);
    return 0;
}

static int open_fault(void **state)
{
    (void)state;
    no_fault = (struct fault){ 0 };
    return dcp_store_mem(&inner_store, NULL) ||
           fault_store(&store, &inner_store, &no_fault, NULL);
}

#define ON_DIR(f)                                \
    {                                            \
        "dir: " #f, f, open_dir, close_dir, NULL \
    }
#define ON_MEM(f)                                  \
    {                                              \
        "mem: " #f, f, open_mem, close_store, NULL \
    }
#define ON_FAULT(f)                                    \
    {                                                  \
        "fault: " #f, f, open_fault, close_store, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DIR(files),
        ON_MEM(files),
        ON_FAULT(files),
        ON_DIR(whole_files),
        ON_MEM(whole_files),
        ON_FAULT(whole_files),
        ON_DIR(folders),
        ON_MEM(folders),
        ON_FAULT(folders),
        ON_DIR(publishing),
        ON_MEM(publishing),
        ON_FAULT(publishing),
        ON_DIR(replacing),
        ON_MEM(replacing),
        ON_FAULT(replacing),
        ON_DIR(bad_names),
        ON_MEM(bad_names),
        ON_FAULT(bad_names),
        ON_DIR(one_lease),
        ON_MEM(one_lease),
        ON_FAULT(one_lease),
        ON_DIR(many_threads),
        ON_MEM(many_threads),
        ON_FAULT(many_threads),
        ON_MEM(unsynced_is_lost),
        ON_MEM(commit_survives_when_synced_before),
        ON_MEM(space_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
