#include "fs.h"

#include "mem.h"
#include "str.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define LARGEST_READ (1u << 30) /* one call moves at most 2 GiB - 4 KiB on Linux */

/* False for what no file can hold. */
static bool fits_a_file(size_t size_bytes, uint64_t offset)
{
    uint64_t end;
    return dcp_add_u64(offset, size_bytes, &end) && end <= INT64_MAX;
}

int dcp_fs_read_at(int fd, void *out, size_t size_bytes, uint64_t offset)
{
    unsigned char *to = out;
    if (!fits_a_file(size_bytes, offset)) {
        errno = ENODATA;
        return -1;
    }
    while (size_bytes) {
        size_t want = size_bytes < LARGEST_READ ? size_bytes : LARGEST_READ;
        ssize_t n = pread(fd, to, want, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0) {
            errno = ENODATA;
            return -1;
        }
        to += n;
        offset += (uint64_t)n;
        size_bytes -= (size_t)n;
    }
    return 0;
}

int dcp_fs_write_at(int fd, const void *data, size_t size_bytes, uint64_t offset)
{
    const unsigned char *from = data;
    if (!fits_a_file(size_bytes, offset)) {
        errno = EFBIG;
        return -1;
    }
    while (size_bytes) {
        size_t want = size_bytes < LARGEST_READ ? size_bytes : LARGEST_READ;
        ssize_t n = pwrite(fd, from, want, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0) { /* no file system should; going on would not end */
            errno = EIO;
            return -1;
        }
        from += n;
        offset += (uint64_t)n;
        size_bytes -= (size_t)n;
    }
    return 0;
}

/* Reads until the end, whatever size the file claims to have: /proc files claim 0. */
static int read_all(int fd, const char *path, size_t max_bytes, void **out,
                    size_t *out_size_bytes, struct dcp_error *err)
{
    unsigned char *data = NULL;
    size_t cap = 0, size = 0;
    struct stat st;
    int rc = DCP_OK;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        return dcp_error_sys(err, DCP_E_IO, EISDIR, "cannot read '%s'", path);
    for (;;) {
        unsigned char *grown = dcp_mem_grow(data, &cap, size + 4096, 1);
        if (!grown) {
            rc = dcp_error_memory(err, path);
            break;
        }
        data = grown;
        ssize_t n = read(fd, data + size, cap - size - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot read '%s'", path);
            break;
        }
        size += (size_t)n;
        if (size > max_bytes) {
            rc = dcp_error_set(err, DCP_E_CORRUPT, "'%s' is longer than %zu bytes", path,
                               max_bytes);
            break;
        }
        if (n == 0) {
            data[size] = 0;
            *out = data;
            *out_size_bytes = size;
            return DCP_OK;
        }
    }
    free(data);
    return rc;
}

int dcp_fs_read_file(const char *path, size_t max_bytes, void **out,
                     size_t *out_size_bytes, struct dcp_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open '%s'", path);
    int rc = read_all(fd, path, max_bytes, out, out_size_bytes, err);
    close(fd);
    return rc;
}

/* fsync of the folder in which a path stands. */
static int sync_parent(const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL;
    DCP_CLEANUP_FREE char *name = NULL;
    if (!dcp_fs_split(path, &dir, &name))
        return dcp_error_memory(err, path);
    return dcp_fs_sync_dir(dir, err);
}

/* One folder; the name of a new one is made durable, or a step in it could be lost. */
static int make_dir(const char *path, struct dcp_error *err)
{
    if (mkdir(path, 0777) == 0)
        return sync_parent(path, err);
    int why = errno;
    if (dcp_fs_is_dir(path))
        return DCP_OK;
    return dcp_error_sys(err, DCP_E_IO, why == EEXIST ? ENOTDIR : why,
                         "cannot make folder '%s'", path);
}

/* "s3://bucket/run", also behind a folder that a caller made it relative to. */
static bool is_url(const char *path)
{
    const char *mark = strstr(path, "://"), *at = mark;

    while (at && at > path && (isalnum((unsigned char)at[-1]) || strchr("+.-", at[-1])))
        at--;
    return at && mark - at > 1 && isalpha((unsigned char)*at) &&
           (at == path || at[-1] == '/');
}

int dcp_fs_make_dirs(const char *path, struct dcp_error *err)
{
    if (is_url(path)) {
        dcp_error_set(err, DCP_E_USAGE, "'%s' is a URL, and no path", path);
        dcp_error_hint(err, "the storage is written to where it is mounted");
        return DCP_E_USAGE;
    }
    DCP_CLEANUP_FREE char *part = strdup(path);
    if (!part)
        return dcp_error_memory(err, path);
    if (!*path)
        return dcp_error_sys(err, DCP_E_IO, ENOENT, "cannot make folder ''");
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int rc = make_dir(part, err);
        *slash = '/';
        if (rc)
            return rc;
    }
    return make_dir(part, err);
}

/* Of the part of a path that is there: how long it is. */
static size_t present(char *path)
{
    size_t n = strlen(path);
    while (n && !dcp_fs_exists(path)) {
        while (n && path[n - 1] == '/')
            path[--n] = '\0';
        while (n && path[n - 1] != '/')
            path[--n] = '\0';
    }
    return n;
}

char *dcp_fs_nearest(const char *path)
{
    char *part = strdup(path);
    if (!part || present(part))
        return part;
    free(part);
    return strdup(".");
}

int dcp_fs_make_missing(const char *path, char **out_first, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *part = strdup(path);
    *out_first = NULL;
    if (!part)
        return dcp_error_memory(err, path);
    size_t n = present(part);
    if (!path[n])
        return DCP_OK;
    char *first = strndup(path, n + strcspn(path + n, "/"));
    int rc = first ? dcp_fs_make_dirs(path, err) : dcp_error_memory(err, path);
    if (rc && first)
        dcp_fs_remove_made(path, first);
    if (rc) {
        free(first);
        return rc;
    }
    *out_first = first;
    return DCP_OK;
}

void dcp_fs_remove_made(const char *path, const char *first)
{
    DCP_CLEANUP_FREE char *part = strdup(path);
    for (size_t n = part ? strlen(part) : 0, least = strlen(first); n >= least && n;) {
        part[n] = '\0';
        (void)rmdir(part); /* what is not there, or not empty, stays so */
        while (n && part[n - 1] != '/')
            n--;
        while (n && part[n - 1] == '/')
            n--;
    }
}

char *dcp_fs_real(const char *path)
{
    DCP_CLEANUP_FREE char *part = strdup(path);
    if (!part)
        return NULL;
    const char *rest = path + present(part);
    for (const char *c = rest; *c; c += strcspn(c, "/"), c += *c == '/')
        if (!strncmp(c, "..", 2) && (!c[2] || c[2] == '/')) {
            errno = ENOENT;
            return NULL;
        }
    DCP_CLEANUP_FREE char *real = realpath(*part ? part : ".", NULL);
    return !real || !*rest ? (real ? strdup(real) : NULL) : dcp_fs_join(real, rest);
}

int dcp_fs_sync_dir(const char *path, struct dcp_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open folder '%s'", path);
    int rc = DCP_OK;
    if (fsync(fd) != 0)
        rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot sync folder '%s'", path);
    close(fd);
    return rc;
}

static int remove_children(int fd, char stuck[DCP_FS_STUCK_CAP])
{
    char below[DCP_FS_STUCK_CAP];
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -1;
    }
    int why = 0; /* of the first that stays */
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            why = why ? why : errno;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (dcp_fs_remove_at(dirfd(dir), entry->d_name, below) == 0 || errno == ENOENT ||
            why) /* gone already: as wished */
            continue;
        why = errno;
        if (stuck)
            snprintf(stuck, DCP_FS_STUCK_CAP, "%.255s%s%.255s", entry->d_name,
                     *below ? "/" : "", below);
    }
    closedir(dir);
    errno = why;
    return why ? -1 : 0;
}

int dcp_fs_remove_at(int dir_fd, const char *name, char stuck[DCP_FS_STUCK_CAP])
{
    if (stuck)
        *stuck = '\0';
    if (unlinkat(dir_fd, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    int why = errno;
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        errno = errno == ENOTDIR ? why : errno; /* a file that may not be removed */
        return -1;
    }
    if (remove_children(fd, stuck) != 0)
        return -1;
    return unlinkat(dir_fd, name, AT_REMOVEDIR);
}

int dcp_fs_remove_all(const char *path, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *dir = NULL;
    DCP_CLEANUP_FREE char *name = NULL;
    if (!dcp_fs_split(path, &dir, &name))
        return dcp_error_memory(err, path);
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return dcp_error_set(err, DCP_E_USAGE, "will not remove '%s'", path);
    int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open folder '%s'", dir);
    int rc = DCP_OK;
    if (dcp_fs_remove_at(fd, name, NULL) != 0)
        rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot remove '%s'", path);
    close(fd);
    return rc;
}

/* For file systems without RENAME_NOREPLACE (NFS, some of FUSE). A hard link never
 * replaces. A folder can by rename(2) only take the place of an empty folder, and that
 * one is looked for before: nothing that holds data can be lost. */
static int rename_plainly(int from_dir_fd, const char *from, int to_dir_fd,
                          const char *to)
{
    struct stat st;
    if (fstatat(from_dir_fd, from, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return -1;
    if (!S_ISDIR(st.st_mode)) {
        if (linkat(from_dir_fd, from, to_dir_fd, to, 0) != 0)
            return -1;
        return unlinkat(from_dir_fd, from, 0);
    }
    if (fstatat(to_dir_fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return -1;
    }
    if (errno != ENOENT)
        return -1;
    return renameat(from_dir_fd, from, to_dir_fd, to);
}

int dcp_fs_rename_new(int from_dir_fd, const char *from, int to_dir_fd, const char *to)
{
    if (renameat2(from_dir_fd, from, to_dir_fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    return rename_plainly(from_dir_fd, from, to_dir_fd, to);
}

int dcp_fs_exchange(int dir_fd, const char *name, int other_dir_fd, const char *other)
{
    if (renameat2(dir_fd, name, other_dir_fd, other, RENAME_EXCHANGE) == 0)
        return 0;
    if (errno == EINVAL || errno == ENOSYS)
        errno = EOPNOTSUPP;
    return -1;
}

int dcp_fs_write_whole(int fd, const void *data, size_t size_bytes)
{
    const unsigned char *want = data;
    unsigned char there[4096];
    if (dcp_fs_write_at(fd, data, size_bytes, 0) != 0 || fsync(fd) != 0)
        return -1;
    for (size_t at = 0; at < size_bytes; at += sizeof there) {
        size_t left = size_bytes - at, n = left < sizeof there ? left : sizeof there;
        if (dcp_fs_read_at(fd, there, n, at) != 0)
            return -1;
        if (memcmp(there, want + at, n) != 0) {
            errno = EBADMSG;
            return -1;
        }
    }
    return 0;
}

int dcp_fs_not_written(const char *name, struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_CORRUPT,
                  "'%s' read back is not what was written; nothing was published",
                  DCP_SHOWN(name));
    dcp_error_hint(err, "memory, a driver or a disk of this machine corrupts data");
    return DCP_E_CORRUPT;
}

int dcp_fs_write_new(int dir_fd, const char *name, const void *data, size_t size_bytes)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(dir_fd, name, flags, 0666);
    if (fd < 0 && errno == EEXIST && unlinkat(dir_fd, name, 0) == 0)
        fd = openat(dir_fd, name, flags, 0666);
    if (fd < 0)
        return -1;
    int rc = dcp_fs_write_whole(fd, data, size_bytes);
    int why = errno;
    if (close(fd) != 0 && errno != EINTR && !rc) {
        rc = -1;
        why = errno;
    }
    if (rc)
        unlinkat(dir_fd, name, 0);
    errno = why;
    return rc;
}

char *dcp_fs_join(const char *dir, const char *name)
{
    size_t n = strlen(dir), m = strlen(name);
    if (n == 0 || m == 0)
        return strdup(n ? dir : name);
    bool slash = dir[n - 1] != '/';
    char *out = malloc(n + slash + m + 1);
    if (!out)
        return NULL;
    memcpy(out, dir, n);
    if (slash)
        out[n] = '/';
    memcpy(out + n + slash, name, m + 1);
    return out;
}

bool dcp_fs_split(const char *path, char **out_dir, char **out_name)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t name = end;
    while (name > 0 && path[name - 1] != '/')
        name--;
    size_t dir = name;
    while (dir > 1 && path[dir - 1] == '/')
        dir--;
    if (name == end) /* "/" itself, or "" */
        dir = 0;
    *out_dir = dir ? strndup(path, dir) : strdup(*path == '/' ? "/" : ".");
    *out_name = strndup(path + name, end - name);
    if (*out_dir && *out_name)
        return true;
    free(*out_dir);
    free(*out_name);
    *out_dir = *out_name = NULL;
    return false;
}

bool dcp_fs_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool dcp_fs_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

uint64_t dcp_fs_free_bytes(const char *path)
{
    struct statvfs vfs;
    uint64_t bytes;
    if (statvfs(path, &vfs) != 0 || !dcp_mul_u64(vfs.f_bavail, vfs.f_frsize, &bytes))
        return UINT64_MAX;
    return bytes;
}

uint64_t dcp_fs_hole_bytes(const char *path)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    off_t end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END), at = 0;
    uint64_t bytes = 0;

    while (at >= 0 && at < end && (at = lseek(fd, at, SEEK_HOLE)) >= 0 && at < end) {
        off_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO) /* none is behind it */
            data = end;
        bytes += data > at ? (uint64_t)(data - at) : 0;
        at = data;
    }
    if (fd >= 0)
        close(fd);
    return bytes;
}

size_t dcp_fs_max_open(void)
{
    struct rlimit limit;
    bool told = !getrlimit(RLIMIT_NOFILE, &limit);

    return told && limit.rlim_cur < SIZE_MAX ? (size_t)limit.rlim_cur : SIZE_MAX;
}
