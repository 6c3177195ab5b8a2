/* trace: what the shim writes down of a program: each call that changed something below
 * the root, in the order in which the calls were made.
 *
 * A trace file is records, one behind the other, in the machine's own byte order: a
 * struct trace_record, then its two names (no NUL) and its data. Files and folders are
 * known by their inode numbers. Only calls that succeeded are there. */
#ifndef TESTS_FAULT_TRACE_H
#define TESTS_FAULT_TRACE_H

#include <stdint.h>

#define TRACE_MAGIC 0x54504344u

enum trace_kind {
    TRACE_CREATE,    /* dir/name is ino; it may have been there (a = its open flags) */
    TRACE_WRITE,     /* data at offset a of ino */
    TRACE_TRUNCATE,  /* ino has now a bytes */
    TRACE_ALLOCATE,  /* ino has at least a bytes */
    TRACE_SYNC,      /* fsync of ino, a file or a folder */
    TRACE_DATA_SYNC, /* fdatasync of ino */
    TRACE_FS_SYNC,   /* syncfs or sync: everything */
    TRACE_MAKE_DIR,  /* dir/name is the new folder ino */
    TRACE_RENAME,    /* dir/name, which is ino, becomes dir2/name2 */
    TRACE_EXCHANGE,  /* dir/name, which is ino, and dir2/name2, which is ino2 */
    TRACE_LINK,      /* dir2/name2 is ino, too */
    TRACE_UNLINK,    /* dir/name is gone */
    TRACE_CLOSE,     /* ino: promises nothing */
    TRACE_BEGIN,     /* the program begins an act; a is its number */
    TRACE_DONE       /* the program has promised act a */
};

struct trace_record {
    uint32_t magic, kind, pid, reserved;
    uint64_t dir, ino, dir2, ino2;
    int64_t a;
    uint32_t name_bytes, name2_bytes;
    uint64_t data_bytes;
};

/* Called by a program under test; where the shim is not loaded they are NULL. */
__attribute__((weak)) void fault_shim_begin(int64_t act);
__attribute__((weak)) void fault_shim_done(int64_t act);

#endif
