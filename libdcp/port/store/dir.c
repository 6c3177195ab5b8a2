/* A folder of a POSIX file system.
 *
 * Every name is walked part by part from the root's file descriptor, no part may be a
 * symbolic link, and names hold no "..", so nothing outside the root can be reached
 * whatever others do to the folders meanwhile. One switch, dcp_store_dir_follow, lets the
 * last part be a link to a regular file, where a name is only looked at or read. */
#include "dir.h"

#include "base/fs.h"
#include "base/str.h"
#include "lease.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int dcp_dir_fail(const struct dcp_dir *dir, int why, const char *act, const char *name,
                 struct dcp_error *err)
{
    const char *slash = *name ? "/" : "";
    if (why == ELOOP || why == ENXIO)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "cannot %s '%s%s%s': it is a link, a socket or a device",
                             act, dir->root, slash, name);
    if (why == ENOLINK)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "cannot %s '%s%s%s': it is a link that leads nowhere", act,
                             dir->root, slash, name);
    return dcp_error_sys(err, why == EEXIST ? DCP_E_EXISTS : DCP_E_IO, why,
                         "cannot %s '%s%s%s'", act, dir->root, slash, name);
}

/* The next folder of a path. A link is told from a file: ELOOP, ENOENT. */
static int step_into(int fd, const char *part)
{
    int next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (next < 0 && errno == ENOTDIR && fstatat(fd, part, &st, AT_SYMLINK_NOFOLLOW) == 0)
        errno = S_ISLNK(st.st_mode) ? ELOOP : S_ISREG(st.st_mode) ? ENOENT : ENOTDIR;
    return next;
}

/* Opens the folder of the first n bytes of a name, of none the root; -1 with errno. */
static int open_folder(const struct dcp_dir *dir, const char *name, size_t n)
{
    int fd = n ? dir->fd : step_into(dir->fd, ".");
    while (fd >= 0 && n) {
        size_t length = strcspn(name, "/");
        if (length > n)
            length = n;
        char *part = strndup(name, length);
        int next = part ? step_into(fd, part) : -1;
        int why = part ? errno : ENOMEM;
        free(part);
        if (fd != dir->fd)
            close(fd);
        errno = why;
        fd = next;
        length += length < n; /* the '/' */
        name += length;
        n -= length;
    }
    return fd;
}

/* Finds a name's folder; 0, or -1 with errno. Released with place_fini. */
int dcp_dir_entry_init(const struct dcp_dir *dir, const char *name,
                       struct dcp_dir_entry *out)
{
    *out = (struct dcp_dir_entry){ .dir_fd = -1 };
    if (!dcp_store_name_ok(name)) {
        errno = EINVAL;
        return -1;
    }
    const char *slash = strrchr(name, '/');
    out->last = slash ? slash + 1 : name;
    out->is_root = !slash;
    out->dir_fd = slash ? open_folder(dir, name, (size_t)(slash - name)) : dir->fd;
    return out->dir_fd < 0 ? -1 : 0;
}

/* errno stays: it says why what was done in the folder failed. */
void dcp_dir_entry_fini(struct dcp_dir_entry *entry)
{
    int why = errno;
    if (entry->dir_fd >= 0 && !entry->is_root)
        close(entry->dir_fd);
    errno = why;
}

/* What a name in an open folder is; with `follow` a link to a regular file is that file,
 * any other link stays one, *out_leads: to something. */
static int look(int fd, const char *name, bool follow, struct stat *out, bool *out_leads)
{
    struct stat behind;
    int rc = fstatat(fd, name, out, AT_SYMLINK_NOFOLLOW);
    bool is_link = !rc && follow && S_ISLNK(out->st_mode);
    *out_leads = !is_link || fstatat(fd, name, &behind, 0) == 0;
    if (is_link && *out_leads && S_ISREG(behind.st_mode))
        *out = behind;
    return rc;
}

/* --- listing --- */

static int by_name(const void *a, const void *b)
{
    const struct dcp_store_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Adds an entry unless it went away meanwhile; 0, or -1 with errno. */
static int add_entry(int fd, const char *name, bool follow,
                     struct dcp_store_entry **entries, size_t *n, size_t *cap)
{
    struct stat st;
    bool leads;
    if (look(fd, name, follow, &st, &leads) != 0)
        return errno == ENOENT ? 0 : -1;
    struct dcp_store_entry *grown = dcp_mem_grow(*entries, cap, *n + 1, sizeof **entries);
    if (!grown)
        return -1;
    *entries = grown;
    char *copy = strdup(name);
    if (!copy)
        return -1;
    grown[(*n)++] = (struct dcp_store_entry){
        .name = copy,
        .is_dir = S_ISDIR(st.st_mode),
        .size_bytes = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0,
    };
    return 0;
}

static int dir_list(void *self, const char *name, struct dcp_store_entry **out,
                    size_t *out_n, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    *out = NULL;
    *out_n = 0;
    if (*name && !dcp_store_name_ok(name))
        return dcp_dir_fail(dir, EINVAL, "list", name, err);
    int fd = open_folder(dir, name, strlen(name));
    DIR *stream = NULL;
    if (fd >= 0)
        stream = fdopendir(fd);
    if (!stream) {
        int rc = dcp_dir_fail(dir, errno, "list", name, err);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    struct dcp_store_entry *entries = NULL;
    size_t n = 0, cap = 0;
    int why = 0;
    while (!why) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (!entry) {
            why = errno;
            break;
        }
        bool dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!dots && add_entry(fd, entry->d_name, dir->follow, &entries, &n, &cap) != 0)
            why = errno;
    }
    closedir(stream);
    if (why) {
        dcp_store_list_free(entries, n);
        return dcp_dir_fail(dir, why, "list", name, err);
    }
    if (n)
        qsort(entries, n, sizeof *entries, by_name);
    *out = entries;
    *out_n = n;
    return DCP_OK;
}

static int dir_stat(void *self, const char *name, bool *out_is_dir,
                    uint64_t *out_size_bytes, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    struct stat st;
    bool leads = true;
    int rc = 0;
    if (!*name) {
        rc = fstat(dir->fd, &st);
    } else {
        DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
        rc = dcp_dir_entry_init(dir, name, &entry);
        if (!rc)
            rc = look(entry.dir_fd, entry.last, dir->follow, &st, &leads);
    }
    if (!rc && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        errno = leads ? ELOOP : ENOLINK;
        rc = -1;
    }
    if (rc)
        return dcp_dir_fail(dir, errno, "look at", name, err);
    *out_is_dir = S_ISDIR(st.st_mode);
    *out_size_bytes = *out_is_dir ? 0 : (uint64_t)st.st_size;
    return DCP_OK;
}

/* --- names --- */

static int dir_make_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    if (dcp_dir_entry_init(dir, name, &entry) != 0 ||
        mkdirat(entry.dir_fd, entry.last, 0777) != 0)
        return dcp_dir_fail(dir, errno, "make folder", name, err);
    return DCP_OK;
}

static int dir_sync_dir(void *self, const char *name, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    if (*name && !dcp_store_name_ok(name))
        return dcp_dir_fail(dir, EINVAL, "sync folder", name, err);
    int fd = open_folder(dir, name, strlen(name));
    int rc = DCP_OK;
    if (fd < 0 || fsync(fd) != 0)
        rc = dcp_dir_fail(dir, errno, "sync folder", name, err);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Both folders, the one of `to` first. */
static int sync_folders(const struct dcp_dir *dir, const struct dcp_dir_entry *from,
                        const char *from_name, const struct dcp_dir_entry *to,
                        const char *to_name, struct dcp_error *err)
{
    if (fsync(to->dir_fd) != 0)
        return dcp_dir_fail(dir, errno, "sync the folder of", to_name, err);
    size_t parent = (size_t)(from->last - from_name);
    bool same =
        parent == (size_t)(to->last - to_name) && memcmp(from_name, to_name, parent) == 0;
    if (!same && fsync(from->dir_fd) != 0)
        return dcp_dir_fail(dir, errno, "sync the folder of", from_name, err);
    return DCP_OK;
}

static int dir_publish(void *self, const char *from_name, const char *to_name,
                       struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry from;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry to = { .dir_fd = -1 };
    if (dcp_dir_entry_init(dir, from_name, &from) != 0)
        return dcp_dir_fail(dir, errno, "publish", from_name, err);
    if (dcp_dir_entry_init(dir, to_name, &to) != 0)
        return dcp_dir_fail(dir, errno, "publish", to_name, err);
    if (dcp_fs_rename_new(from.dir_fd, from.last, to.dir_fd, to.last) != 0)
        return dcp_error_sys(err, errno == EEXIST ? DCP_E_EXISTS : DCP_E_IO, errno,
                             "cannot publish '%s/%s' as '%s'", dir->root, from_name,
                             to_name);
    /* The new name first: in between a crash leaves both or the new one, never none. */
    return sync_folders(dir, &from, from_name, &to, to_name, err);
}

static int dir_exchange(void *self, const char *name, const char *other_name,
                        struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry other = { .dir_fd = -1 };
    if (dcp_dir_entry_init(dir, name, &entry) != 0)
        return dcp_dir_fail(dir, errno, "exchange", name, err);
    if (dcp_dir_entry_init(dir, other_name, &other) != 0)
        return dcp_dir_fail(dir, errno, "exchange", other_name, err);
    if (dcp_fs_exchange(entry.dir_fd, entry.last, other.dir_fd, other.last) != 0)
        return dcp_error_sys(err, errno == EOPNOTSUPP ? DCP_E_UNSUPPORTED : DCP_E_IO,
                             errno, "cannot exchange '%s/%s' with '%s'", dir->root, name,
                             other_name);
    return sync_folders(dir, &entry, name, &other, other_name, err);
}

static int dir_replace(void *self, const char *name, const void *data, size_t size_bytes,
                       struct dcp_error *err)
{
    struct dcp_dir *dir = self;
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    if (dcp_dir_entry_init(dir, name, &entry) != 0)
        return dcp_dir_fail(dir, errno, "replace", name, err);
    /* One fixed name, so that a crash leaves at most one file, and the next call takes it
     * away. */
    size_t n = strlen(entry.last) + sizeof "..tmp";
    DCP_CLEANUP_FREE char *temporary = malloc(n);
    if (!temporary)
        return dcp_error_memory(err, name);
    snprintf(temporary, n, ".%s.tmp", entry.last);

    int rc = DCP_OK;
    pthread_mutex_lock(&dir->replacing);
    if (dcp_fs_write_new(entry.dir_fd, temporary, data, size_bytes) != 0) {
        rc = errno == EBADMSG ? dcp_fs_not_written(name, err)
                              : dcp_dir_fail(dir, errno, "replace", name, err);
    } else if (renameat(entry.dir_fd, temporary, entry.dir_fd, entry.last) != 0) {
        rc = dcp_dir_fail(dir, errno, "replace", name, err);
        unlinkat(entry.dir_fd, temporary, 0);
    } else if (fsync(entry.dir_fd) != 0) {
        rc = dcp_dir_fail(dir, errno, "sync the folder of", name, err);
    }
    pthread_mutex_unlock(&dir->replacing);
    return rc;
}

static int dir_remove(void *self, const char *name, struct dcp_error *err)
{
    const struct dcp_dir *dir = self;
    char stuck[DCP_FS_STUCK_CAP] = "";
    DCP_CLEANUP_ENTRY struct dcp_dir_entry entry;
    if (dcp_dir_entry_init(dir, name, &entry) == 0 &&
        dcp_fs_remove_at(entry.dir_fd, entry.last, stuck) == 0)
        return DCP_OK;
    int why = errno;
    DCP_CLEANUP_FREE char *path = dcp_str_join(name, *stuck ? "/" : "", stuck);
    return dcp_dir_fail(dir, why, "remove", path ? path : name, err);
}

static int dir_lock(void *self, struct dcp_error *err)
{
    struct dcp_dir *dir = self;
    return dcp_lease_take(dir->fd, dir->root, &dir->lease, err);
}

static void dir_unlock(void *self)
{
    struct dcp_dir *dir = self;
    dcp_lease_drop(&dir->lease);
}

static void dir_free(void *self)
{
    struct dcp_dir *dir = self;
    dir_unlock(dir);
    if (dir->fd >= 0)
        close(dir->fd);
    pthread_mutex_destroy(&dir->replacing);
    free(dir->root);
    free(dir);
}

static void dir_follow(void *self, bool follow)
{
    ((struct dcp_dir *)self)->follow = follow;
}

static const struct dcp_store_ops dir_ops = {
    .list = dir_list,
    .stat = dir_stat,
    .open = dcp_dir_open,
    .reopen = dcp_dir_reopen,
    .create = dcp_dir_create,
    .read_at = dcp_dir_read_at,
    .write_at = dcp_dir_write_at,
    .flush_hint = dcp_dir_flush_hint,
    .sync = dcp_dir_sync,
    .close = dcp_dir_close,
    .make_dir = dir_make_dir,
    .sync_dir = dir_sync_dir,
    .publish = dir_publish,
    .exchange = dir_exchange,
    .replace = dir_replace,
    .remove = dir_remove,
    .lock = dir_lock,
    .unlock = dir_unlock,
    .hold = dcp_dir_hold,
    .free_bytes = dcp_dir_free_bytes,
    .direct = dcp_dir_direct,
    .descriptor = dcp_dir_descriptor,
    .try_clone = dcp_dir_try_clone,
    .clone = dcp_dir_clone,
    .drop_cache = dcp_dir_drop_cache,
    .follow = dir_follow,
    .free = dir_free,
};

int dcp_store_dir(struct dcp_store *out_store, const char *path, bool create,
                  struct dcp_error *err)
{
    *out_store = (struct dcp_store){ 0 };
    int rc = create ? dcp_fs_make_dirs(path, err) : DCP_OK;
    if (rc)
        return rc;
    struct dcp_dir *dir = calloc(1, sizeof *dir);
    if (!dir)
        return dcp_error_memory(err, path);
    pthread_mutex_init(&dir->replacing, NULL);
    dir->lease = -1;
    dir->root = strdup(path);
    dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0)
        rc = dcp_error_sys(err, DCP_E_IO, errno, "cannot open folder '%s'", path);
    else if (!dir->root)
        rc = dcp_error_memory(err, path);
    if (rc) {
        dir_free(dir);
        return rc;
    }
    *out_store = (struct dcp_store){ .ops = &dir_ops, .self = dir, .root = dir->root };
    return DCP_OK;
}

void dcp_store_dir_follow(struct dcp_store *store, bool follow)
{
    if (store->ops->follow)
        store->ops->follow(store->self, follow);
}
