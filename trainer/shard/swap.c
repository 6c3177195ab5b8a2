#include "swap.h"

#include "base/fs.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN ((uint64_t)1 << 21) /* of an array in the file: a huge page */
#define MAX_ARRAYS 16
#define MAX_LEFT 256 /* ranges that wait to be written */

struct array {
    char *data; /* NULL: free */
    uint64_t size_bytes, at;
};
struct left {
    char *from;
    uint64_t size_bytes, at;
};

struct swap {
    int fd;
    char *folder;
    uint64_t end; /* of the file */
    struct array arrays[MAX_ARRAYS];

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct left left[MAX_LEFT]; /* a ring: n of them, the first one is being written */
    int first, n;
    uint64_t most_bytes, left_bytes;
    bool ends;
};

/* --- a disk that fails --- */

/* The arrays of this process, for a handler of signals, which can be told in no other
 * way. A zero end: none. */
static struct {
    _Atomic(char *) from, to;
} mapped[MAX_ARRAYS];

static const char sentence[] =
    "dcp-train: the disk of zero_optimization.offload_..., nvme_path, failed\n";

/* A page of a mapped file could not be read. There is nothing to go on with. */
static void on_bus_error(int signo, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    (void)context;
    for (int i = 0; i < MAX_ARRAYS; i++)
        if (at >= mapped[i].from && at < mapped[i].to) {
            if (write(STDERR_FILENO, sentence, sizeof sentence - 1) < 0)
                _exit(dcp_error_exit(DCP_E_IO));
            _exit(dcp_error_exit(DCP_E_IO));
        }
    signal(signo, SIG_DFL); /* another one's: it ends the process when it comes again */
}

static void remember(char *data, uint64_t size_bytes)
{
    struct sigaction act = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };
    sigaction(SIGBUS, &act, NULL);
    for (int i = 0; i < MAX_ARRAYS; i++)
        if (!mapped[i].to) {
            mapped[i].from = data;
            mapped[i].to = data + size_bytes;
            return;
        }
}

static void forget(const char *data)
{
    for (int i = 0; i < MAX_ARRAYS; i++)
        if (mapped[i].to && mapped[i].from == data)
            mapped[i].from = mapped[i].to = NULL;
}

/* --- the thread --- */

/* Writes a range, and takes it out of memory. A disk that fails does so again when the
 * range is read, and is told then. */
static void put_away(struct swap *swap, const struct left *left)
{
    sync_file_range(swap->fd, (off_t)left->at, (off_t)left->size_bytes,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                        SYNC_FILE_RANGE_WAIT_AFTER);
    madvise(left->from, left->size_bytes, MADV_DONTNEED);
    posix_fadvise(swap->fd, (off_t)left->at, (off_t)left->size_bytes,
                  POSIX_FADV_DONTNEED);
}

static void *run(void *arg)
{
    struct swap *swap = arg;
    pthread_mutex_lock(&swap->lock);
    for (;;) {
        while (!swap->n && !swap->ends)
            pthread_cond_wait(&swap->changed, &swap->lock);
        if (!swap->n)
            break;
        struct left left = swap->left[swap->first];
        pthread_mutex_unlock(&swap->lock);
        put_away(swap, &left);
        pthread_mutex_lock(&swap->lock);
        swap->first = (swap->first + 1) % MAX_LEFT;
        swap->n--;
        swap->left_bytes -= left.size_bytes;
        pthread_cond_broadcast(&swap->changed);
    }
    pthread_mutex_unlock(&swap->lock);
    return NULL;
}

/* --- the file --- */

static int failed(const struct swap *swap, int why, const char *act,
                  struct dcp_error *err)
{
    return dcp_error_sys(err, DCP_E_IO, why, "nvme_path '%s': cannot %s", swap->folder,
                         act);
}

static int open_file(struct swap *swap, struct dcp_error *err)
{
    DCP_TRY(dcp_fs_make_dirs(swap->folder, err));
    swap->fd = open(swap->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (swap->fd >= 0)
        return DCP_OK;
    /* A file system that knows no files without a name. */
    char name[64];
    static atomic_int n;
    snprintf(name, sizeof name, "dcp-swap-%ld-%d", (long)getpid(),
             atomic_fetch_add(&n, 1));
    DCP_CLEANUP_FREE char *path = dcp_fs_join(swap->folder, name);
    if (!path)
        return dcp_error_memory(err, "a swap file");
    swap->fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (swap->fd < 0)
        return failed(swap, errno, "make a file", err);
    unlink(path);
    return DCP_OK;
}

static int start_thread(struct swap *swap, struct dcp_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(&swap->thread, NULL, run, swap);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    swap->started = !why;
    return why ? dcp_error_memory(err, "a thread of the swap") : DCP_OK;
}

int swap_new(const char *folder, uint64_t most_bytes, struct swap **out,
             struct dcp_error *err)
{
    struct swap *swap = dcp_mem_calloc(1, sizeof *swap);
    *out = NULL;
    if (!swap)
        return dcp_error_memory(err, "a swap");
    pthread_mutex_init(&swap->lock, NULL);
    pthread_cond_init(&swap->changed, NULL);
    swap->fd = -1;
    swap->most_bytes = most_bytes;
    swap->folder = strdup(folder);
    int rc = swap->folder ? DCP_OK : dcp_error_memory(err, "a swap");
    if (!rc)
        rc = open_file(swap, err);
    if (!rc)
        rc = start_thread(swap, err);
    if (rc) {
        swap_free(swap);
        return rc;
    }
    *out = swap;
    return DCP_OK;
}

void swap_free(struct swap *swap)
{
    if (!swap)
        return;
    if (swap->started) {
        pthread_mutex_lock(&swap->lock);
        swap->ends = true;
        swap->n = swap->n ? 1 : 0; /* nobody reads what is not written yet */
        pthread_cond_broadcast(&swap->changed);
        pthread_mutex_unlock(&swap->lock);
        pthread_join(swap->thread, NULL);
    }
    for (int i = 0; i < MAX_ARRAYS; i++)
        swap_drop(swap, swap->arrays[i].data);
    if (swap->fd >= 0)
        close(swap->fd);
    pthread_mutex_destroy(&swap->lock);
    pthread_cond_destroy(&swap->changed);
    free(swap->folder);
    free(swap);
}

/* --- arrays --- */

static struct array *array_of(struct swap *swap, const void *from)
{
    const char *at = from;
    for (int i = 0; at && i < MAX_ARRAYS; i++) {
        struct array *array = &swap->arrays[i];
        if (array->data && at >= array->data && at < array->data + array->size_bytes)
            return array;
    }
    return NULL;
}

static int no_room(const struct swap *swap, uint64_t size_bytes, const char *what,
                   struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_NO_SPACE,
                         "nvme_path '%s' has no room for %s, %.1f MiB: %.1f MiB are free",
                         swap->folder, what, (double)size_bytes / (1 << 20),
                         (double)dcp_fs_free_bytes(swap->folder) / (1 << 20));
}

/* At the end of the file. A file system that reserves nothing is asked what is free. */
static int take_room(const struct swap *swap, uint64_t size_bytes)
{
    if (!fallocate(swap->fd, 0, (off_t)swap->end, (off_t)size_bytes))
        return 0;
    if (errno != EOPNOTSUPP)
        return errno;
    if (dcp_fs_free_bytes(swap->folder) < size_bytes)
        return ENOSPC;
    return ftruncate(swap->fd, (off_t)(swap->end + size_bytes)) ? errno : 0;
}

int swap_alloc(struct swap *swap, uint64_t size_bytes, const char *what, void **out,
               struct dcp_error *err)
{
    struct array *array = swap->arrays;
    *out = NULL;
    while (array < swap->arrays + MAX_ARRAYS && array->data)
        array++;
    if (array == swap->arrays + MAX_ARRAYS)
        return dcp_error_set(err, DCP_E_MEMORY, "a swap has no place for %s", what);
    size_bytes = size_bytes ? size_bytes : 1;
    if (size_bytes > (uint64_t)1 << 60)
        return no_room(swap, size_bytes, what, err);
    int why = take_room(swap, size_bytes);
    /* EFBIG is a limit of the file system's or of the user's. */
    if (why == ENOSPC || why == EDQUOT ||
        (why == EFBIG && dcp_fs_free_bytes(swap->folder) < size_bytes))
        return no_room(swap, size_bytes, what, err);
    if (why)
        return failed(swap, why, "take room", err);
    void *data = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, swap->fd,
                      (off_t)swap->end);
    if (data == MAP_FAILED)
        return failed(swap, errno, "map the file", err);
    *array = (struct array){ .data = data, .size_bytes = size_bytes, .at = swap->end };
    swap->end += (size_bytes + ALIGN - 1) / ALIGN * ALIGN;
    remember(data, size_bytes);
    *out = data;
    return DCP_OK;
}

/* Nothing that waits is of an array that is gone. */
static void wait_until_written(struct swap *swap)
{
    pthread_mutex_lock(&swap->lock);
    while (swap->started && swap->n && !swap->ends)
        pthread_cond_wait(&swap->changed, &swap->lock);
    pthread_mutex_unlock(&swap->lock);
}

bool swap_drop(struct swap *swap, void *data)
{
    struct array *array = swap ? array_of(swap, data) : NULL;
    if (!array)
        return false;
    wait_until_written(swap);
    forget(array->data);
    munmap(array->data, array->size_bytes);
    /* The room is given back; where that cannot be done it stays until the end. */
    fallocate(swap->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)array->at,
              (off_t)array->size_bytes);
    *array = (struct array){ .data = NULL };
    return true;
}

/* The range with the whole pages that it lies in; of an array, or none. */
static bool range_of(struct swap *swap, const void *from, uint64_t size_bytes,
                     struct left *out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct array *array = swap ? array_of(swap, from) : NULL;
    if (!array || !size_bytes)
        return false;
    uint64_t at = (uint64_t)((const char *)from - array->data), begin = at / page * page;
    *out = (struct left){ .from = array->data + begin,
                          .size_bytes = at + size_bytes - begin,
                          .at = array->at + begin };
    return true;
}

void swap_want(struct swap *swap, const void *from, uint64_t size_bytes)
{
    struct left range;
    if (range_of(swap, from, size_bytes, &range))
        madvise(range.from, range.size_bytes, MADV_WILLNEED);
}

void swap_leave(struct swap *swap, const void *from, uint64_t size_bytes)
{
    struct left range;
    if (!range_of(swap, from, size_bytes, &range))
        return;
    pthread_mutex_lock(&swap->lock);
    while (swap->n == MAX_LEFT ||
           (swap->n && swap->left_bytes + range.size_bytes > swap->most_bytes))
        pthread_cond_wait(&swap->changed, &swap->lock);
    swap->left[(swap->first + swap->n++) % MAX_LEFT] = range;
    swap->left_bytes += range.size_bytes;
    pthread_cond_broadcast(&swap->changed);
    pthread_mutex_unlock(&swap->lock);
}
