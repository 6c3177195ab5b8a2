/* The calls that take the place of libc's: each is counted, may fail, is made, and is
 * written down when it succeeded. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define AS(name) __attribute__((visibility("default"), alias(#name)))

static int fail(int why)
{
    errno = why < 0 ? EIO : why;
    return -1;
}

/* --- names --- */

static int do_open(int dir_fd, const char *path, int flags, mode_t mode)
{
    struct shim_place place;

    if (!shim_name(dir_fd, path, &place))
        return (int)syscall(SYS_openat, dir_fd, path, flags, mode);
    int why = shim_strike(flags & O_CREAT ? SHIM_CREATE : SHIM_OPEN);
    if (why)
        return fail(why);
    shim_begin();
    int fd = (int)syscall(SYS_openat, dir_fd, path, flags, mode);
    struct stat st;
    if (fd >= 0 && flags & (O_CREAT | O_TRUNC) && !fstat(fd, &st)) {
        struct trace_record record = {
            .kind = TRACE_CREATE, .dir = place.dir, .ino = st.st_ino, .a = flags
        };
        if (flags & O_CREAT)
            shim_record(record, place.last, NULL, NULL);
        if (flags & O_TRUNC && place.ino)
            shim_record((struct trace_record){ .kind = TRACE_TRUNCATE, .ino = st.st_ino },
                        NULL, NULL, NULL);
    }
    shim_end();
    return fd;
}

#define MODE_OF(flags, args) \
    ((flags) & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(args, int) : 0)

SHIM_EXPORT int openat(int dir_fd, const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    mode_t mode = MODE_OF(flags, args);
    va_end(args);
    return do_open(dir_fd, path, flags, mode);
}
int openat64(int dir_fd, const char *path, int flags, ...) AS(openat);

SHIM_EXPORT int open(const char *path, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    mode_t mode = MODE_OF(flags, args);
    va_end(args);
    return do_open(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) AS(open);

SHIM_EXPORT int mkdirat(int dir_fd, const char *path, mode_t mode)
{
    struct shim_place place;

    if (!shim_name(dir_fd, path, &place))
        return (int)syscall(SYS_mkdirat, dir_fd, path, mode);
    int why = shim_strike(SHIM_MAKE_DIR);
    if (why)
        return fail(why);
    shim_begin();
    int rc = (int)syscall(SYS_mkdirat, dir_fd, path, mode);
    if (!rc && shim_name(dir_fd, path, &place))
        shim_record((struct trace_record){ .kind = TRACE_MAKE_DIR,
                                           .dir = place.dir,
                                           .ino = place.ino },
                    place.last, NULL, NULL);
    shim_end();
    return rc;
}

SHIM_EXPORT int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

SHIM_EXPORT int renameat2(int from_fd, const char *from, int to_fd, const char *to,
                          unsigned flags)
{
    struct shim_place a, b;

    if (!shim_name(from_fd, from, &a) || !shim_name(to_fd, to, &b))
        return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    int why = shim_strike(SHIM_RENAME);
    if (why == EINVAL && !flags) /* what a file system without the flags says */
        why = 0;
    if (why)
        return fail(why);
    shim_begin();
    int rc = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (!rc)
        shim_record((struct trace_record){ .kind = flags & RENAME_EXCHANGE
                                                       ? TRACE_EXCHANGE
                                                       : TRACE_RENAME,
                                           .dir = a.dir,
                                           .ino = a.ino,
                                           .dir2 = b.dir,
                                           .ino2 = b.ino },
                    a.last, b.last, NULL);
    shim_end();
    return rc;
}

SHIM_EXPORT int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

SHIM_EXPORT int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

SHIM_EXPORT int linkat(int from_fd, const char *from, int to_fd, const char *to,
                       int flags)
{
    struct shim_place a, b;

    if (!shim_name(from_fd, from, &a) || !shim_name(to_fd, to, &b))
        return (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    int why = shim_strike(SHIM_LINK);
    if (why)
        return fail(why);
    shim_begin();
    int rc = (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    if (!rc)
        shim_record(
            (struct trace_record){ .kind = TRACE_LINK, .ino = a.ino, .dir2 = b.dir },
            NULL, b.last, NULL);
    shim_end();
    return rc;
}

SHIM_EXPORT int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

SHIM_EXPORT int unlinkat(int dir_fd, const char *path, int flags)
{
    struct shim_place place;

    if (!shim_name(dir_fd, path, &place))
        return (int)syscall(SYS_unlinkat, dir_fd, path, flags);
    int why = shim_strike(SHIM_UNLINK);
    if (why)
        return fail(why);
    shim_begin();
    int rc = (int)syscall(SYS_unlinkat, dir_fd, path, flags);
    if (!rc)
        shim_record((struct trace_record){ .kind = TRACE_UNLINK,
                                           .dir = place.dir,
                                           .ino = place.ino },
                    place.last, NULL, NULL);
    shim_end();
    return rc;
}

SHIM_EXPORT int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

SHIM_EXPORT int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

SHIM_EXPORT int remove(const char *path)
{
    int rc = unlinkat(AT_FDCWD, path, 0);

    return rc && errno == EISDIR ? rmdir(path) : rc;
}

/* --- bytes --- */

SHIM_EXPORT ssize_t read(int fd, void *out, size_t size)
{
    uint64_t ino;
    int why = shim_file(fd, &ino) ? shim_strike(SHIM_READ) : 0;

    if (why == SHIM_SHORT)
        return syscall(SYS_read, fd, out, size > 1 ? size / 2 : size);
    return why ? fail(why) : syscall(SYS_read, fd, out, size);
}

SHIM_EXPORT ssize_t pread(int fd, void *out, size_t size, off_t offset)
{
    uint64_t ino;
    int why = shim_file(fd, &ino) ? shim_strike(SHIM_READ) : 0;

    if (why == SHIM_SHORT)
        return syscall(SYS_pread64, fd, out, size > 1 ? size / 2 : size, offset);
    return why ? fail(why) : syscall(SYS_pread64, fd, out, size, offset);
}
ssize_t pread64(int fd, void *out, size_t size, off_t offset) AS(pread);

static ssize_t write_some(int fd, const void *data, size_t size, off_t offset)
{
    return offset < 0 ? syscall(SYS_write, fd, data, size)
                      : syscall(SYS_pwrite64, fd, data, size, offset);
}

/* Writes with one bit in the middle that was not given. */
static ssize_t write_flipped(int fd, const void *data, size_t size, off_t offset)
{
    unsigned char *copy = malloc(size + 1);

    if (!copy)
        return fail(ENOMEM);
    memcpy(copy, data, size);
    copy[size / 2] ^= 0x08;
    ssize_t n = write_some(fd, copy, size, offset);
    free(copy);
    return n;
}

/* Offset -1: where the file stands. */
static ssize_t do_write(int fd, const void *data, size_t size, off_t offset)
{
    uint64_t ino;

    if (!shim_file(fd, &ino))
        return write_some(fd, data, size, offset);
    int why = shim_strike(SHIM_WRITE);
    if (why == SHIM_FLIP)
        return write_flipped(fd, data, size, offset);
    if (why && why != SHIM_SHORT)
        return fail(why);
    if (why == SHIM_SHORT && size > 1)
        size /= 2;
    shim_begin();
    ssize_t n = write_some(fd, data, size, offset);
    off_t at = offset < 0 ? (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - n : offset;
    if (n > 0)
        shim_record(
            (struct trace_record){
                .kind = TRACE_WRITE, .ino = ino, .a = at, .data_bytes = (uint64_t)n },
            NULL, NULL, data);
    shim_end();
    return n;
}

SHIM_EXPORT ssize_t write(int fd, const void *data, size_t size)
{
    return do_write(fd, data, size, -1);
}

SHIM_EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    if (offset < 0)
        return fail(EINVAL);
    return do_write(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) AS(pwrite);

/* The first part that is not empty; the caller goes on, as after any short write. */
SHIM_EXPORT ssize_t writev(int fd, const struct iovec *parts, int n)
{
    for (int i = 0; i < n; i++)
        if (parts[i].iov_len)
            return do_write(fd, parts[i].iov_base, parts[i].iov_len, -1);
    return 0;
}

SHIM_EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t offset)
{
    for (int i = 0; i < n; i++)
        if (parts[i].iov_len)
            return pwrite(fd, parts[i].iov_base, parts[i].iov_len, offset);
    return 0;
}
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off_t offset) AS(pwritev);

SHIM_EXPORT int ftruncate(int fd, off_t size)
{
    uint64_t ino;

    if (!shim_file(fd, &ino))
        return (int)syscall(SYS_ftruncate, fd, size);
    int why = shim_strike(SHIM_TRUNCATE);
    if (why)
        return fail(why);
    shim_begin();
    int rc = (int)syscall(SYS_ftruncate, fd, size);
    if (!rc)
        shim_record(
            (struct trace_record){ .kind = TRACE_TRUNCATE, .ino = ino, .a = size }, NULL,
            NULL, NULL);
    shim_end();
    return rc;
}
int ftruncate64(int fd, off_t size) AS(ftruncate);

SHIM_EXPORT int fallocate(int fd, int mode, off_t offset, off_t size)
{
    uint64_t ino;

    if (!shim_file(fd, &ino))
        return (int)syscall(SYS_fallocate, fd, mode, offset, size);
    int why = mode ? EOPNOTSUPP : shim_strike(SHIM_ALLOCATE);
    if (why)
        return fail(why);
    shim_begin();
    int rc = (int)syscall(SYS_fallocate, fd, mode, offset, size);
    if (!rc)
        shim_record((struct trace_record){ .kind = TRACE_ALLOCATE,
                                           .ino = ino,
                                           .a = offset + size },
                    NULL, NULL, NULL);
    shim_end();
    return rc;
}
int fallocate64(int fd, int mode, off_t offset, off_t size) AS(fallocate);

/* The bytes of a range of another file, in place of the blocks of it. */
static int copy_range(int fd, uint64_t ino, const struct file_clone_range *range)
{
    size_t size = (size_t)range->src_length;
    struct stat st;

    if (fstat((int)range->src_fd, &st))
        return fail(EBADF);
    if (!size)
        size = (size_t)st.st_size - (size_t)range->src_offset;
    char *data = malloc(size + 1);
    if (!data)
        return fail(ENOMEM);
    bool all = syscall(SYS_pread64, range->src_fd, data, size, range->src_offset) ==
                   (long)size &&
               syscall(SYS_pwrite64, fd, data, size, range->dest_offset) == (long)size;
    /* A file without a name is nothing that a crash could leave. */
    if (all && !fstat(fd, &st) && st.st_nlink)
        shim_record((struct trace_record){ .kind = TRACE_WRITE,
                                           .ino = ino,
                                           .a = (int64_t)range->dest_offset,
                                           .data_bytes = size },
                    NULL, NULL, data);
    free(data);
    return all ? 0 : fail(EIO);
}

SHIM_EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    uint64_t ino;

    va_start(args, request);
    void *arg = va_arg(args, void *);
    va_end(args);
    if (request != FICLONERANGE || !shim_file(fd, &ino))
        return (int)syscall(SYS_ioctl, fd, request, arg);
    int why = shim_strike(SHIM_CLONE);
    if (why)
        return fail(why);
    shim_begin();
    int rc = copy_range(fd, ino, arg);
    shim_end();
    return rc;
}

/* --- syncs --- */

/* Pages that were dirty are called clean, and are lost. */
static void lose(int fd)
{
    static const char zeros[64];

    syscall(SYS_pwrite64, fd, zeros, sizeof zeros, 0);
}

static int do_sync(int fd, bool only_data)
{
    long number = only_data ? SYS_fdatasync : SYS_fsync;
    uint64_t ino;
    struct stat st;

    if (!shim_file(fd, &ino) || fstat(fd, &st))
        return (int)syscall(number, fd);
    int why = shim_strike(S_ISDIR(st.st_mode) ? SHIM_SYNC_DIR : SHIM_SYNC);
    if (why) {
        if (S_ISREG(st.st_mode))
            lose(fd);
        return fail(why);
    }
    shim_begin();
    int rc = (int)syscall(number, fd);
    if (!rc)
        shim_record(
            (struct trace_record){ .kind = only_data ? TRACE_DATA_SYNC : TRACE_SYNC,
                                   .ino = ino },
            NULL, NULL, NULL);
    shim_end();
    return rc;
}

SHIM_EXPORT int fsync(int fd)
{
    return do_sync(fd, false);
}

SHIM_EXPORT int fdatasync(int fd)
{
    return do_sync(fd, true);
}

SHIM_EXPORT int syncfs(int fd)
{
    uint64_t ino;
    int rc = (int)syscall(SYS_syncfs, fd);

    if (!rc && shim_file(fd, &ino))
        shim_record((struct trace_record){ .kind = TRACE_FS_SYNC }, NULL, NULL, NULL);
    return rc;
}

/* A hint that promises nothing, and is not written down. */
SHIM_EXPORT int sync_file_range(int fd, off_t offset, off_t size, unsigned flags)
{
    return (int)syscall(SYS_sync_file_range, fd, offset, size, flags);
}
int sync_file_range64(int fd, off_t offset, off_t size, unsigned flags)
    AS(sync_file_range);

/* The descriptor is gone whatever is said, as on Linux. A close that fails is how network
 * file systems say that what was written is lost. */
SHIM_EXPORT int close(int fd)
{
    uint64_t ino;

    if (!shim_file(fd, &ino))
        return (int)syscall(SYS_close, fd);
    int flags = fcntl(fd, F_GETFL);
    bool writes = (flags & O_ACCMODE) != O_RDONLY;
    int why = shim_strike(writes ? SHIM_CLOSE : SHIM_CLOSE_READ);
    if (why && why != EINTR && writes && !(flags & O_APPEND))
        lose(fd);
    shim_begin();
    int rc = (int)syscall(SYS_close, fd);
    shim_record((struct trace_record){ .kind = TRACE_CLOSE, .ino = ino }, NULL, NULL,
                NULL);
    shim_end();
    return why ? fail(why) : rc;
}
