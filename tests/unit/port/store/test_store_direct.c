/* Files that are read and written past the page cache: which parts of a range go there,
 * and what comes of it where a file system refuses. */
#include <dcp/dcp.h>

#include "base/fs.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cmocka.h>

#define ALIGN DCP_STORE_DIRECT_ALIGN
#define LARGE ((size_t)256 << 10)

/* -- the calls of libc, counted ------------------------------------------------------ */

static struct {
    size_t direct_bytes; /* that went past the cache */
    bool refuses;
} seen;

#define EXPORT __attribute__((visibility("default")))

static bool is_refused(int fd, size_t size)
{
    if (!(fcntl(fd, F_GETFL) & O_DIRECT))
        return false;
    seen.direct_bytes += seen.refuses ? 0 : size;
    errno = EINVAL;
    return seen.refuses;
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return is_refused(fd, size) ? -1 : syscall(SYS_pwrite64, fd, data, size, offset);
}

EXPORT ssize_t pread(int fd, void *out, size_t size, off_t offset)
{
    return is_refused(fd, size) ? -1 : syscall(SYS_pread64, fd, out, size, offset);
}

/* -- a store ------------------------------------------------------------------------- */

static char folder[64];
static struct dcp_store store;
static unsigned char *memory, *want; /* of a file, on a page */
enum { FILE_BYTES = 3 << 20 };

static int open_store(void **state)
{
    struct statfs fs;
    (void)state;
    memset(&seen, 0, sizeof seen);
    snprintf(folder, sizeof folder, "/var/tmp/dcp-test-direct-XXXXXX");
    if (!mkdtemp(folder) || statfs(folder, &fs) != 0)
        return -1;
    memory = dcp_mem_aligned(ALIGN, FILE_BYTES + ALIGN);
    want = calloc(1, FILE_BYTES);
    for (size_t i = 0; memory && i < FILE_BYTES + ALIGN; i++)
        memory[i] = (unsigned char)(i * 2654435761u >> 11);
    return memory && want ? dcp_store_dir(&store, folder, false, NULL) : -1;
}

static int close_store(void **state)
{
    (void)state;
    dcp_store_free(&store);
    free(memory);
    free(want);
    return dcp_fs_remove_all(folder, NULL);
}

static struct dcp_store_file *create(bool direct)
{
    struct dcp_store_file *file;
    struct statfs fs;

    assert_int_equal(store.ops->create(store.self, "f", FILE_BYTES, &file, NULL), 0);
    assert_int_equal(statfs(folder, &fs), 0);
    if (direct && fs.f_type == TMPFS_MAGIC) {
        assert_false(store.ops->direct(store.self, file));
        store.ops->close(store.self, file, NULL);
        skip();
    }
    if (direct)
        assert_true(store.ops->direct(store.self, file));
    return file;
}

static void write_part(struct dcp_store_file *file, size_t at, size_t n,
                       const unsigned char *from)
{
    memcpy(want + at, from, n);
    assert_int_equal(store.ops->write_at(store.self, file, at, from, n, NULL), 0);
}

/* All of the file, by this and by one that was opened anew. */
static void check(struct dcp_store_file *file)
{
    struct dcp_store_file *again;
    unsigned char *got = dcp_mem_aligned(ALIGN, FILE_BYTES);

    assert_non_null(got);
    assert_int_equal(store.ops->read_at(store.self, file, 0, got, FILE_BYTES, NULL), 0);
    assert_memory_equal(got, want, FILE_BYTES);
    assert_int_equal(store.ops->sync(store.self, file, FILE_BYTES, NULL), 0);
    assert_int_equal(store.ops->close(store.self, file, NULL), 0);
    assert_int_equal(store.ops->open(store.self, "f", &again, NULL), 0);
    memset(got, 0, FILE_BYTES);
    assert_int_equal(store.ops->read_at(store.self, again, 0, got, FILE_BYTES, NULL), 0);
    assert_memory_equal(got, want, FILE_BYTES);
    store.ops->close(store.self, again, NULL);
    free(got);
}

/* -- tests --------------------------------------------------------------------------- */

/* Neighbours that share a page, each with its memory as its place lies. */
static void ends_go_through_the_cache(void **state)
{
    const size_t cuts[] = {
        0, 100, 100 + LARGE + 8, ALIGN * 200 - 4, FILE_BYTES - 40, FILE_BYTES
    };
    struct dcp_store_file *file = create(true);
    size_t expected = 0;

    (void)state;
    for (size_t i = 0; i + 1 < DCP_ARRAY_LEN(cuts); i++) {
        size_t begin = cuts[i], end = cuts[i + 1];
        size_t first = (begin + ALIGN - 1) / ALIGN * ALIGN, last = end / ALIGN * ALIGN;
        write_part(file, begin, end - begin, memory + begin % ALIGN);
        expected += end - begin >= LARGE ? last - first : 0;
        assert_int_equal(seen.direct_bytes, expected);
    }
    assert_true(expected > FILE_BYTES / 2);
    check(file);
    assert_int_equal(seen.direct_bytes, expected + FILE_BYTES);
}

static void memory_out_of_step(void **state)
{
    struct dcp_store_file *file = create(true);

    (void)state;
    write_part(file, 0, FILE_BYTES, memory + 64);
    write_part(file, 8192, LARGE - 1, memory); /* is small */
    assert_int_equal(seen.direct_bytes, 0);
    check(file);
}

static void a_file_system_refuses(void **state)
{
    struct dcp_store_file *file = create(true);

    (void)state;
    seen.refuses = true;
    write_part(file, 0, FILE_BYTES, memory);
    check(file);
    assert_int_equal(seen.direct_bytes, 0);
}

static void nobody_asked(void **state)
{
    struct dcp_store_file *file = create(false);

    (void)state;
    write_part(file, 0, FILE_BYTES, memory);
    check(file);
    assert_int_equal(seen.direct_bytes, 0);
}

/* A store whose files wrap those of another one. */
static void over_a_store_of_deltas(void **state)
{
    struct dcp_store inner = store;

    (void)state;
    assert_int_equal(dcp_store_delta_dir(&store, folder, false, NULL), 0);
    struct dcp_store_file *file = create(true);
    write_part(file, 0, FILE_BYTES, memory);
    assert_int_equal(seen.direct_bytes, FILE_BYTES);
    check(file);
    dcp_store_free(&store);
    store = inner;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_store, close_store)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ends_go_through_the_cache), TEST(memory_out_of_step),
        TEST(a_file_system_refuses),     TEST(nobody_asked),
        TEST(over_a_store_of_deltas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
