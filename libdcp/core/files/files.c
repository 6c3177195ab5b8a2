#include "files.h"
#include "base/fs.h"
#include "base/mem.h"
#include <errno.h>
#include <string.h>

#define MAX_OPEN_FILES 32
/* Of the files that a process may have open a reader takes one in so many: others read,
 * too, and others write. */
#define SHARE_OF_FILES 64
#define MIN_WINDOW (64u << 10)

struct open_file {
    int file; /* in the catalog, -1: free */
    uint64_t used;
    struct dcp_store_file *handle;
};

/* What follows a small read in its file. A window a file, as far as memory goes: the
 * shards of a checkpoint are read in turn. */
struct window {
    int file; /* in the catalog, -1: empty */
    uint64_t at, n, used;
    unsigned char *data;
};

struct dcp_files {
    struct dcp_source source;
    const struct dcp_catalog *catalog;
    uint64_t clock, n_bytes;
    struct open_file open[MAX_OPEN_FILES];
    int n_slots; /* of these, as many as may be used */
    struct window *windows;
    size_t n_windows, window_bytes;
};

char *dcp_source_file(const struct dcp_source *source, const char *file)
{
    size_t dir = strlen(source->name);

    if (!source->is_dir) {
        const char *slash = strrchr(source->name, '/');
        dir = slash ? (size_t)(slash - source->name) : 0;
    }
    size_t n = strlen(file);
    char *path = malloc(dir + n + 2);
    if (!path)
        return NULL;
    if (dir) {
        memcpy(path, source->name, dir);
        path[dir++] = '/';
    }
    memcpy(path + dir, file, n + 1);
    return path;
}

/* As many windows as there are files, as large as the memory allows. */
static void size_windows(struct dcp_files *f, uint64_t memory_bytes)
{
    uint64_t n = f->catalog->n_files ? f->catalog->n_files : 1;
    uint64_t bytes = memory_bytes / n;

    bytes = bytes < MIN_WINDOW        ? MIN_WINDOW
            : bytes > DCP_BLOCK_BYTES ? DCP_BLOCK_BYTES
                                      : bytes;
    f->window_bytes = (size_t)bytes;
    f->n_windows = (size_t)(memory_bytes / bytes < n ? memory_bytes / bytes : n);
    if (f->n_windows == 0)
        f->n_windows = 1;
}

int dcp_files_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                  uint64_t memory_bytes, struct dcp_files **out_files,
                  struct dcp_error *err)
{
    struct dcp_files *f = calloc(1, sizeof *f);

    *out_files = NULL;
    if (!f)
        return dcp_error_memory(err, "a reader of files");
    f->source = *source;
    f->catalog = catalog;
    size_t most = dcp_fs_max_open() / SHARE_OF_FILES;
    f->n_slots = most < 1 ? 1 : most < MAX_OPEN_FILES ? (int)most : MAX_OPEN_FILES;
    for (int i = 0; i < f->n_slots; i++)
        f->open[i].file = -1;
    size_windows(f, memory_bytes);
    f->windows = dcp_mem_calloc(f->n_windows, sizeof *f->windows);
    if (!f->windows) {
        free(f);
        return dcp_error_memory(err, "a reader of files");
    }
    for (size_t i = 0; i < f->n_windows; i++)
        f->windows[i].file = -1;
    *out_files = f;
    return DCP_OK;
}

static void close_slot(struct dcp_files *f, struct open_file *slot)
{
    const struct dcp_store *store = f->source.store;

    if (slot->file >= 0)
        store->ops->close(store->self, slot->handle, NULL);
    slot->file = -1;
}

static void close_files(struct dcp_files *f)
{
    for (int i = 0; i < f->n_slots; i++)
        close_slot(f, &f->open[i]);
}

void dcp_files_free(struct dcp_files *f)
{
    if (!f)
        return;
    close_files(f);
    for (size_t i = 0; i < f->n_windows; i++)
        free(f->windows[i].data);
    free(f->windows);
    free(f);
}

void dcp_files_move(struct dcp_files *f, const struct dcp_store *store)
{
    close_files(f);
    for (size_t i = 0; i < f->n_windows; i++)
        f->windows[i].file = -1;
    f->source.store = store;
}

uint64_t dcp_files_bytes(const struct dcp_files *f)
{
    return f->n_bytes;
}

/* The slot that was used least: one that is free, if there is one. */
static struct open_file *least_used(struct dcp_files *f, bool open_only)
{
    struct open_file *found = NULL;

    for (int i = 0; i < f->n_slots; i++) {
        struct open_file *slot = &f->open[i];
        if (slot->file < 0 && open_only)
            continue;
        if (!found || slot->file < 0 || (found->file >= 0 && slot->used < found->used))
            found = slot;
    }
    return found;
}

/* A process that may have no more files open goes on with fewer of these. */
static int open_at(struct dcp_files *f, const char *path, struct dcp_store_file **out,
                   struct dcp_error *err)
{
    const struct dcp_store *store = f->source.store;
    struct dcp_error why;
    struct open_file *spare;
    int rc;

    for (;;) {
        why = (struct dcp_error){ 0 };
        rc = store->ops->open(store->self, path, out, &why);
        bool too_many = why.sys_errno == EMFILE || why.sys_errno == ENFILE;
        spare = rc && too_many ? least_used(f, true) : NULL;
        if (!spare)
            break;
        close_slot(f, spare);
    }
    if (rc && err)
        *err = why;
    return rc;
}

static int open_file(struct dcp_files *f, int file, struct dcp_store_file **out,
                     struct dcp_error *err)
{
    for (int i = 0; i < f->n_slots; i++)
        if (f->open[i].file == file) {
            f->open[i].used = ++f->clock;
            *out = f->open[i].handle;
            return DCP_OK;
        }
    DCP_CLEANUP_FREE char *path =
        dcp_source_file(&f->source, f->catalog->files[file].name);
    if (!path)
        return dcp_error_memory(err, "a file name");
    struct open_file *slot = least_used(f, false);
    close_slot(f, slot);
    DCP_TRY(open_at(f, path, &slot->handle, err));
    slot->file = file;
    slot->used = ++f->clock;
    *out = slot->handle;
    return DCP_OK;
}

int dcp_files_read(struct dcp_files *f, int file, uint64_t offset, size_t n, void *out,
                   struct dcp_error *err)
{
    const struct dcp_store *store = f->source.store;
    struct dcp_store_file *handle = NULL;

    DCP_TRY(open_file(f, file, &handle, err));
    f->n_bytes += n;
    return store->ops->read_at(store->self, handle, offset, out, n, err);
}

static struct window *window_of(struct dcp_files *f, int file)
{
    struct window *victim = &f->windows[0];

    for (size_t i = 0; i < f->n_windows; i++) {
        if (f->windows[i].file == file)
            return &f->windows[i];
        if (f->windows[i].used < victim->used)
            victim = &f->windows[i];
    }
    victim->file = -1;
    return victim;
}

/* How much is read at once: more each time that a reader goes on where it was, little
 * where it jumps, so that who reads small parts of a file in another order does not read
 * the file once for each. */
static size_t ahead(const struct dcp_files *f, const struct window *window, int file,
                    uint64_t offset, size_t n)
{
    uint64_t end = window->at + window->n;
    bool goes_on =
        window->file == file && offset >= window->at && offset <= end + window->n;
    size_t want = 4 * n, twice = goes_on ? 2 * (size_t)window->n : MIN_WINDOW;

    want = want > twice ? want : twice;
    return want < f->window_bytes ? want : f->window_bytes;
}

/* Moves a window to `offset`, for n bytes and what follows; what it has of that stays. */
static int move(struct dcp_files *f, struct window *window, int file, uint64_t offset,
                size_t n, struct dcp_error *err)
{
    uint64_t left = f->catalog->files[file].size_bytes - offset;
    uint64_t want = ahead(f, window, file, offset, n);
    uint64_t end = window->at + window->n;
    size_t kept = 0;

    if (window->file == file && offset >= window->at && offset < end) {
        kept = (size_t)(end - offset);
        memmove(window->data, window->data + (offset - window->at), kept);
    }
    window->file = -1;
    window->n = left < want ? left : want;
    window->at = offset;
    DCP_TRY(dcp_files_read(f, file, offset + kept, (size_t)window->n - kept,
                           window->data + kept, err));
    window->file = file;
    return DCP_OK;
}

int dcp_files_read_ahead(struct dcp_files *f, int file, uint64_t offset, size_t n,
                         void *out, struct dcp_error *err)
{
    uint64_t size = f->catalog->files[file].size_bytes;

    if (n >= f->window_bytes / 4 || offset >= size || n > size - offset)
        return dcp_files_read(f, file, offset, n, out, err);
    struct window *window = window_of(f, file);
    if (!window->data && !(window->data = malloc(f->window_bytes)))
        return dcp_error_memory(err, "a window of a file");
    if (window->file < 0 || offset < window->at || offset + n > window->at + window->n)
        DCP_TRY(move(f, window, file, offset, n, err));
    window->used = ++f->clock;
    memcpy(out, window->data + (offset - window->at), n);
    return DCP_OK;
}
