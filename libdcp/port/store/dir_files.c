#include "base/mem.h"
#include "dir.h"

#include "base/fs.h"
#include "base/size.h"
#include "storage.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DIRECT_BYTES ((size_t)256 << 10) /* less is not worth it */
enum { NAMED_TRIES = 100 };

struct dcp_store_file {
    int fd;
    int direct; /* the same file past the page cache; -1: it is not used so */
    bool lost;  /* atomic: a write or sync failed, what is on disk is unknown */
    char name[];
};

static struct dcp_store_file *file_new(const char *name)
{
    size_t n = strlen(name) + 1;
    struct dcp_store_file *file = malloc(sizeof *file + n);
    if (file) {
        file->fd = file->direct = -1;
        file->lost = false;
        memcpy(file->name, name, n);
    }
    return file;
}

static int open_as(const struct dcp_dir *dir, const char *name, int flags, bool folders,
                   struct dcp_store_file **out, struct dcp_error *err)
{
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    *out = NULL;
    if (dcp_dir_entry_init(dir, name, &entry) != 0)
        return dcp_dir_fail(dir, errno, "open", name, err);
    struct dcp_store_file *file = file_new(name);
    if (!file)
        return dcp_error_memory(err, name);
    /* Not blocking, because a pipe would wait for its writer. */
    file->fd = openat(entry.dir_fd, entry.last, flags | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    int why = file->fd < 0 || fstat(file->fd, &st) != 0 ? errno : 0;
    if (!why && !S_ISREG(st.st_mode) && !(folders && S_ISDIR(st.st_mode)))
        why = S_ISDIR(st.st_mode) ? EISDIR : ENXIO;
    if (why) {
        if (file->fd >= 0)
            close(file->fd);
        free(file);
        return dcp_dir_fail(dir, why, "open", name, err);
    }
    *out = file;
    return DCP_OK;
}

int dcp_dir_open(void *self, const char *name, struct dcp_store_file **out,
                 struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    return open_as(dir, name, O_RDONLY | (dir->follow ? 0 : O_NOFOLLOW), false, out, err);
}

int dcp_dir_reopen(void *self, const char *name, struct dcp_store_file **out,
                   struct dcp_error *err)
{
    return open_as(self, name, O_RDWR | O_NOFOLLOW, false, out, err);
}

/* Whether the name still stands for what was opened; 0 or an errno. ENOENT: it does not,
 * whatever took its place. */
static int look_again(const struct dcp_dir *dir, const char *name, int fd)
{
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    struct stat st, now;
    if (dcp_dir_entry_init(dir, name, &entry) != 0 || fstat(fd, &st) != 0 ||
        fstatat(entry.dir_fd, entry.last, &now, AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    return st.st_ino == now.st_ino && st.st_dev == now.st_dev ? 0 : ENOENT;
}

/* A lock of what was removed between being opened and being locked keeps nobody away, so
 * the name is looked at again. NFS makes an exclusive lock of a file that is open for
 * writing only; elsewhere, and for folders, reading is enough. */
int dcp_dir_hold(void *self, const char *name, bool exclusive,
                 struct dcp_store_file **out, struct dcp_error *err)
{
    int rc = exclusive ? open_as(self, name, O_RDWR | O_NOFOLLOW, false, out, NULL) : -1;
    if (rc)
        rc = open_as(self, name, O_RDONLY | O_NOFOLLOW, true, out, err);
    if (rc)
        return rc;
    int why = flock((*out)->fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) ? errno : 0;
    bool no_lock = why;
    if (!why)
        why = look_again(self, name, (*out)->fd);
    if (!why)
        return DCP_OK;
    close((*out)->fd);
    free(*out);
    *out = NULL;
    if (!no_lock)
        return dcp_dir_fail(self, why, "hold", name, err);
    if (why == EWOULDBLOCK)
        return dcp_error_set(err, DCP_E_BUSY, "'%s' is being read", name);
    bool no_locks = why == ENOSYS || why == EOPNOTSUPP || why == ENOLCK;
    return dcp_error_sys(err, no_locks ? DCP_E_UNSUPPORTED : DCP_E_IO, why,
                         "cannot lock '%s'", name);
}

uint64_t dcp_dir_free_bytes(void *self)
{
    const struct dcp_dir *dir = self;
    struct statvfs vfs;
    uint64_t bytes;
    if (fstatvfs(dir->fd, &vfs) != 0 || !dcp_mul_u64(vfs.f_bavail, vfs.f_frsize, &bytes))
        return UINT64_MAX;
    return bytes;
}

/* Reserves the blocks of a file; 0 or an errno. File systems that cannot do it find out
 * while writing, and so does one in memory: there it takes a third of the time of writing
 * the file. */
static int reserve(int fd, uint64_t size_bytes)
{
    if (size_bytes > INT64_MAX)
        return EFBIG;
    if (dcp_storage_at(fd).in_memory)
        return 0;
    int rc = 0;
    do
        rc = size_bytes ? fallocate(fd, 0, 0, (off_t)size_bytes) : 0;
    while (rc != 0 && errno == EINTR);
    bool unable = rc && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL);
    return rc && !unable ? errno : 0;
}

int dcp_dir_create(void *self, const char *name, uint64_t size_bytes,
                   struct dcp_store_file **out, struct dcp_error *err)
{
    struct dcp_dir *dir = self;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    char need[DCP_SIZE_CAP], room[DCP_SIZE_CAP];
    *out = NULL;
    if (dcp_dir_entry_init(dir, name, &entry) != 0)
        return dcp_dir_fail(dir, errno, "create", name, err);
    struct dcp_store_file *file = file_new(name);
    if (!file)
        return dcp_error_memory(err, name);
    file->fd = openat(entry.dir_fd, entry.last,
                      O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    int why = file->fd < 0 ? errno : reserve(file->fd, size_bytes);
    if (!why) {
        *out = file;
        return DCP_OK;
    }
    if (file->fd >= 0) {
        close(file->fd);
        unlinkat(entry.dir_fd, entry.last, 0);
    }
    free(file);
    if (why == ENOSPC || why == EDQUOT)
        return dcp_error_set(err, DCP_E_NO_SPACE, "'%s/%s' needs %s, %s are free",
                             dir->root, name, dcp_size_format(need, size_bytes),
                             dcp_size_format(room, dcp_dir_free_bytes(self)));
    return dcp_dir_fail(dir, why, "create", name, err);
}

static int check_lost(const struct dcp_dir *dir, const struct dcp_store_file *file,
                      struct dcp_error *err)
{
    if (!__atomic_load_n(&file->lost, __ATOMIC_ACQUIRE))
        return DCP_OK;
    return dcp_error_set(err, DCP_E_IO,
                         "'%s/%s' is lost: an earlier write or sync failed", dir->root,
                         file->name);
}

/* After a failed write-back the kernel may call pages clean that never reached the disk,
 * so a second try could succeed falsely: the file is given up. */
static int lose(const struct dcp_dir *dir, struct dcp_store_file *file, const char *act,
                struct dcp_error *err)
{
    int why = errno;
    __atomic_store_n(&file->lost, true, __ATOMIC_RELEASE);
    return dcp_dir_fail(dir, why, act, file->name, err);
}

/* -- reading and writing ---------------------------------------------------------- */

bool dcp_dir_direct(void *self, struct dcp_store_file *file)
{
    const struct dcp_dir *dir = self;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    if (dcp_dir_entry_init(dir, file->name, &entry) != 0)
        return false;
    if (file->direct < 0 && !dcp_storage_at(file->fd).in_memory)
        file->direct =
            openat(entry.dir_fd, entry.last, O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    return file->direct >= 0;
}

int dcp_dir_descriptor(void *self, struct dcp_store_file *file)
{
    (void)self;
    return file->fd;
}

/* The middle of a range, which can go past the page cache: where it begins, and its
 * bytes; 0: all goes through it. What lies at its ends shares pages with neighbours. */
static size_t direct_part(const struct dcp_store_file *file, uint64_t offset,
                          const void *data, size_t size_bytes, size_t *out_begin)
{
    bool fits = ((uintptr_t)data ^ offset) % DCP_STORE_DIRECT_ALIGN == 0;
    size_t begin = (size_t)(-offset % DCP_STORE_DIRECT_ALIGN);
    *out_begin = 0;
    if (file->direct < 0 || !fits || size_bytes < DIRECT_BYTES)
        return 0;
    *out_begin = begin;
    return (size_bytes - begin) / DCP_STORE_DIRECT_ALIGN * DCP_STORE_DIRECT_ALIGN;
}

/* Reads to `to`, or writes what is at `from`; 0, or -1 with errno. */
static int transfer_part(const struct dcp_store_file *file, bool direct, uint64_t offset,
                         char *to, const char *from, size_t n)
{
    int fd = direct ? file->direct : file->fd;
    int rc =
        to ? dcp_fs_read_at(fd, to, n, offset) : dcp_fs_write_at(fd, from, n, offset);
    /* A file system may open a file so and refuse afterwards: its blocks are larger. */
    return rc && direct && errno == EINVAL
               ? transfer_part(file, false, offset, to, from, n)
               : rc;
}

static int transfer(const struct dcp_store_file *file, uint64_t offset, char *to,
                    const char *from, size_t size_bytes)
{
    size_t begin, n = direct_part(file, offset, to ? to : from, size_bytes, &begin);
    const size_t at[] = { 0, begin, begin + n, size_bytes };
    int rc = 0;
    for (int i = 0; i < 3 && !rc; i++)
        rc = transfer_part(file, i == 1, offset + at[i], to ? to + at[i] : NULL,
                           to ? NULL : from + at[i], at[i + 1] - at[i]);
    return rc;
}

int dcp_dir_read_at(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                    size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    int rc = check_lost(dir, file, err);
    if (rc || transfer(file, offset, out, NULL, size_bytes) == 0)
        return rc;
    if (errno == ENODATA)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s/%s' ends before byte %" PRIu64 ", where %zu bytes"
                             " at %" PRIu64 " were to be read",
                             dir->root, file->name, offset + size_bytes, size_bytes,
                             offset);
    return dcp_dir_fail(dir, errno, "read", file->name, err);
}

int dcp_dir_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                     const void *data, size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    int rc = check_lost(dir, file, err);
    if (rc || transfer(file, offset, NULL, data, size_bytes) == 0)
        return rc;
    return lose(dir, file, "write", err);
}

void dcp_dir_flush_hint(void *self, struct dcp_store_file *file, uint64_t offset,
                        uint64_t size_bytes)
{
    (void)self;
    sync_file_range(file->fd, (off_t)offset, (off_t)size_bytes, SYNC_FILE_RANGE_WRITE);
}

/* -- blocks that two files share ---------------------------------------------------- */

/* 0, or -1 with errno. size_bytes 0: up to the end of `from`. */
static int clone_range(int to, uint64_t offset, int from, uint64_t from_offset,
                       uint64_t size_bytes)
{
    const struct file_clone_range range = { .src_fd = from,
                                            .src_offset = from_offset,
                                            .src_length = size_bytes,
                                            .dest_offset = offset };
    int rc;
    do
        rc = ioctl(to, FICLONERANGE, &range);
    while (rc != 0 && errno == EINTR);
    return rc;
}

/* A file without a name. Where the file system has none (NFS), one whose name goes at
 * once; others may try at the same time, and one may have died before that. */
static int open_nameless(const struct dcp_dir *dir)
{
    static const char name[] = ".dcp-clone.tmp";
    int fd = openat(dir->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    bool named = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR);
    for (int i = 0; named && i < NAMED_TRIES; i++) {
        unlinkat(dir->fd, name, 0);
        fd = openat(dir->fd, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC,
                    0600);
        named = fd < 0 && errno == EEXIST;
        if (fd >= 0)
            unlinkat(dir->fd, name, 0);
    }
    return fd;
}

/* The block of the file system: st_blksize is what it likes to be read by. */
static uint64_t block_bytes_of(const struct dcp_dir *dir)
{
    struct statvfs vfs;
    return fstatvfs(dir->fd, &vfs) == 0 && vfs.f_frsize ? vfs.f_frsize : 4096;
}

static int cannot_clone(const struct dcp_dir *dir, int why, struct dcp_error *err)
{
    if (why == EXDEV) {
        dcp_error_set(
            err, DCP_E_UNSUPPORTED,
            "nothing can be shared in '%s': the source is on another file system",
            dir->root);
        dcp_error_hint(err, "leave out --reflink, or choose a folder beside the source");
        return DCP_E_UNSUPPORTED;
    }
    bool unable = why == EOPNOTSUPP || why == ENOTTY || why == ENOSYS || why == EINVAL;
    if (!unable)
        return dcp_dir_fail(dir, why, "share blocks in", "", err);
    dcp_error_set(err, DCP_E_UNSUPPORTED,
                  "nothing can be shared in '%s': its file system has no reflinks",
                  dir->root);
    dcp_error_hint(err,
                   "leave out --reflink; Btrfs has them, and XFS made with reflink=1");
    return DCP_E_UNSUPPORTED;
}

int dcp_dir_try_clone(void *self, int from, uint64_t *out_block_bytes,
                      struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    uint64_t block = block_bytes_of(dir);
    struct stat st;
    int why = 0, fd = open_nameless(dir);
    *out_block_bytes = block;
    if (fd < 0 || fstat(from, &st) != 0 ||
        clone_range(fd, 0, from, 0, (uint64_t)st.st_size > block ? block : 0) != 0)
        why = errno;
    if (fd >= 0)
        close(fd);
    return why ? cannot_clone(dir, why, err) : DCP_OK;
}

int dcp_dir_clone(void *self, struct dcp_store_file *file, uint64_t offset, int from,
                  uint64_t from_offset, uint64_t size_bytes, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    DCP_TRY(check_lost(dir, file, err));
    if (!size_bytes || clone_range(file->fd, offset, from, from_offset, size_bytes) == 0)
        return DCP_OK;
    return lose(dir, file, "share blocks in", err);
}

/* -- the end ------------------------------------------------------------------------ */

int dcp_dir_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                 struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    struct stat st;
    DCP_TRY(check_lost(dir, file, err));
    if (fstat(file->fd, &st) != 0)
        return lose(dir, file, "sync", err);
    bool resize = (uint64_t)st.st_size != size_bytes;
    if (resize && ftruncate(file->fd, (off_t)size_bytes) != 0)
        return lose(dir, file, "cut", err);
    if ((resize ? fsync(file->fd) : fdatasync(file->fd)) != 0)
        return lose(dir, file, "sync", err);
    return DCP_OK;
}

int dcp_dir_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    int rc = check_lost(dir, file, err);
    if (file->direct >= 0)
        close(file->direct);
    /* Linux closes the descriptor whatever it says, also when interrupted. */
    if (close(file->fd) != 0 && errno != EINTR)
        rc = dcp_dir_fail(dir, errno, "close", file->name, err);
    free(file);
    return rc;
}

void dcp_dir_drop_cache(void *self, struct dcp_store_file *file)
{
    (void)self;
    posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
}
