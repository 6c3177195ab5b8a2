/* Every system call of a reshard fails once, tears, or is the last: the target is absent
 * or complete (with force: the old one or the new one), the source is untouched, and the
 * next reshard needs no help. */
#include "base/clock.h"
#include "base/fs.h"
#include "lib/acts.h"
#include "lib/fault.h"
#include "lib/slower.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* --- system calls that fail when told; these take the place of libc's --- */

static struct {
    enum fault_kind kind;
    long at, count; /* atomic: the pool's threads call too */
} fault;

/* A file system that has reflinks, and blocks so small that the sample has some. */
enum { TINY_BLOCK = 64 };
static bool no_nameless; /* it has no files without a name */

#define EXPORT __attribute__((visibility("default")))

/* The next call: true when it is to fail. */
static bool strikes(void)
{
    if (fault.kind == FAULT_NONE)
        return false;
    long n = __atomic_add_fetch(&fault.count, 1, __ATOMIC_RELAXED);
    return fault.kind == FAULT_STOP ? n >= fault.at : n == fault.at;
}

static int refuse(void)
{
    errno = EIO;
    return -1;
}

EXPORT int openat(int dir_fd, const char *name, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    bool nameless = (flags & O_TMPFILE) == O_TMPFILE;
    mode_t mode = nameless || flags & O_CREAT ? (mode_t)va_arg(args, int) : 0;
    va_end(args);
    if (nameless && no_nameless) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return strikes() ? refuse() : (int)syscall(SYS_openat, dir_fd, name, flags, mode);
}

EXPORT ssize_t pread(int fd, void *out, size_t size, off_t offset)
{
    return strikes() ? refuse() : syscall(SYS_pread64, fd, out, size, offset);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    if (!strikes())
        return syscall(SYS_pwrite64, fd, data, size, offset);
    if (fault.kind == FAULT_TEAR && size > 1)
        syscall(SYS_pwrite64, fd, data, size / 2, offset);
    return refuse();
}

/* No power goes here: what a sync would do can be spared. */
EXPORT int fdatasync(int fd)
{
    (void)fd;
    return strikes() ? refuse() : 0;
}

EXPORT int fsync(int fd)
{
    (void)fd;
    return strikes() ? refuse() : 0;
}

EXPORT int ftruncate(int fd, off_t size)
{
    return strikes() ? refuse() : (int)syscall(SYS_ftruncate, fd, size);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t size)
{
    return strikes() ? refuse() : (int)syscall(SYS_fallocate, fd, mode, offset, size);
}

EXPORT int fstatvfs(int fd, struct statvfs *out)
{
    (void)fd;
    *out = (struct statvfs){ .f_frsize = TINY_BLOCK, .f_bavail = 1 << 24 };
    return 0;
}

/* Bytes are copied: only who counts blocks could tell. What is torn shares some. */
EXPORT int ioctl(int fd, unsigned long request, ...)
{
    char data[1 << 16];
    va_list args;

    va_start(args, request);
    const struct file_clone_range *range = va_arg(args, void *);
    va_end(args);
    if (request != FICLONERANGE)
        return (int)syscall(SYS_ioctl, fd, request, range);
    bool struck = strikes();
    size_t n = (size_t)range->src_length;
    assert_true(range->src_offset % TINY_BLOCK == 0 && n % TINY_BLOCK == 0 &&
                range->dest_offset % TINY_BLOCK == 0 && n <= sizeof data);
    if (struck)
        n = fault.kind == FAULT_TEAR ? n / 2 : 0;
    syscall(SYS_pread64, range->src_fd, data, n, range->src_offset);
    syscall(SYS_pwrite64, fd, data, n, range->dest_offset);
    return struck ? refuse() : 0;
}

EXPORT int mkdirat(int dir_fd, const char *name, mode_t mode)
{
    return strikes() ? refuse() : (int)syscall(SYS_mkdirat, dir_fd, name, mode);
}

EXPORT int renameat2(int from_fd, const char *from, int to_fd, const char *to,
                     unsigned flags)
{
    return strikes() ? refuse()
                     : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

EXPORT int unlinkat(int dir_fd, const char *name, int flags)
{
    return strikes() ? refuse() : (int)syscall(SYS_unlinkat, dir_fd, name, flags);
}

/* The descriptor is gone whatever is said, as on Linux. */
EXPORT int close(int fd)
{
    int rc = (int)syscall(SYS_close, fd);

    return strikes() ? refuse() : rc;
}

/* --- */

struct how {
    const char *format; /* NULL: native */
    bool force;
    int n_parts; /* 0: in one */
    bool reflink;
};

static long explored;       /* faults that were tried */
static bool whole_campaign; /* --long */

struct location {
    char folder[256], source[300], target[300];
    bool exchanges; /* the file system can exchange names */
};

static int setup(void **state)
{
    struct location *location = calloc(1, sizeof *location);
    struct dcp_store store;

    acts_folder(location->folder);
    snprintf(location->source, sizeof location->source, "%s/source", location->folder);
    snprintf(location->target, sizeof location->target, "%s/target", location->folder);
    assert_int_equal(dcp_store_dir(&store, location->source, true, NULL), 0);
    struct acts acts = {
        .store = &store, .layout = "zero3", .world_size = 2, .step = 1, .small = true
    };
    assert_int_equal(acts_save(&acts), 0);
    store.ops->make_dir(store.self, "a", NULL);
    store.ops->make_dir(store.self, "b", NULL);
    location->exchanges = store.ops->exchange(store.self, "a", "b", NULL) == 0;
    store.ops->remove(store.self, "a", NULL);
    store.ops->remove(store.self, "b", NULL);
    dcp_store_free(&store);
    *state = location;
    return 0;
}

static int teardown(void **state)
{
    struct location *location = *state;

    acts_folder_remove(location->folder);
    free(location);
    return 0;
}

/* Part 1 to n_parts; one behind them is the end; 0 is all in one. */
static int reshard_part(const struct location *location, const struct how *how,
                        int world_size, int part)
{
    struct dcp_reshard_options options = { .world_size = how->format ? 0 : world_size,
                                           .format = how->format,
                                           .dtype = -1,
                                           .only = DCP_ONLY_MODEL,
                                           .force = how->force,
                                           .reflink = how->reflink,
                                           .threads = 2 };
    bool ends = how->n_parts && part > how->n_parts;
    options.finish = ends;
    options.part = ends ? 0 : part;
    options.n_parts = ends ? 0 : how->n_parts;
    struct dcp_location source;
    struct dcp_reshard *job;
    struct dcp_error err = { 0 };

    int rc = dcp_location_open(location->source, &source, &err);
    if (!rc) {
        rc = dcp_reshard_plan(&source, location->target, &options, &job, &err);
        if (!rc) {
            rc = dcp_reshard_run(job, &err);
            bool whole = !rc && (!how->n_parts || (ends && !dcp_reshard_was_done(job)));
            assert_true(!how->reflink || !whole || dcp_reshard_shared(job) >= TINY_BLOCK);
            dcp_reshard_free(job);
        }
        dcp_location_close(&source);
    }
    assert_int_equal(rc != 0, err.message[0] != '\0');
    return rc;
}

static int reshard(const struct location *location, const struct how *how, int world_size)
{
    int rc = how->n_parts ? 0 : reshard_part(location, how, world_size, 0);

    for (int part = 1; how->n_parts && part <= how->n_parts + 1 && !rc; part++)
        rc = reshard_part(location, how, world_size, part);
    return rc;
}

/* The world size of a checkpoint every digest of which holds. */
static int check_whole(const char *path)
{
    struct dcp_location location;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    int rc = dcp_location_open(path, &location, &err);
    if (!rc)
        rc = dcp_verify(&location.source, NULL, NULL, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    assert_int_equal(dcp_location_index(&location, &catalog, NULL), 0);
    int world_size = catalog->world_size;
    dcp_catalog_free(catalog);
    dcp_location_close(&location);
    return world_size;
}

static int count_left(const struct location *location)
{
    struct dcp_store store;
    struct dcp_store_entry *entries;
    size_t n;
    int left = 0;

    assert_int_equal(dcp_store_dir(&store, location->folder, false, NULL), 0);
    assert_int_equal(store.ops->list(store.self, "", &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        left += entries[i].name[0] == '.' && strcmp(entries[i].name, ".dcp-lock") != 0;
    dcp_store_list_free(entries, n);
    dcp_store_free(&store);
    return left;
}

/* False when the reshard has fewer calls. */
static bool one_fault(const struct location *location, const struct how *how,
                      enum fault_kind kind, long at)
{
    struct how again = { how->format, true, how->n_parts, how->reflink };

    if (dcp_fs_exists(location->target))
        acts_folder_remove(location->target);
    if (how->force)
        assert_int_equal(reshard(location, how, 4), 0);
    fault.at = at;
    fault.count = 0;
    fault.kind = kind;
    explored++;
    int rc = reshard(location, how, 3);
    fault.kind = FAULT_NONE;
    bool struck = fault.count >= at;

    if (!how->force)
        assert_int_not_equal(rc, DCP_E_EXISTS); /* it does not */
    assert_int_equal(check_whole(location->source), 2);
    if (how->force)
        assert_true(dcp_fs_exists(location->target));
    if (dcp_fs_exists(location->target)) {
        int world_size = check_whole(location->target);
        if (!how->format)
            assert_true(world_size == 3 || (world_size == 4 && how->force && rc));
    } else {
        assert_int_not_equal(rc, 0);
    }
    assert_int_equal(reshard(location, &again, 3), 0);
    assert_true(how->format || check_whole(location->target) == 3);
    assert_int_equal(count_left(location), 0);
    return struck;
}

/* With --long every one, else every third but of a new folder's, every eleventh of those
 * in parts or with shared blocks, which do much alike. */
static void every_fault(const struct location *location, const struct how *how)
{
    bool all =
        whole_campaign || (!how->format && !how->force && !how->n_parts && !how->reflink);
    long sampled = how->n_parts || how->reflink ? 11 : 3;
    static const enum fault_kind kinds[] = { FAULT_TEAR, FAULT_STOP };

    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        /* Where names cannot be exchanged, a stop between two renames leaves none. */
        if (how->force && kinds[k] == FAULT_STOP && !location->exchanges)
            continue;
        long at = 1;
        while (one_fault(location, how, kinds[k], at))
            at += all ? SLOWER : sampled * SLOWER;
        assert_true(at > 40); /* the loop saw the whole reshard */
    }
}

static void a_new_folder(void **state)
{
    every_fault(*state, &(struct how){ NULL, false, 0, false });
}

static void a_folder_in_the_place_of_another(void **state)
{
    every_fault(*state, &(struct how){ NULL, true, 0, false });
}

static void a_new_file(void **state)
{
    every_fault(*state, &(struct how){ "torch", false, 0, false });
}

static void a_file_in_the_place_of_another(void **state)
{
    every_fault(*state, &(struct how){ "safetensors", true, 0, false });
}

static void a_new_archive(void **state)
{
    every_fault(*state, &(struct how){ "bundle", false, 0, false });
}

static void an_archive_in_the_place_of_another(void **state)
{
    every_fault(*state, &(struct how){ "bundle", true, 0, false });
}

static void a_new_folder_in_parts(void **state)
{
    every_fault(*state, &(struct how){ NULL, false, 2, false });
}

static void a_folder_in_parts_in_the_place_of_another(void **state)
{
    every_fault(*state, &(struct how){ NULL, true, 2, false });
}

static void a_new_folder_that_shares_blocks(void **state)
{
    every_fault(*state, &(struct how){ NULL, false, 0, true });
}

static void a_folder_in_parts_that_shares_blocks(void **state)
{
    no_nameless = true;
    every_fault(*state, &(struct how){ NULL, true, 2, true });
    no_nameless = false;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        whole_campaign |= !strcmp(argv[i], "--long");
    if (access("/dev/shm", W_OK) == 0) /* thousands of small files: a disk is slow */
        setenv("TMPDIR", "/dev/shm", 0);
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        EACH(a_new_folder),
        EACH(a_folder_in_the_place_of_another),
        EACH(a_new_file),
        EACH(a_file_in_the_place_of_another),
        EACH(a_new_archive),
        EACH(an_archive_in_the_place_of_another),
        EACH(a_new_folder_in_parts),
        EACH(a_folder_in_parts_in_the_place_of_another),
        EACH(a_new_folder_that_shares_blocks),
        EACH(a_folder_in_parts_that_shares_blocks),
    };
    double started = dcp_clock_s();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("explored=%ld violations=%d seconds=%.1f\n", explored, failed,
           dcp_clock_s() - started);
    return failed;
}
