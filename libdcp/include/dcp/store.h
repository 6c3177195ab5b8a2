/* store: names to bytes, and `publish`, the only commit point.
 *
 * Names are relative to the store's root: plain parts joined by '/', none of them empty,
 * "." or "..", no NUL, no leading '/'. Every call checks that. Nothing follows a symbolic
 * link below the root, but see dcp_store_dir_follow. Thread rule: different files may be
 * used on different threads; read_at and write_at of one file too (they carry their
 * offset). */
#ifndef DCP_STORE_H
#define DCP_STORE_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCP_STORE_DIRECT_ALIGN 4096

struct dcp_store_file; /* an open file of a store */

struct dcp_store_entry {
    char *name; /* without its folder */
    bool is_dir;
    uint64_t size_bytes;
};

struct dcp_store_ops {
    /* Entries of a folder ("" is the root), sorted by name in byte order; *out is freed
     * with dcp_store_list_free. Errors: NOT_FOUND, IO. */
    int (*list)(void *self, const char *dir, struct dcp_store_entry **out, size_t *out_n,
                struct dcp_error *err);
    /* What a name is. Errors: NOT_FOUND, IO. */
    int (*stat)(void *self, const char *name, bool *out_is_dir, uint64_t *out_size_bytes,
                struct dcp_error *err);

    /* Opens for reading. Errors: NOT_FOUND, IO, UNSUPPORTED (a link, a device). */
    int (*open)(void *self, const char *name, struct dcp_store_file **out,
                struct dcp_error *err);
    /* Creates exclusively, its space reserved. Errors: EXISTS, NO_SPACE, IO. */
    int (*create)(void *self, const char *name, uint64_t size_bytes,
                  struct dcp_store_file **out, struct dcp_error *err);
    /* Opens a file that `create` made and nothing published yet, for writing and reading:
     * several may have it open, on several ranks, each with ranges of its own. Errors:
     * those of open. */
    int (*reopen)(void *self, const char *name, struct dcp_store_file **out,
                  struct dcp_error *err);
    /* Reads exactly size_bytes. Errors: CORRUPT when the file ends before, IO. */
    int (*read_at)(void *self, struct dcp_store_file *file, uint64_t offset, void *out,
                   size_t size_bytes, struct dcp_error *err);
    int (*write_at)(void *self, struct dcp_store_file *file, uint64_t offset,
                    const void *data, size_t size_bytes, struct dcp_error *err);
    /* Optional (NULL: nothing): begin to write back what was written so far. */
    void (*flush_hint)(void *self, struct dcp_store_file *file, uint64_t offset,
                       uint64_t size_bytes);
    /* Cuts to size_bytes and makes the data durable. After a failure the file is lost:
     * never call again, close it and fail. */
    int (*sync)(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                struct dcp_error *err);
    /* Frees the file whatever it returns. Errors of the close are real errors. */
    int (*close)(void *self, struct dcp_store_file *file, struct dcp_error *err);

    int (*make_dir)(void *self, const char *name, struct dcp_error *err); /* EXISTS, IO */
    /* Makes the names in a folder durable. */
    int (*sync_dir)(void *self, const char *name, struct dcp_error *err);
    /* The commit: renames a file or folder to a name that must not exist, and returns
     * when that is durable. Errors: EXISTS, IO. */
    int (*publish)(void *self, const char *from, const char *to, struct dcp_error *err);
    /* Optional (NULL: it cannot): exchanges what two names stand for, both of which
     * exist, in one step, and returns when that is durable. Errors: UNSUPPORTED (the file
     * system cannot), NOT_FOUND, IO. */
    int (*exchange)(void *self, const char *name, const char *other,
                    struct dcp_error *err);
    /* Replaces a small file in one step, durably (temporary, sync, rename, sync). In a
     * folder of a file system a crash may leave the temporary, `.NAME.tmp` beside it,
     * which the next call takes away. */
    int (*replace)(void *self, const char *name, const void *data, size_t size_bytes,
                   struct dcp_error *err);
    /* Removes a file, or a folder with all in it. Errors: NOT_FOUND, IO. */
    int (*remove)(void *self, const char *name, struct dcp_error *err);

    /* Takes the root's exclusive lease, or fails with BUSY and who holds it. */
    int (*lock)(void *self, struct dcp_error *err);
    void (*unlock)(void *self);
    /* Optional (NULL: nothing can be held). A lease on a file or folder, of its own
     * beside the root's: any number of shared ones, or one that is exclusive. Never
     * waits; it is given back when the file is closed, or the process ends. For a shared
     * one reading the file must be allowed, no more. Errors: BUSY, NOT_FOUND (it went
     * meanwhile, too), UNSUPPORTED (no locks there), IO. */
    int (*hold)(void *self, const char *name, bool exclusive, struct dcp_store_file **out,
                struct dcp_error *err);
    /* Bytes that can still be written; UINT64_MAX when unknown. */
    uint64_t (*free_bytes)(void *self);
    /* Optional (NULL: nothing): invalidates cached pages, so that reads come from the
     * disk. */
    void (*drop_cache)(void *self, struct dcp_store_file *file);
    /* Optional (NULL: it cannot): from now on reads and writes of 256 KiB and more go
     * past the page cache, where the memory lies as its place in the file does, modulo
     * DCP_STORE_DIRECT_ALIGN: for a file whose bytes nobody will read from there. True:
     * that is so; all else works as before. */
    bool (*direct)(void *self, struct dcp_store_file *file);
    /* Optional (NULL: there is none): the descriptor of an open file whose bytes lie in a
     * file of this machine as read_at gives them, to be mapped; -1: they do not. It
     * belongs to the file. */
    int (*descriptor)(void *self, struct dcp_store_file *file);
    /* Optional, both or none (NULL: it cannot). Whether files of this store can share
     * blocks of the file system with the file that is open as `from`, a descriptor: found
     * out with a file that nobody sees. *out_block_bytes: what offsets and sizes are
     * multiples of. Errors: UNSUPPORTED (another file system, or one that cannot),
     * NO_SPACE, IO. */
    int (*try_clone)(void *self, int from, uint64_t *out_block_bytes,
                     struct dcp_error *err);
    /* Shares a range of that file with a file being written, in which it begins at
     * `offset`, and which becomes longer where it must; what stood there is gone. Later
     * writes to either file change that one alone. Errors: NO_SPACE, UNSUPPORTED, IO. */
    int (*clone)(void *self, struct dcp_store_file *file, uint64_t offset, int from,
                 uint64_t from_offset, uint64_t size_bytes, struct dcp_error *err);
    /* Optional (NULL: nothing): see dcp_store_dir_follow. */
    void (*follow)(void *self, bool follow);
    void (*free)(void *self);
};

struct dcp_store {
    const struct dcp_store_ops *ops;
    void *self;
    const char *root; /* for messages; belongs to the store */
    /* The largest header, manifest or index that is read into memory; 0: what real files
     * have. Whoever opened the store may set it. */
    uint64_t max_header_bytes;
    uint64_t packed_bytes; /* of the archive that the store is; 0: it is none */
    bool reads_deltas;     /* it is a dcp_store_delta, or a wrapper of one */
};

/* A folder of a POSIX file system. With `create` it is made (parents too) when missing.
 * Caller owns, dcp_store_free. Errors: NOT_FOUND, IO, MEMORY. */
DCP_PUBLIC int dcp_store_dir(struct dcp_store *out_store, const char *path, bool create,
                             struct dcp_error *err);
/* A tar archive, plain or compressed with zstd, as a folder that can only be read: names
 * are those in the archive, or those below the one folder that holds everything. Reads at
 * any offset; what dcp_store_bundle_new wrote is decoded where it is read, other
 * compressed archives from their beginning, so that reading from front to back is one
 * pass. Memory: tens of megabytes at most, 128 MiB for archives compressed with so large
 * a window, and the names. On success *inner, which has the file `name`,
 * moves into the new store; caller owns. Errors: NOT_FOUND, CORRUPT (incomplete, corrupt,
 * a name twice or leading outside), UNSUPPORTED (no tar archive; links, devices, files
 * with holes), IO, MEMORY. */
DCP_PUBLIC int dcp_store_bundle(struct dcp_store *out_store, struct dcp_store *inner,
                                const char *name, struct dcp_error *err);
/* True when a file begins as a tar archive or as zstd does. */
DCP_PUBLIC bool dcp_bundle_probe(const struct dcp_store *store, const char *name);

/* Makes such an archive, compressed with zstd: the file `name` of inner (borrowed until
 * free), in which everything stands in one folder. The store takes files one after the
 * other, of the size they are created with, each written from front to back; none of them
 * can be read. Equal files give equal bytes. Threads compress; memory_bytes bounds what
 * waits for them. Thread rule: one thread. Errors: EXISTS, NO_SPACE, IO, MEMORY. */
DCP_PUBLIC int dcp_store_bundle_new(struct dcp_store *out_store,
                                    const struct dcp_store *inner, const char *name,
                                    const char *folder, int threads,
                                    uint64_t memory_bytes, struct dcp_error *err);
/* Ends the archive, makes it durable, its name in inner's folder not, and reads it back.
 * Free the store afterwards. Errors: CORRUPT (what is read back is not what was written),
 * IO (a file was not written to its end), NO_SPACE, MEMORY. */
DCP_PUBLIC int dcp_store_bundle_finish(struct dcp_store *store, uint64_t *out_size_bytes,
                                       struct dcp_error *err);

/* Whether names that are looked at, listed or opened for reading may be links to regular
 * files, wherever these lie; false at first. For folders that other programs made: the
 * cache of Hugging Face is links alone. Links to folders, sockets and devices are refused
 * still, and nothing is ever written through a link. Does nothing to stores that are
 * no such folder, or a wrapper of one. Not
 * while another thread uses the store. */
DCP_PUBLIC void dcp_store_dir_follow(struct dcp_store *store, bool follow);
/* A store that does all that another one does, but for the calls that a wrapper does in
 * its own way: it makes this the first member of its struct, has it filled, and puts its
 * functions in `ops`. Their self is the wrapper; what they do not do themselves they call
 * of `inner`. What inner cannot do (NULL) is NULL here too. */
struct dcp_store_forward {
    struct dcp_store_ops ops;
    const struct dcp_store *inner;
};
/* Fills both; they may not move afterwards, nor `inner`, which is borrowed until the last
 * call. Freeing the store frees nothing: a wrapper that owns anything sets ops.free.
 * Thread rule: that of inner. */
DCP_PUBLIC void dcp_store_forward(struct dcp_store *out_store,
                                  struct dcp_store_forward *wrapper,
                                  const struct dcp_store *inner);
/* Puts many of a wrapper's own functions in its `ops`: those that are not NULL, of what
 * inner can do at all; and `free`. */
DCP_PUBLIC void dcp_store_override(struct dcp_store_forward *wrapper,
                                   const struct dcp_store_ops *own);
/* Takes the lease of the root until the store is freed, for who saves again and again:
 * others get BUSY meanwhile, and saves, prunes and repairs in this store, which take it
 * each for itself otherwise, work under it. Does nothing when it is held so already;
 * after an error the store is as it was. Not while another thread uses the store. Errors:
 * BUSY with who holds it, UNSUPPORTED (no locks there), IO, MEMORY. */
DCP_PUBLIC int dcp_store_lease(struct dcp_store *store, struct dcp_error *err);

/* A store in memory, empty. */
DCP_PUBLIC int dcp_store_mem(struct dcp_store *out_store, struct dcp_error *err);

/* What files lie on, by what the system says of it. */
struct dcp_storage {
    const char *name; /* as people call it, "Lustre"; "" where nobody knows it */
    bool shared;      /* several machines may see it: what one wrote, and its locks, may
                       * come late to another */
    bool in_memory;
    const char *advice; /* for whoever saves large checkpoints there; NULL: none */
};
/* Of a path; where nothing is there yet, of the folder that it would be made in. The
 * strings are constants. Any thread. */
DCP_PUBLIC struct dcp_storage dcp_storage_of(const char *path);

/* Frees what self points to; a zeroed store is fine. */
DCP_PUBLIC void dcp_store_free(struct dcp_store *store);
/* Frees what `list` gave; NULL is fine. */
DCP_PUBLIC void dcp_store_list_free(struct dcp_store_entry *entries, size_t n);

/* Refuses a header of so many bytes that is longer than real files have, `usual`, or than
 * max_header_bytes says. In an archive it is also 16 MiB and 64 times the archive at
 * most: text does not become that small, and what is nothing but blanks is an attack.
 * Errors: CORRUPT. */
DCP_PUBLIC int dcp_store_check_header(const struct dcp_store *store, const char *name,
                                      uint64_t size_bytes, uint64_t usual,
                                      struct dcp_error *err);
/* Reads a whole small file, at most max_bytes; *out has a NUL behind its end, caller
 * frees with free. Errors: NOT_FOUND, IO, MEMORY, CORRUPT (longer than that). */
DCP_PUBLIC int dcp_store_read_file(const struct dcp_store *store, const char *name,
                                   size_t max_bytes, void **out, size_t *out_size_bytes,
                                   struct dcp_error *err);
/* The same of a file that is a header, manifest or index, and may be as long as
 * dcp_store_check_header allows. */
DCP_PUBLIC int dcp_store_read_header(const struct dcp_store *store, const char *name,
                                     size_t usual_bytes, void **out,
                                     size_t *out_size_bytes, struct dcp_error *err);
/* Reads all of a file that was written and synced, and is still open: it must have so
 * many bytes, and this CRC-64. Errors: CORRUPT, IO, MEMORY. */
DCP_PUBLIC int dcp_store_read_back(const struct dcp_store *store,
                                   struct dcp_store_file *file, const char *name,
                                   uint64_t size_bytes, uint64_t crc,
                                   struct dcp_error *err);
/* Creates, writes, syncs, reads back and closes a small file (its folder is not synced).
 */
DCP_PUBLIC int dcp_store_write_file(const struct dcp_store *store, const char *name,
                                    const void *data, size_t size_bytes,
                                    struct dcp_error *err);
/* Removes a file or folder that may be there. Errors: IO. */
DCP_PUBLIC int dcp_store_clear(const struct dcp_store *store, const char *name,
                               struct dcp_error *err);
/* The rule for names at the top of this header. */
DCP_PUBLIC bool dcp_store_name_ok(const char *name);

#ifdef __cplusplus
}
#endif
#endif
