/* fault_shim, a library for LD_PRELOAD: it sees the calls by which a program changes
 * files below a folder, writes them down, or lets one fail. The environment says what:
 *
 *   DCP_SHIM_ROOT    the folder, an absolute path without links
 *   DCP_SHIM_TRACE   a file to which the trace is appended (trace.h); it may be shared by
 *                    several processes
 *   DCP_SHIM_COUNTS  a file with a 64-bit number for each kind of call below: how many
 *                    were made, by all processes that share the file
 *   DCP_SHIM_FAULT   "CALL:N:HOW" the N-th call of that kind, over all processes, fails;
 *                    "CALL:N+:HOW" it and all after it. HOW is the name of an errno, or
 *                    "short": half is written; "flip": a bit of what is written is
 *                    another, as memory or a driver that loses bits does it; or the
 *                    process sends itself a signal: "kill" (SIGKILL, before the call),
 *                    "killafter", "stop" (SIGSTOP).
 *   DCP_SHIM_CLOCK   the clock of the day jumps at every look by up to so many seconds,
 *                    forth and back (clock.c)
 *
 * CALL is create (an open that may make the file), open (any other), read, write,
 * ftruncate, fallocate, fsync, syncdir (fsync of a folder), mkdir, rename, link, unlink,
 * close (of what was open for writing), closeread (of anything else), clone (the ioctl
 * by which files share blocks; where the file system cannot the shim copies), in this
 * order. A sync that fails loses data, as in a kernel that calls pages clean which it
 * could not write: the file's first bytes become zeros. */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const call_names[SHIM_CALLS] = {
    [SHIM_CREATE] = "create",      [SHIM_OPEN] = "open",
    [SHIM_READ] = "read",          [SHIM_WRITE] = "write",
    [SHIM_TRUNCATE] = "ftruncate", [SHIM_ALLOCATE] = "fallocate",
    [SHIM_SYNC] = "fsync",         [SHIM_SYNC_DIR] = "syncdir",
    [SHIM_MAKE_DIR] = "mkdir",     [SHIM_RENAME] = "rename",
    [SHIM_LINK] = "link",          [SHIM_UNLINK] = "unlink",
    [SHIM_CLOSE] = "close",        [SHIM_CLOSE_READ] = "closeread",
    [SHIM_CLONE] = "clone",
};

static const struct {
    const char *name;
    int number;
} errnos[] = {
    { "ENOSPC", ENOSPC },  { "EDQUOT", EDQUOT },  { "EIO", EIO },
    { "EINTR", EINTR },    { "EROFS", EROFS },    { "EMFILE", EMFILE },
    { "EPERM", EPERM },    { "EINVAL", EINVAL },  { "short", SHIM_SHORT },
    { "flip", SHIM_FLIP }, { "kill", SHIM_KILL }, { "killafter", SHIM_KILL_AFTER },
    { "stop", SHIM_STOP },
};

static struct {
    char root[PATH_MAX];
    size_t root_bytes;
    int trace;        /* -1: none */
    uint64_t *counts; /* shared by all processes */
    int call;         /* that fails; -1: none */
    uint64_t at;
    bool on; /* all after it fail too */
    int how;
} shim = { .trace = -1, .call = -1 };

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static uint64_t own_counts[SHIM_CALLS];
static __thread bool doomed; /* this call is the process's last */

static void give_up(const char *what)
{
    fprintf(stderr, "fault_shim: %s\n", what);
    _exit(125);
}

static void parse_fault(const char *text)
{
    char call[16], at[16], how[16];
    char *end;

    if (sscanf(text, "%15[^:]:%15[^:]:%15s", call, at, how) != 3)
        give_up("DCP_SHIM_FAULT is not CALL:N:HOW");
    for (int c = 0; c < SHIM_CALLS; c++)
        if (!strcmp(call, call_names[c]))
            shim.call = c;
    shim.at = strtoull(at, &end, 10);
    shim.on = *end == '+';
    for (size_t i = 0; i < sizeof errnos / sizeof errnos[0]; i++)
        if (!strcmp(how, errnos[i].name))
            shim.how = errnos[i].number;
    if (shim.call < 0 || !shim.at || !shim.how)
        give_up("DCP_SHIM_FAULT names what the shim does not know");
}

static void open_counts(const char *path)
{
    size_t size = sizeof own_counts;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);

    if (fd < 0 || syscall(SYS_ftruncate, fd, (off_t)size) != 0)
        give_up("cannot make the file of counts");
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (map == MAP_FAILED)
        give_up("cannot map the file of counts");
    shim.counts = map;
}

__attribute__((constructor)) static void start(void)
{
    const char *root = getenv("DCP_SHIM_ROOT"), *trace = getenv("DCP_SHIM_TRACE");
    const char *counts = getenv("DCP_SHIM_COUNTS"), *fault = getenv("DCP_SHIM_FAULT");

    if (!root)
        return;
    if (!realpath(root, shim.root))
        give_up("DCP_SHIM_ROOT is no folder");
    shim.counts = own_counts;
    if (counts)
        open_counts(counts);
    if (fault)
        parse_fault(fault);
    if (trace) {
        shim.trace = (int)syscall(SYS_openat, AT_FDCWD, trace,
                                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (shim.trace < 0)
            give_up("cannot open the trace");
    }
    shim.root_bytes = strlen(shim.root); /* from now on calls are seen */
}

int shim_strike(enum shim_call call)
{
    uint64_t n = __atomic_add_fetch(&shim.counts[call], 1, __ATOMIC_SEQ_CST);

    if ((int)call != shim.call || (shim.on ? n < shim.at : n != shim.at))
        return 0;
    if (shim.how == SHIM_KILL)
        raise(SIGKILL);
    if (shim.how == SHIM_STOP)
        raise(SIGSTOP);
    doomed = shim.how == SHIM_KILL_AFTER;
    return shim.how > 0 || shim.how == SHIM_SHORT || shim.how == SHIM_FLIP ? shim.how : 0;
}

/* --- what lies below the root --- */

static bool is_below(int fd)
{
    char link[64], path[PATH_MAX];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (n < (long)shim.root_bytes)
        return false;
    path[n] = '\0';
    return !strncmp(path, shim.root, shim.root_bytes) &&
           (path[shim.root_bytes] == '/' || path[shim.root_bytes] == '\0');
}

bool shim_file(int fd, uint64_t *out_ino)
{
    struct stat st;
    int why = errno;
    bool seen = shim.root_bytes && fd != shim.trace && is_below(fd) && !fstat(fd, &st);

    errno = why;
    if (seen)
        *out_ino = st.st_ino;
    return seen;
}

bool shim_name(int dir_fd, const char *path, struct shim_place *out)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    struct stat st;
    int why = errno;
    bool seen = false;

    if (!shim.root_bytes || n + 2 > sizeof dir)
        return false;
    memcpy(dir, path, n);
    memcpy(dir + n, ".", 2);
    int fd = (int)syscall(SYS_openat, dir_fd, dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && is_below(fd) && !fstat(fd, &st)) {
        seen = true;
        out->dir = st.st_ino;
        out->last = path + n;
        out->ino = fstatat(fd, out->last, &st, AT_SYMLINK_NOFOLLOW) ? 0 : st.st_ino;
    }
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = why;
    return seen;
}

/* --- writing down --- */

void shim_begin(void)
{
    pthread_mutex_lock(&order);
}

void shim_end(void)
{
    if (doomed)
        raise(SIGKILL);
    pthread_mutex_unlock(&order);
}

void shim_record(struct trace_record record, const char *name, const char *name2,
                 const void *data)
{
    int why = errno;

    if (shim.trace < 0)
        return;
    record.magic = TRACE_MAGIC;
    record.pid = (uint32_t)getpid();
    record.name_bytes = (uint32_t)(name ? strlen(name) : 0);
    record.name2_bytes = (uint32_t)(name2 ? strlen(name2) : 0);
    size_t names = (size_t)record.name_bytes + record.name2_bytes;
    size_t size = sizeof record + names + record.data_bytes;
    char *whole = malloc(size), *at = whole + sizeof record;
    if (!whole)
        give_up("out of memory");
    memcpy(whole, &record, sizeof record);
    if (name)
        memcpy(at, name, record.name_bytes);
    at += record.name_bytes;
    if (name2)
        memcpy(at, name2, record.name2_bytes);
    if (record.data_bytes && data)
        memcpy(at + record.name2_bytes, data, record.data_bytes);
    /* One call, so that the records of several processes do not mix. */
    if (syscall(SYS_write, shim.trace, whole, size) != (long)size)
        give_up("cannot write the trace");
    free(whole);
    errno = why;
}

static void mark(enum trace_kind kind, int64_t act)
{
    shim_begin();
    shim_record((struct trace_record){ .kind = kind, .a = act }, NULL, NULL, NULL);
    shim_end();
}

SHIM_EXPORT void fault_shim_begin(int64_t act)
{
    mark(TRACE_BEGIN, act);
}

SHIM_EXPORT void fault_shim_done(int64_t act)
{
    mark(TRACE_DONE, act);
}
