/* shim: what its files share. See shim.c for how it is told what to do. */
#ifndef TESTS_FAULT_SHIM_H
#define TESTS_FAULT_SHIM_H

#include "trace.h"

#include <stdbool.h>
#include <stddef.h>

#define SHIM_EXPORT __attribute__((visibility("default")))

/* Kinds of calls, for counting and failing. */
enum shim_call {
    SHIM_CREATE, /* an open that may make the file */
    SHIM_OPEN,
    SHIM_READ,
    SHIM_WRITE,
    SHIM_TRUNCATE,
    SHIM_ALLOCATE,
    SHIM_SYNC, /* fsync or fdatasync of a file */
    SHIM_SYNC_DIR,
    SHIM_MAKE_DIR,
    SHIM_RENAME,
    SHIM_LINK,
    SHIM_UNLINK,
    SHIM_CLOSE, /* of what was open for writing */
    SHIM_CLOSE_READ,
    SHIM_CLONE,
    SHIM_CALLS
};

/* Whether an open file lies below the root; its inode. */
bool shim_file(int fd, uint64_t *out_ino);
/* Whether a name lies below the root (or is it): the inode of its folder, its last part
 * (in `path`), and its own inode (0: it is not there). */
struct shim_place {
    uint64_t dir, ino;
    const char *last;
};
bool shim_name(int dir_fd, const char *path, struct shim_place *out);

/* Counts a call, and says what is to become of it: 0, an errno, SHIM_SHORT, or SHIM_FLIP
 * (of writes alone). The others are signals, and are sent before it returns, or by
 * shim_end. */
enum {
    SHIM_SHORT = -1,
    SHIM_FLIP = -2,
    SHIM_KILL = -3,
    SHIM_KILL_AFTER = -4,
    SHIM_STOP = -5
};
int shim_strike(enum shim_call call);

/* Between these two a call is made and written down, so that the trace has the order in
 * which things happened. shim_end keeps errno. */
void shim_begin(void);
void shim_end(void);
/* Writes a record down; where nothing is recorded this does nothing. */
void shim_record(struct trace_record record, const char *name, const char *name2,
                 const void *data);

#endif
