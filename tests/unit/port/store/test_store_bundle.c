/* labels: tsan */
/* An archive read as a store: whatever its form, every byte of every file at any offset;
 * and an archive written as one: the same bytes whatever the threads. */
#include "base/mem.h"
#include "base/str.h"
#include "lib/archives.h"
#include "lib/fault.h"
#include "lib/slower.h"
#include "port/store/sink.h"
#include "port/store/tape.h"
#include "port/store/tar_header.h"
#include <archive.h>
#include <archive_entry.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct archive_file files[] = {
    { "a", 0 },
    { "a-b", 1 },
    { "b/one", 511 },
    { "b/two", 512 },
    { "b/deep/three", 513 },
    { "large", (3u << 20) + 77 },
    { "larger", 5000000 },
    { "z", 12000 },
};
enum { N_FILES = DCP_ARRAY_LEN(files) };

/* The forms in which the same archive comes. */
enum form { OURS, PLAIN, ONE_FRAME, SMALL_FRAMES, LARGE_FRAMES, NO_TABLE, N_FORMS };

/* Packs the files and brings the archive into a form. */
static void make(struct dcp_store *store, enum form form)
{
    DCP_CLEANUP_BUF struct dcp_buf ours = { 0 }, tar = { 0 }, made = { 0 };
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_store_mem(store, NULL), 0);
    assert_int_equal(archive_pack(store, files, N_FILES, 1, &err), 0);
    archive_take(store, "archive", &ours);
    archive_decode(&ours, &tar);
    if (form == PLAIN)
        archive_put(store, "archive", tar.data, tar.size_bytes);
    if (form == NO_TABLE) {
        ours.data[ours.size_bytes - 1] ^= 1; /* no longer known for a seek table */
        archive_put(store, "archive", ours.data, ours.size_bytes);
    }
    if (form == ONE_FRAME || form == SMALL_FRAMES || form == LARGE_FRAMES) {
        archive_encode(&tar,
                       form == ONE_FRAME      ? 0
                       : form == SMALL_FRAMES ? 300000
                                              : TAPE_FRAME_BYTES + 1000,
                       &made);
        archive_put(store, "archive", made.data, made.size_bytes);
    }
}

static void open_bundle(struct dcp_store *bundle, enum form form)
{
    struct dcp_store store;
    struct dcp_error err = { 0 };

    make(&store, form);
    assert_true(dcp_bundle_probe(&store, "archive"));
    if (dcp_store_bundle(bundle, &store, "archive", &err))
        fail_msg("form %d: %s", (int)form, err.message);
    assert_null(store.ops); /* it moved */
    assert_string_equal(bundle->root, "memory/archive");
}

/* The names, joined by blanks; folders with a '/'. */
static char *names_of(const struct dcp_store *bundle, const char *dir)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    struct dcp_store_entry *entries;
    size_t n;

    if (bundle->ops->list(bundle->self, dir, &entries, &n, NULL))
        return strdup("none");
    for (size_t i = 0; i < n; i++)
        dcp_buf_add_fmt(&text, "%s%s%s", i ? " " : "", entries[i].name,
                        entries[i].is_dir ? "/" : "");
    dcp_store_list_free(entries, n);
    return strdup(text.data ? (char *)text.data : "");
}

static void check_names(const struct dcp_store *bundle, const char *dir, const char *want)
{
    DCP_CLEANUP_FREE char *got = names_of(bundle, dir);

    assert_string_equal(got, want);
}

static int stat_code(const struct dcp_store *bundle, const char *name, bool *is_dir,
                     uint64_t *size)
{
    struct dcp_error err = { 0 };
    int rc = bundle->ops->stat(bundle->self, name, is_dir, size, &err);

    assert_int_equal(rc != 0, err.message[0] != '\0');
    return rc;
}

static void names(void **state)
{
    bool is_dir;
    uint64_t size;

    (void)state;
    for (enum form form = OURS; form < N_FORMS; form++) {
        struct dcp_store bundle;
        open_bundle(&bundle, form);
        check_names(&bundle, "", "a a-b b/ large larger z");
        check_names(&bundle, "b", "deep/ one two");
        check_names(&bundle, "b/deep", "three");
        check_names(&bundle, "a", "none");
        check_names(&bundle, "b/de", "none");
        for (size_t i = 0; i < N_FILES; i++) {
            assert_int_equal(stat_code(&bundle, files[i].name, &is_dir, &size), 0);
            assert_true(!is_dir && size == files[i].size_bytes);
        }
        assert_int_equal(stat_code(&bundle, "b/deep", &is_dir, &size), 0);
        assert_true(is_dir);
        assert_int_equal(stat_code(&bundle, "", &is_dir, &size), 0);
        assert_true(is_dir);
        assert_int_equal(stat_code(&bundle, "c", &is_dir, &size), DCP_E_NOT_FOUND);
        assert_int_equal(stat_code(&bundle, "top", &is_dir, &size), DCP_E_NOT_FOUND);
        dcp_store_free(&bundle);
    }
}

/* --- reading --- */

struct reader {
    const struct dcp_store *bundle;
    uint64_t seed;
    int n_reads, wrong;
};

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Parts of files, here and there. */
static void *read_parts(void *arg)
{
    struct reader *r = arg;
    const struct dcp_store *bundle = r->bundle;
    unsigned char *data = malloc(3u << 20);

    for (int i = 0; i < r->n_reads && data; i++) {
        const struct archive_file *file = &files[next(&r->seed) % N_FILES];
        struct dcp_store_file *handle;
        uint64_t at = next(&r->seed) % (file->size_bytes + 1);
        size_t n = next(&r->seed) % (i % 5 ? 2000 : 3u << 20);
        if (n > file->size_bytes - at)
            n = (size_t)(file->size_bytes - at);
        if (bundle->ops->open(bundle->self, file->name, &handle, NULL)) {
            r->wrong++;
            continue;
        }
        r->wrong += bundle->ops->read_at(bundle->self, handle, at, data, n, NULL) ||
                    !archive_is(file, at, data, n);
        bundle->ops->close(bundle->self, handle, NULL);
    }
    r->wrong += data == NULL;
    free(data);
    return NULL;
}

static void any_offset_on_any_thread(void **state)
{
    enum { N_THREADS = 4 };
    pthread_t threads[N_THREADS];
    struct reader readers[N_THREADS];

    (void)state;
    for (enum form form = OURS; form < N_FORMS; form++) {
        struct dcp_store bundle;
        open_bundle(&bundle, form);
        for (int t = 0; t < N_THREADS; t++) {
            readers[t] = (struct reader){ &bundle, (uint64_t)t + 7, 40, 0 };
            assert_int_equal(pthread_create(&threads[t], NULL, read_parts, &readers[t]),
                             0);
        }
        for (int t = 0; t < N_THREADS; t++) {
            pthread_join(threads[t], NULL);
            assert_int_equal(readers[t].wrong, 0);
        }
        dcp_store_free(&bundle);
    }
}

static void not_past_the_end(void **state)
{
    (void)state;
    for (enum form form = OURS; form < N_FORMS; form++) {
        struct dcp_store bundle;
        struct dcp_store_file *file;
        struct dcp_error err = { 0 };
        char out[8];
        open_bundle(&bundle, form);
        assert_int_equal(bundle.ops->open(bundle.self, "b/one", &file, NULL), 0);
        assert_int_equal(bundle.ops->read_at(bundle.self, file, 505, out, 6, NULL), 0);
        assert_int_equal(bundle.ops->read_at(bundle.self, file, 511, out, 0, NULL), 0);
        assert_int_equal(bundle.ops->read_at(bundle.self, file, 505, out, 7, &err),
                         DCP_E_CORRUPT);
        assert_non_null(strstr(err.message, "'b/one' in 'memory/archive' ends before"));
        assert_int_equal(bundle.ops->read_at(bundle.self, file, UINT64_MAX, out, 1, NULL),
                         DCP_E_CORRUPT);
        bundle.ops->close(bundle.self, file, NULL);
        dcp_store_free(&bundle);
    }
}

/* A cell of the disk fails for a moment: what was in the way of one read is not in that
 * of the next. */
static void a_failed_read_is_forgotten(void **state)
{
    (void)state;
    for (enum form form = OURS; form < N_FORMS; form++) {
        struct dcp_store store, flaky, bundle;
        struct fault fault = { 0 };
        struct reader reader = { &bundle, 3, 30, 0 };
        make(&store, form);
        assert_int_equal(fault_store(&flaky, &store, &fault, NULL), 0);
        assert_int_equal(dcp_store_bundle(&bundle, &flaky, "archive", NULL), 0);
        fault.kind = FAULT_FAIL;
        fault.at = fault.count + 2;
        read_parts(&reader);
        assert_int_equal(reader.wrong, 1);
        dcp_store_free(&bundle);
        dcp_store_free(&store);
    }
}

/* --- writing --- */

static void the_same_bytes_on_all_threads(void **state)
{
    struct dcp_store store;
    DCP_CLEANUP_BUF struct dcp_buf one = { 0 };

    (void)state;
    make(&store, OURS);
    archive_take(&store, "archive", &one);
    for (int threads = 2; threads <= 5; threads++) {
        DCP_CLEANUP_BUF struct dcp_buf more = { 0 };
        store.ops->remove(store.self, "archive", NULL);
        assert_int_equal(archive_pack(&store, files, N_FILES, threads, NULL), 0);
        archive_take(&store, "archive", &more);
        assert_int_equal(more.size_bytes, one.size_bytes);
        assert_memory_equal(more.data, one.data, one.size_bytes);
    }
    dcp_store_free(&store);
}

static void from_front_to_back_only(void **state)
{
    struct dcp_store store, bundle;
    struct dcp_store_file *file, *other;
    const struct dcp_store_ops *ops;
    struct dcp_error err = { 0 };
    char long_name[TAR_MAX_NAME + 1];
    uint64_t size;

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(dcp_store_bundle_new(&bundle, &store, "x", "top", 1, 0, NULL), 0);
    ops = bundle.ops;
    memset(long_name, 'n', TAR_MAX_NAME);
    long_name[TAR_MAX_NAME] = '\0';
    assert_int_equal(ops->create(bundle.self, long_name, 0, &file, NULL),
                     DCP_E_UNSUPPORTED);
    long_name[TAR_MAX_NAME - strlen("top/")] = '\0';
    assert_int_equal(ops->create(bundle.self, long_name, 0, &file, NULL), 0);
    assert_int_equal(ops->create(bundle.self, "b", 1, &other, NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->close(bundle.self, file, NULL), 0);
    assert_int_equal(ops->create(bundle.self, "../b", 1, &file, NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->create(bundle.self, "b", 10, &file, NULL), 0);
    assert_int_equal(ops->write_at(bundle.self, file, 1, "x", 1, &err),
                     DCP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "byte 0 comes next, not 1"));
    assert_int_equal(ops->write_at(bundle.self, file, 0, "123456", 6, NULL), 0);
    assert_int_equal(ops->write_at(bundle.self, file, 6, "12345", 5, NULL),
                     DCP_E_UNSUPPORTED);
    assert_int_equal(ops->sync(bundle.self, file, 6, NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->sync(bundle.self, file, 10, NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->close(bundle.self, file, NULL), 0);
    assert_int_equal(dcp_store_bundle_finish(&bundle, &size, &err), DCP_E_IO);
    dcp_store_free(&bundle);
    dcp_store_free(&store);
}

/* Whatever operation fails, the archive is not finished. */
static void failures_are_told(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++)
        for (uint64_t at = 1;; at += SLOWER) {
            struct dcp_store store, flaky;
            struct fault fault = { FAULT_FAIL, at, 0 };
            struct dcp_error err = { 0 };
            assert_int_equal(dcp_store_mem(&store, NULL), 0);
            assert_int_equal(fault_store(&flaky, &store, &fault, NULL), 0);
            int rc = archive_pack(&flaky, files, N_FILES, threads, &err);
            dcp_store_free(&flaky);
            dcp_store_free(&store);
            if (fault.count < at) {
                assert_int_equal(rc, 0);
                assert_true(at > 8);
                break;
            }
            assert_int_equal(rc, DCP_E_IO);
            assert_non_null(strstr(err.message, "injected fault"));
        }
}

static void what_an_archive_cannot_do(void **state)
{
    struct dcp_store bundle;
    struct dcp_store_file *file;
    struct dcp_error err = { 0 };
    const struct dcp_store_ops *ops;

    (void)state;
    open_bundle(&bundle, OURS);
    ops = bundle.ops;
    assert_int_equal(ops->create(bundle.self, "n", 1, &file, &err), DCP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "only read"));
    assert_int_equal(ops->make_dir(bundle.self, "n", NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->remove(bundle.self, "a", NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->publish(bundle.self, "a", "c", NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->replace(bundle.self, "a", "", 0, NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->sync_dir(bundle.self, "", NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->lock(bundle.self, NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(ops->open(bundle.self, "b", &file, NULL), DCP_E_IO);
    assert_int_equal(ops->open(bundle.self, "none", &file, NULL), DCP_E_NOT_FOUND);
    dcp_store_free(&bundle);
}

/* --- headers --- */

/* Whether libarchive reads from a header what it was made of. */
static void check_header(const char *name, bool is_dir, uint64_t size)
{
    unsigned char bytes[TAR_MAX_HEADER];
    size_t n = dcp_tar_header(bytes, name, is_dir, size);
    struct archive *archive = archive_read_new();
    struct archive_entry *entry;

    assert_int_equal(archive_read_support_format_tar(archive), ARCHIVE_OK);
    assert_int_equal(archive_read_open_memory(archive, bytes, n), ARCHIVE_OK);
    if (archive_read_next_header(archive, &entry) != ARCHIVE_OK)
        fail_msg("%s: %s", name, archive_error_string(archive));
    assert_true((uint64_t)archive_entry_size(entry) == size);
    assert_int_equal(archive_entry_filetype(entry), is_dir ? AE_IFDIR : AE_IFREG);
    assert_memory_equal(archive_entry_pathname(entry), name, strlen(name));
    assert_int_equal(archive_entry_mtime(entry), 0);
    assert_int_equal(archive_entry_perm(entry), is_dir ? 0755 : 0644);
    assert_true(archive_filter_bytes(archive, 0) == (la_int64_t)n);
    archive_read_free(archive);
}

static void headers(void **state)
{
    const uint64_t gib = (uint64_t)1 << 30;

    (void)state;
    check_header("folder", true, 0);
    check_header("a/b", false, 0);
    check_header("a", false, 12345);
    check_header("just-octal", false, 8 * gib - 1);
    check_header("beyond", false, 8 * gib);
    check_header("far", false, 9999 * gib);
    check_header("farther", false, 536870912 * gib);
    assert_int_equal(dcp_tar_padding(0), 0);
    assert_int_equal(dcp_tar_padding(1), 511);
    assert_int_equal(dcp_tar_padding(1024), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(any_offset_on_any_thread),
        cmocka_unit_test(not_past_the_end),
        cmocka_unit_test(a_failed_read_is_forgotten),
        cmocka_unit_test(the_same_bytes_on_all_threads),
        cmocka_unit_test(from_front_to_back_only),
        cmocka_unit_test(failures_are_told),
        cmocka_unit_test(what_an_archive_cannot_do),
        cmocka_unit_test(headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
