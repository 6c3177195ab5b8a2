/* The folder of a POSIX file system: links, failing system calls, and leases of others.
 */
#include <dcp/store.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/mem.h"
#include "lib/store_forms.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* --- system calls that fail when told; these take the place of libc's --- */

static struct {
    int fdatasync, fsync, fallocate, renameat2, ftruncate; /* errno, 0: work */
    int fsync_skip;             /* calls that work before one fails */
    int pwrite_left;            /* calls that misbehave */
    const char *gone, *instead; /* a file that others take away before it is locked, and
                                 * what gets its name */
} faults;

#define EXPORT __attribute__((visibility("default")))

static int refuse(int why)
{
    errno = why;
    return -1;
}

EXPORT int fdatasync(int fd)
{
    return faults.fdatasync ? refuse(faults.fdatasync) : (int)syscall(SYS_fdatasync, fd);
}

EXPORT int fsync(int fd)
{
    if (faults.fsync && faults.fsync_skip-- <= 0)
        return refuse(faults.fsync);
    return (int)syscall(SYS_fsync, fd);
}

EXPORT int ftruncate(int fd, off_t size)
{
    return faults.ftruncate ? refuse(faults.ftruncate)
                            : (int)syscall(SYS_ftruncate, fd, size);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t size)
{
    return faults.fallocate ? refuse(faults.fallocate)
                            : (int)syscall(SYS_fallocate, fd, mode, offset, size);
}

EXPORT int renameat2(int from_fd, const char *from, int to_fd, const char *to,
                     unsigned flags)
{
    return faults.renameat2
               ? refuse(faults.renameat2)
               : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

EXPORT int flock(int fd, int how)
{
    if (faults.gone &&
        (faults.instead ? rename(faults.instead, faults.gone) : unlink(faults.gone)) == 0)
        faults.gone = NULL;
    return (int)syscall(SYS_flock, fd, how);
}

/* Interrupted now and then, and never more than three bytes. */
EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    if (faults.pwrite_left > 0 && faults.pwrite_left-- % 2)
        return refuse(EINTR);
    if (faults.pwrite_left > 0 && size > 3)
        size = 3;
    return syscall(SYS_pwrite64, fd, data, size, offset);
}

/* --- helpers --- */

static char folder[64];

static int open_store(void **state)
{
    (void)state;
    memset(&faults, 0, sizeof faults);
    snprintf(folder, sizeof folder, "/tmp/dcp-test-store-XXXXXX");
    if (!mkdtemp(folder) || chdir(folder))
        return -1;
    return dcp_store_dir(&store, "root", true, NULL);
}

static int close_store(void **state)
{
    (void)state;
    memset(&faults, 0, sizeof faults);
    dcp_store_free(&store);
    return chdir("/tmp") || dcp_fs_remove_all(folder, NULL);
}

/* --- tests --- */

static void opening(void **state)
{
    (void)state;
    struct dcp_store other;
    assert_int_equal(dcp_store_dir(&other, "absent", false, NULL), DCP_E_NOT_FOUND);
    assert_int_equal(dcp_store_dir(&other, "a/b/c", true, NULL), 0);
    assert_string_equal(other.root, "a/b/c");
    dcp_store_free(&other);
    assert_true(dcp_fs_is_dir("a/b/c"));
    assert_int_equal(put("f", ""), 0);
    assert_int_equal(dcp_store_dir(&other, "root/f", false, NULL), DCP_E_IO);
    assert_int_equal(dcp_store_dir(&other, "root/f", true, NULL), DCP_E_IO);
    dcp_store_free(&other);
}

/* Links into and out of the root are neither followed nor overwritten. */
static void links_are_refused(void **state)
{
    (void)state;
    struct dcp_store_file *file;
    assert_int_equal(mkdir("outside", 0700), 0);
    FILE *secret = fopen("outside/secret", "w");
    assert_non_null(secret);
    fputs("secret", secret);
    fclose(secret);
    assert_int_equal(symlink("../outside", "root/dir"), 0);
    assert_int_equal(symlink("../outside/secret", "root/file"), 0);
    assert_int_equal(symlink("../outside/new", "root/dangling"), 0);
    assert_int_equal(symlink("..", "root/up"), 0);
    static const char *const names[] = { "file", "dir/secret", "dangling",
                                         "up/outside/secret" };
    for (size_t i = 0; i < DCP_ARRAY_LEN(names); i++) {
        struct dcp_error err = { 0 };
        assert_int_equal(store.ops->open(store.self, names[i], &file, &err),
                         DCP_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "it is a link"));
        assert_int_equal(store.ops->reopen(store.self, names[i], &file, NULL),
                         DCP_E_UNSUPPORTED);
        assert_int_equal(stat_code(names[i]), DCP_E_UNSUPPORTED);
    }
    assert_int_equal(stat_code("dir"), DCP_E_UNSUPPORTED);
    assert_int_equal(store.ops->create(store.self, "dir/new", 0, &file, NULL),
                     DCP_E_UNSUPPORTED);
    assert_int_equal(store.ops->create(store.self, "dangling", 0, &file, NULL),
                     DCP_E_EXISTS);
    assert_int_equal(store.ops->make_dir(store.self, "up/new", NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(store.ops->remove(store.self, "dir/secret", NULL),
                     DCP_E_UNSUPPORTED);
    assert_int_equal(store.ops->sync_dir(store.self, "dir", NULL), DCP_E_UNSUPPORTED);
    struct dcp_store_entry *entries;
    size_t n;
    assert_int_equal(store.ops->list(store.self, "dir", &entries, &n, NULL),
                     DCP_E_UNSUPPORTED);
    assert_int_equal(put("mine", "x"), 0);
    assert_int_equal(store.ops->publish(store.self, "mine", "up/mine", NULL),
                     DCP_E_UNSUPPORTED);
    /* A link at the name itself is replaced or removed, not what it points to. */
    assert_int_equal(store.ops->replace(store.self, "file", "new", 3, NULL), 0);
    check_text("file", "new");
    assert_int_equal(store.ops->remove(store.self, "dir", NULL), 0);
    assert_false(dcp_fs_exists("outside/new"));
    void *text;
    assert_int_equal(dcp_fs_read_file("outside/secret", 100, &text, &n, NULL), 0);
    assert_string_equal(text, "secret");
    free(text);
    /* And the lock file is no way out. */
    assert_int_equal(symlink("../outside/secret", "root/.dcp-lock"), 0);
    assert_int_equal(store.ops->lock(store.self, NULL), DCP_E_IO);
}

/* With the switch on, links to regular files are read, and nothing else changes. */
static void links_are_followed_when_told(void **state)
{
    (void)state;
    struct dcp_store_file *file;
    struct dcp_error err = { 0 };
    uint64_t size;
    bool is_dir;
    struct dcp_store_entry *entries;
    size_t n;
    assert_int_equal(mkdir("blobs", 0700), 0);
    FILE *blob = fopen("blobs/b", "w");
    assert_non_null(blob);
    fputs("secret", blob);
    fclose(blob);
    assert_int_equal(mkfifo("blobs/pipe", 0600), 0);
    assert_int_equal(symlink("../blobs/b", "root/file"), 0);
    assert_int_equal(symlink("../blobs", "root/dir"), 0);
    assert_int_equal(symlink("../blobs/pipe", "root/pipe"), 0);
    assert_int_equal(symlink("../blobs/none", "root/dangling"), 0);
    dcp_store_dir_follow(&store, true);
    check_text("file", "secret");
    assert_int_equal(stat_code("file"), 0);
    assert_int_equal(stat_code("dir"), DCP_E_UNSUPPORTED);
    assert_int_equal(stat_code("dir/b"), DCP_E_UNSUPPORTED);
    assert_int_equal(stat_code("pipe"), DCP_E_UNSUPPORTED);
    assert_int_equal(store.ops->stat(store.self, "pipe", &is_dir, &size, &err),
                     DCP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a link, a socket or a device"));
    err = (struct dcp_error){ 0 };
    assert_int_equal(store.ops->stat(store.self, "dangling", &is_dir, &size, &err),
                     DCP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "it is a link that leads nowhere"));
    assert_int_equal(store.ops->open(store.self, "pipe", &file, NULL), DCP_E_UNSUPPORTED);
    assert_int_equal(store.ops->open(store.self, "dangling", &file, NULL),
                     DCP_E_NOT_FOUND);
    assert_int_equal(store.ops->list(store.self, "", &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(entries[i].size_bytes, strcmp(entries[i].name, "file") ? 0 : 6);
    dcp_store_list_free(entries, n);
    assert_int_equal(store.ops->create(store.self, "dangling", 0, &file, NULL),
                     DCP_E_EXISTS);
    assert_int_equal(store.ops->remove(store.self, "file", NULL), 0);
    assert_true(dcp_fs_exists("blobs/b"));
    dcp_store_dir_follow(&store, false);
    assert_int_equal(symlink("../blobs/b", "root/file"), 0);
    assert_int_equal(stat_code("file"), DCP_E_UNSUPPORTED);
}

static void special_files_are_refused(void **state)
{
    (void)state;
    struct dcp_store_file *file;
    assert_int_equal(mkfifo("root/pipe", 0600), 0);
    struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "root/socket" };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    static const char *const names[] = { "pipe", "socket" };
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(store.ops->open(store.self, names[i], &file, NULL),
                         DCP_E_UNSUPPORTED);
        assert_int_equal(stat_code(names[i]), DCP_E_UNSUPPORTED);
    }
    assert_int_equal(store.ops->make_dir(store.self, "d", NULL), 0);
    assert_int_equal(store.ops->open(store.self, "d", &file, NULL), DCP_E_IO);
}

/* fsync fails once and "succeeds" the second time: the file must stay lost. */
static void failed_sync_loses_the_file(void **state)
{
    (void)state;
    for (int resize = 0; resize < 2; resize++) {
        struct dcp_store_file *file;
        struct dcp_error err = { 0 };
        const char *name = resize ? "f" : "g";
        char c;
        assert_int_equal(store.ops->create(store.self, name, 4, &file, NULL), 0);
        assert_int_equal(store.ops->write_at(store.self, file, 0, "data", 4, NULL), 0);
        faults.fdatasync = faults.fsync = EIO;
        uint64_t size = resize ? 3 : 4;
        assert_int_equal(store.ops->sync(store.self, file, size, NULL), DCP_E_IO);
        faults.fdatasync = faults.fsync = 0;
        assert_int_equal(store.ops->sync(store.self, file, size, &err), DCP_E_IO);
        assert_non_null(strstr(err.message, "is lost"));
        assert_int_equal(store.ops->write_at(store.self, file, 0, "x", 1, NULL),
                         DCP_E_IO);
        assert_int_equal(store.ops->read_at(store.self, file, 0, &c, 1, NULL), DCP_E_IO);
        assert_int_equal(store.ops->close(store.self, file, NULL), DCP_E_IO);
    }
    faults.fdatasync = EIO;
    assert_int_equal(put("h", "data"), DCP_E_IO);
    assert_int_equal(stat_code("h"), DCP_E_NOT_FOUND); /* no half file is left */
}

static void unsynced_names_are_no_success(void **state)
{
    (void)state;
    assert_int_equal(put("f", "x"), 0);
    faults.fsync = EIO;
    assert_int_equal(store.ops->publish(store.self, "f", "g", NULL), DCP_E_IO);
    assert_int_equal(store.ops->sync_dir(store.self, "", NULL), DCP_E_IO);
    assert_int_equal(store.ops->replace(store.self, "r", "x", 1, NULL), DCP_E_IO);
    faults.fsync = 0;
    assert_int_equal(stat_code("r"), DCP_E_NOT_FOUND);
    assert_int_equal(stat_code(".r.tmp"), DCP_E_NOT_FOUND);

    assert_int_equal(store.ops->make_dir(store.self, "d", NULL), 0);
    faults.fsync = EIO;
    faults.fsync_skip = 1; /* the file, then not its folder */
    assert_int_equal(store.ops->replace(store.self, "r", "x", 1, NULL), DCP_E_IO);
    faults.fsync_skip = 1; /* the new folder, then not the old one */
    assert_int_equal(store.ops->publish(store.self, "g", "d/g", NULL), DCP_E_IO);
    faults.fsync_skip = 1; /* one folder is asked for once */
    assert_int_equal(store.ops->publish(store.self, "d/g", "d/h", NULL), 0);
    faults.fsync = 0;

    /* What a crash left of a replace goes away with the next. */
    assert_int_equal(put(".r.tmp", "half, and much longer"), 0);
    assert_int_equal(store.ops->replace(store.self, "r", "new", 3, NULL), 0);
    check_text("r", "new");
    assert_int_equal(stat_code(".r.tmp"), DCP_E_NOT_FOUND);
}

static void space_is_asked_for_first(void **state)
{
    (void)state;
    static const int full[] = { ENOSPC, EDQUOT };
    static const int unable[] = { EOPNOTSUPP, ENOSYS, EINVAL };
    struct dcp_store_file *file;
    for (size_t i = 0; i < DCP_ARRAY_LEN(full); i++) {
        struct dcp_error err = { 0 };
        faults.fallocate = full[i];
        assert_int_equal(store.ops->create(store.self, "f", 123456, &file, &err),
                         DCP_E_NO_SPACE);
        assert_non_null(strstr(err.message, "needs 121 KiB, "));
        assert_int_equal(stat_code("f"), DCP_E_NOT_FOUND);
    }
    for (size_t i = 0; i < DCP_ARRAY_LEN(unable); i++) {
        char name[] = { 'a', (char)('0' + i), '\0' };
        faults.fallocate = unable[i];
        assert_int_equal(put(name, "text"), 0);
        check_text(name, "text");
    }
    faults.fallocate = 0;
    assert_int_equal(store.ops->create(store.self, "f", UINT64_MAX, &file, NULL),
                     DCP_E_IO);
    assert_int_equal(store.ops->create(store.self, "f", 1 << 20, &file, NULL), 0);
    struct stat st;
    assert_int_equal(stat("root/f", &st), 0);
    assert_true(st.st_blocks >= 2048); /* reserved, not a hole */
    faults.ftruncate = EIO;
    assert_int_equal(store.ops->sync(store.self, file, 1, NULL), DCP_E_IO);
    assert_int_equal(store.ops->close(store.self, file, NULL), DCP_E_IO);
}

static void short_writes_go_on(void **state)
{
    (void)state;
    faults.pwrite_left = 50;
    assert_int_equal(put("f", "a text of more than three bytes"), 0);
    assert_int_equal(faults.pwrite_left < 40, 1);
    check_text("f", "a text of more than three bytes");
}

/* As on NFS. */
static void publishing_without_noreplace(void **state)
{
    (void)state;
    faults.renameat2 = EINVAL;
    assert_int_equal(store.ops->make_dir(store.self, "d", NULL), 0);
    assert_int_equal(put("d/f", "f"), 0);
    assert_int_equal(store.ops->make_dir(store.self, "e", NULL), 0);
    assert_int_equal(put("f", "1"), 0);
    assert_int_equal(put("g", "2"), 0);
    assert_int_equal(store.ops->publish(store.self, "d", "e", NULL), DCP_E_EXISTS);
    assert_int_equal(store.ops->publish(store.self, "d", "f", NULL), DCP_E_EXISTS);
    assert_int_equal(store.ops->publish(store.self, "f", "g", NULL), DCP_E_EXISTS);
    assert_int_equal(store.ops->publish(store.self, "f", "e", NULL), DCP_E_EXISTS);
    assert_int_equal(store.ops->publish(store.self, "x", "y", NULL), DCP_E_NOT_FOUND);
    check_text("f", "1");
    check_text("g", "2");
    check_text("d/f", "f");
    assert_int_equal(store.ops->publish(store.self, "d", "step", NULL), 0);
    check_text("step/f", "f");
    assert_int_equal(store.ops->publish(store.self, "f", "step/h", NULL), 0);
    check_text("step/h", "1");
    assert_int_equal(stat_code("f"), DCP_E_NOT_FOUND);
    faults.renameat2 = EXDEV;
    assert_int_equal(store.ops->publish(store.self, "g", "y", NULL), DCP_E_IO);
}

/* Another process holds the lease, and names itself; with its death it is free. */
static mode_t mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    return st.st_mode & 0777;
}

/* Everything has the modes that the umask says; the lease is readable to writers alone,
 * since who may read it could hold it. */
static void modes_follow_the_umask(void **state)
{
    static const struct {
        mode_t umask, file, dir, lease;
    } rows[] = {
        { 0022, 0644, 0755, 0600 },
        { 0002, 0664, 0775, 0660 },
        { 0077, 0600, 0700, 0600 },
        { 0000, 0666, 0777, 0666 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mode_t old = umask(rows[i].umask);
        int made = store.ops->make_dir(store.self, "m", NULL);
        int written = dcp_store_write_file(&store, "m/file", "x", 1, NULL);
        int replaced = store.ops->replace(store.self, "pointer", "x", 1, NULL);
        int locked = store.ops->lock(store.self, NULL);
        umask(old);
        assert_true(!made && !written && !replaced && !locked);
        store.ops->unlock(store.self);
        assert_int_equal(mode_of("root/m"), rows[i].dir);
        assert_int_equal(mode_of("root/m/file"), rows[i].file);
        assert_int_equal(mode_of("root/pointer"), rows[i].file);
        assert_int_equal(mode_of("root/.dcp-lock"), rows[i].lease);
        assert_int_equal(store.ops->remove(store.self, "m", NULL), 0);
        assert_int_equal(unlink("root/.dcp-lock"), 0);
    }
    /* One that was left readable is repaired by its owner. */
    int fd = open("root/.dcp-lock", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(store.ops->lock(store.self, NULL), 0);
    store.ops->unlock(store.self);
    assert_int_equal(mode_of("root/.dcp-lock"), 0600);
    assert_int_equal(unlink("root/.dcp-lock"), 0);
    assert_int_equal(mkfifo("root/.dcp-lock", 0600), 0);
    assert_int_equal(store.ops->lock(store.self, NULL), DCP_E_IO);
}

static void lease_of_another_process(void **state)
{
    (void)state;
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct dcp_store mine;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* the test may fail before it kills us */
        int rc = dcp_store_dir(&mine, "root", false, NULL);
        if (!rc)
            rc = mine.ops->lock(mine.self, NULL);
        c = rc ? 'n' : 'y';
        if (write(ready[1], &c, 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    struct dcp_error err = { 0 };
    char who[32];
    assert_int_equal(store.ops->lock(store.self, &err), DCP_E_BUSY);
    snprintf(who, sizeof who, "process %ld ", (long)child);
    assert_non_null(strstr(err.message, who));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(store.ops->lock(store.self, NULL), 0);
    void *text;
    size_t n;
    long pid = 0;
    assert_int_equal(dcp_store_read_file(&store, ".dcp-lock", 1000, &text, &n, NULL), 0);
    assert_int_equal(sscanf(text, "%*s %ld", &pid), 1);
    assert_int_equal(pid, getpid());
    assert_int_equal(((char *)text)[n - 1], '\n');
    free(text);
    store.ops->unlock(store.self);
    close(ready[0]);
    close(ready[1]);
}

/* A lock of what lost its name before it was locked keeps nobody away. */
static void what_is_held_has_its_name(void **state)
{
    (void)state;
    struct dcp_store_file *held;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(put("f", "old"), 0);
        assert_int_equal(put("g", "new"), 0);
        faults.gone = "root/f";
        faults.instead = i / 2 ? "root/g" : NULL;
        assert_int_equal(store.ops->hold(store.self, "f", i % 2, &held, NULL),
                         DCP_E_NOT_FOUND);
        assert_null(held);
        assert_null(faults.gone); /* it was as told */
        unlink("root/f");
        unlink("root/g");
    }
    assert_int_equal(put("f", ""), 0);
    assert_int_equal(store.ops->hold(store.self, "f", true, &held, NULL), 0);
    assert_int_equal(store.ops->close(store.self, held, NULL), 0);
}

static void *let_go(void *file)
{
    dcp_clock_sleep_us(20000);
    store.ops->close(store.self, file, NULL);
    return NULL;
}

/* Who asks whether the lease is taken has it for a moment: that refuses nobody. */
static void lease_that_is_looked_at(void **state)
{
    (void)state;
    struct dcp_store_file *held;
    pthread_t thread;
    assert_int_equal(store.ops->lock(store.self, NULL), 0);
    store.ops->unlock(store.self);
    for (int exclusive = 0; exclusive < 2; exclusive++) {
        assert_int_equal(store.ops->hold(store.self, ".dcp-lock", exclusive, &held, NULL),
                         0);
        assert_int_equal(pthread_create(&thread, NULL, let_go, held), 0);
        assert_int_equal(store.ops->lock(store.self, NULL), 0);
        store.ops->unlock(store.self);
        pthread_join(thread, NULL);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_store, close_store)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(opening),
        TEST(what_is_held_has_its_name),
        TEST(lease_that_is_looked_at),
        TEST(links_are_refused),
        TEST(links_are_followed_when_told),
        TEST(special_files_are_refused),
        TEST(failed_sync_loses_the_file),
        TEST(unsynced_names_are_no_success),
        TEST(space_is_asked_for_first),
        TEST(short_writes_go_on),
        TEST(publishing_without_noreplace),
        TEST(modes_follow_the_umask),
        TEST(lease_of_another_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
