/* fs: POSIX files, whole reads and writes, EINTR and short counts handled. */
#ifndef DCP_BASE_FS_H
#define DCP_BASE_FS_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads or writes all of it at offset; 0 or -1 with errno (ENODATA when the file ends
 * before). */
int dcp_fs_read_at(int fd, void *out, size_t size_bytes, uint64_t offset);
int dcp_fs_write_at(int fd, const void *data, size_t size_bytes, uint64_t offset);
/* Reads a whole small file; NUL behind its end, caller frees. Errors: NOT_FOUND, IO,
 * MEMORY, CORRUPT when longer than max_bytes. */
int dcp_fs_read_file(const char *path, size_t max_bytes, void **out,
                     size_t *out_size_bytes, struct dcp_error *err);
/* mkdir -p. A URL, which would become folders, is refused: USAGE. */
int dcp_fs_make_dirs(const char *path, struct dcp_error *err);
/* The same; *out_first is the first that was not there (caller frees), or NULL. After a
 * failure nothing is left of it. */
int dcp_fs_make_missing(const char *path, char **out_first, struct dcp_error *err);
/* Takes folders away again that dcp_fs_make_missing made, as far as they are empty. */
void dcp_fs_remove_made(const char *path, const char *first);
/* What realpath says of the part of a path that is there, and behind it the rest; caller
 * frees. NULL with errno: ENOENT also when the rest climbs. */
char *dcp_fs_real(const char *path);
/* fsync of the folder behind a path. */
int dcp_fs_sync_dir(const char *path, struct dcp_error *err);
/* rm -r, not following links. Removes nothing outside path. */
int dcp_fs_remove_all(const char *path, struct dcp_error *err);
/* The same for a name in an open folder. What can be removed is: 0, or -1 with errno, and
 * in `stuck` (may be NULL) the first that stays, by its path below the name, "" being the
 * name itself. */
#define DCP_FS_STUCK_CAP 512
int dcp_fs_remove_at(int dir_fd, const char *name, char stuck[DCP_FS_STUCK_CAP]);
/* Renames a file or folder to a name that must not exist (EEXIST); 0 or -1 with errno. */
int dcp_fs_rename_new(int from_dir_fd, const char *from, int to_dir_fd, const char *to);
/* Exchanges what two names stand for; 0 or -1 with errno (EOPNOTSUPP: the file system
 * cannot). */
int dcp_fs_exchange(int dir_fd, const char *name, int other_dir_fd, const char *other);
/* Writes all of a new file that is open for reading too, syncs it and reads it back. 0,
 * or -1 with errno: EBADMSG when what comes back is not what was written. */
int dcp_fs_write_whole(int fd, const void *data, size_t size_bytes);
/* The sentence for what came back as something else; returns CORRUPT. */
int dcp_fs_not_written(const char *name, struct dcp_error *err);
/* Writes a file durably (its name is not), in the place of one that a crash left. 0, or
 * -1 with errno, that of dcp_fs_write_whole too, and no file. */
int dcp_fs_write_new(int dir_fd, const char *name, const void *data, size_t size_bytes);
/* "a/b" from "a" and "b"; caller frees. NULL: out of memory. */
char *dcp_fs_join(const char *dir, const char *name);
/* Folder and last part of a path: "." and "x" for "x", "/" and "" for "/"; trailing
 * '/' are ignored. Caller frees both. Returns false when out of memory. */
bool dcp_fs_split(const char *path, char **out_dir, char **out_name);
bool dcp_fs_exists(const char *path);
bool dcp_fs_is_dir(const char *path);
/* What of a path is there: the folder that it would be made in, "." of the last resort.
 * Caller frees. NULL: out of memory. */
char *dcp_fs_nearest(const char *path);
/* Free bytes on the file system of a path; UINT64_MAX when unknown. */
uint64_t dcp_fs_free_bytes(const char *path);
/* Bytes of a file that no block is kept for: they were never written, or are zeros that
 * were left out; 0 also where the file system does not tell. */
uint64_t dcp_fs_hole_bytes(const char *path);
/* Files that this process may have open at once. */
size_t dcp_fs_max_open(void);

#endif
