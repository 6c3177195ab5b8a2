/* A store in memory that knows what a power cut would leave.
 *
 * Every file has its bytes and those of its last sync; every folder its names and those
 * of its last sync. A crash goes back to the second of each, from the root down. That is
 * the least POSIX promises: real file systems often keep more. */
#include "mem.h"

#include "base/mem.h"
#include "base/size.h"
#include "base/str.h"
#include "node.h"
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#define ROOT_NAME "memory"

struct mem {
    pthread_mutex_t lock; /* guards everything */
    struct dcp_node *root;
    uint64_t limit_bytes;
    bool locked;
};

struct dcp_store_file {
    struct dcp_node *node;
    bool lost;
};

/* --- names to nodes --- */

static int no_memory(const char *name, struct dcp_error *err)
{
    return dcp_error_memory(err, name);
}

static int fail(int code, const char *act, const char *name, const char *why,
                struct dcp_error *err)
{
    return dcp_error_set(err, code, "cannot %s '%s%s%s': %s", act, ROOT_NAME,
                         *name ? "/" : "", name, why);
}

static int not_found(const char *act, const char *name, struct dcp_error *err)
{
    return fail(DCP_E_NOT_FOUND, act, name, "there is no such name", err);
}

/* The folder of the first n bytes of a name, or NULL. */
static struct dcp_node *find_folder(const struct mem *mem, const char *name, size_t n)
{
    struct dcp_node *node = mem->root;
    while (node && n) {
        size_t length = strcspn(name, "/");
        if (length > n)
            length = n;
        node = dcp_node_find(node, name, length);
        if (node && !node->is_dir)
            node = NULL;
        length += length < n; /* the '/' */
        name += length;
        n -= length;
    }
    return node;
}

/* The folder a name stands in and its last part; NOT_FOUND without that folder. */
static int find_parent(const struct mem *mem, const char *act, const char *name,
                       struct dcp_node **out_parent, const char **out_last,
                       struct dcp_error *err)
{
    if (!dcp_store_name_ok(name))
        return fail(DCP_E_IO, act, name, "a name must be plain parts joined by '/'", err);
    const char *slash = strrchr(name, '/');
    *out_last = slash ? slash + 1 : name;
    *out_parent = find_folder(mem, name, slash ? (size_t)(slash - name) : 0);
    return *out_parent ? DCP_OK : not_found(act, name, err);
}

/* The node of a name ("" is the root). */
static int find_node(const struct mem *mem, const char *act, const char *name,
                     struct dcp_node **out, struct dcp_error *err)
{
    struct dcp_node *parent;
    const char *last;
    *out = mem->root;
    if (!*name)
        return DCP_OK;
    DCP_TRY(find_parent(mem, act, name, &parent, &last, err));
    *out = dcp_node_find(parent, last, strlen(last));
    return *out ? DCP_OK : not_found(act, name, err);
}

static int find_dir(const struct mem *mem, const char *act, const char *name,
                    struct dcp_node **out, struct dcp_error *err)
{
    int rc = find_node(mem, act, name, out, err);
    if (!rc && !(*out)->is_dir)
        rc = fail(DCP_E_IO, act, name, "it is not a folder", err);
    return rc;
}

/* --- space --- */

static uint64_t free_bytes(const struct mem *mem)
{
    if (mem->limit_bytes == UINT64_MAX)
        return UINT64_MAX;
    uint64_t used = dcp_node_used(mem->root);
    return used < mem->limit_bytes ? mem->limit_bytes - used : 0;
}

static int check_space(const struct mem *mem, const char *name, uint64_t wanted,
                       struct dcp_error *err)
{
    uint64_t left = free_bytes(mem);
    char need[DCP_SIZE_CAP], room[DCP_SIZE_CAP];

    if (wanted <= left)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_NO_SPACE, "'%s/%s' needs %s, %s are free", ROOT_NAME,
                         name, dcp_size_format(need, wanted),
                         dcp_size_format(room, left));
}

/* --- operations; each holds the lock --- */

static int list_locked(const struct mem *mem, const char *name,
                       struct dcp_store_entry **out, size_t *out_n, struct dcp_error *err)
{
    struct dcp_node *dir;
    int rc = find_dir(mem, "list", name, &dir, err);
    if (rc || !dir->names.n)
        return rc;
    struct dcp_store_entry *entries = dcp_mem_calloc(dir->names.n, sizeof *entries);
    if (!entries)
        return no_memory(name, err);
    for (size_t i = 0; i < dir->names.n; i++) {
        const struct dcp_node *node = dir->names.entries[i].node;
        entries[i].name = strdup(dir->names.entries[i].name);
        entries[i].is_dir = node->is_dir;
        entries[i].size_bytes = node->now.size;
        if (!entries[i].name) {
            dcp_store_list_free(entries, i);
            return no_memory(name, err);
        }
    }
    *out = entries;
    *out_n = dir->names.n;
    return DCP_OK;
}

static int mem_list(void *self, const char *name, struct dcp_store_entry **out,
                    size_t *out_n, struct dcp_error *err)
{
    struct mem *mem = self;
    *out = NULL;
    *out_n = 0;
    pthread_mutex_lock(&mem->lock);
    int rc = list_locked(mem, name, out, out_n, err);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int mem_stat(void *self, const char *name, bool *out_is_dir,
                    uint64_t *out_size_bytes, struct dcp_error *err)
{
    struct mem *mem = self;
    struct dcp_node *node;
    pthread_mutex_lock(&mem->lock);
    int rc = find_node(mem, "look at", name, &node, err);
    if (!rc) {
        *out_is_dir = node->is_dir;
        *out_size_bytes = node->now.size;
    }
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

/* A handle with a reference to its node. */
static struct dcp_store_file *file_new(struct dcp_node *node)
{
    struct dcp_store_file *file = calloc(1, sizeof *file);
    if (file) {
        file->node = node;
        node->n_refs++;
    }
    return file;
}

static int mem_open(void *self, const char *name, struct dcp_store_file **out,
                    struct dcp_error *err)
{
    struct mem *mem = self;
    struct dcp_node *node;
    *out = NULL;
    pthread_mutex_lock(&mem->lock);
    int rc = find_node(mem, "open", name, &node, err);
    if (!rc && node->is_dir)
        rc = fail(DCP_E_IO, "open", name, "it is a folder", err);
    if (!rc && !(*out = file_new(node)))
        rc = no_memory(name, err);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

/* Adds a new node under a name that must not exist. The caller keeps its reference. */
static int add_new(const struct mem *mem, const char *act, const char *name,
                   struct dcp_node *node, struct dcp_error *err)
{
    struct dcp_node *parent;
    const char *last;
    DCP_TRY(find_parent(mem, act, name, &parent, &last, err));
    if (dcp_node_find(parent, last, strlen(last)))
        return fail(DCP_E_EXISTS, act, name, "it already exists", err);
    return dcp_node_put(parent, last, node) ? DCP_OK : no_memory(name, err);
}

static int mem_create(void *self, const char *name, uint64_t size_bytes,
                      struct dcp_store_file **out, struct dcp_error *err)
{
    struct mem *mem = self;
    *out = NULL;
    struct dcp_node *node = dcp_node_new(false);
    struct dcp_store_file *file = node ? file_new(node) : NULL;
    bool made = file && size_bytes <= SIZE_MAX - 1;
    pthread_mutex_lock(&mem->lock);
    int rc = made ? DCP_OK : no_memory(name, err);
    if (!rc)
        rc = check_space(mem, name, size_bytes, err);
    if (!rc && !dcp_node_resize(node, (size_t)size_bytes))
        rc = no_memory(name, err);
    if (!rc)
        rc = add_new(mem, "create", name, node, err);
    if (rc && file)
        dcp_node_drop(node); /* the file's reference */
    dcp_node_drop(node);
    pthread_mutex_unlock(&mem->lock);
    if (rc) {
        free(file);
        return rc;
    }
    *out = file;
    return DCP_OK;
}

static int check_lost(const struct dcp_store_file *file, struct dcp_error *err)
{
    return file->lost
               ? dcp_error_set(err, DCP_E_IO,
                               "a file in '%s' is lost: an earlier write or sync failed",
                               ROOT_NAME)
               : DCP_OK;
}

static int mem_read_at(void *self, struct dcp_store_file *file, uint64_t offset,
                       void *out, size_t size_bytes, struct dcp_error *err)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    const struct dcp_node_bytes *now = &file->node->now;
    int rc = check_lost(file, err);
    if (!rc && (offset > now->size || size_bytes > now->size - offset))
        rc = dcp_error_set(err, DCP_E_CORRUPT,
                           "a file in '%s' has %zu bytes, where %zu bytes at %" PRIu64
                           " were to be read",
                           ROOT_NAME, now->size, size_bytes, offset);
    if (!rc && size_bytes)
        memcpy(out, now->data + offset, size_bytes);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int mem_write_at(void *self, struct dcp_store_file *file, uint64_t offset,
                        const void *data, size_t size_bytes, struct dcp_error *err)
{
    struct mem *mem = self;
    uint64_t end;
    pthread_mutex_lock(&mem->lock);
    struct dcp_node_bytes *now = &file->node->now;
    int rc = check_lost(file, err);
    if (!rc && (!dcp_add_u64(offset, size_bytes, &end) || end >= SIZE_MAX))
        rc = no_memory("a file", err);
    if (!rc && end > now->size)
        rc = check_space(mem, "a file", end - now->size, err);
    if (!rc && end > now->size && !dcp_node_resize(file->node, (size_t)end))
        rc = no_memory("a file", err);
    if (!rc && size_bytes)
        memcpy(now->data + offset, data, size_bytes);
    file->lost = file->lost || rc;
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int mem_sync(void *self, struct dcp_store_file *file, uint64_t size_bytes,
                    struct dcp_error *err)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    struct dcp_node *node = file->node;
    int rc = check_lost(file, err);
    if (!rc && size_bytes > node->now.size)
        rc = check_space(mem, "a file", size_bytes - node->now.size, err);
    if (!rc && (size_bytes >= SIZE_MAX || !dcp_node_resize(node, (size_t)size_bytes) ||
                !dcp_node_sync(node)))
        rc = no_memory("a file", err);
    file->lost = file->lost || rc;
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int mem_close(void *self, struct dcp_store_file *file, struct dcp_error *err)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    int rc = check_lost(file, err);
    dcp_node_drop(file->node);
    pthread_mutex_unlock(&mem->lock);
    free(file);
    return rc;
}

static int mem_make_dir(void *self, const char *name, struct dcp_error *err)
{
    struct mem *mem = self;
    struct dcp_node *node = dcp_node_new(true);
    pthread_mutex_lock(&mem->lock);
    int rc = node ? add_new(mem, "make folder", name, node, err) : no_memory(name, err);
    dcp_node_drop(node);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int mem_sync_dir(void *self, const char *name, struct dcp_error *err)
{
    struct mem *mem = self;
    struct dcp_node *dir;
    pthread_mutex_lock(&mem->lock);
    int rc = find_dir(mem, "sync folder", name, &dir, err);
    if (!rc && !dcp_node_sync(dir))
        rc = no_memory(name, err);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int publish_locked(const struct mem *mem, const char *from, const char *to,
                          struct dcp_error *err)
{
    struct dcp_node *from_dir, *to_dir;
    const char *from_last, *to_last;
    DCP_TRY(find_parent(mem, "publish", from, &from_dir, &from_last, err));
    DCP_TRY(find_parent(mem, "publish", to, &to_dir, &to_last, err));
    struct dcp_node *node = dcp_node_find(from_dir, from_last, strlen(from_last));
    if (!node)
        return not_found("publish", from, err);
    if (dcp_node_find(to_dir, to_last, strlen(to_last)))
        return fail(DCP_E_EXISTS, "publish", to, "it already exists", err);
    size_t n = strlen(from);
    if (dcp_str_starts(to, from) && to[n] == '/')
        return fail(DCP_E_IO, "publish", to, "a folder cannot go into itself", err);
    if (!dcp_node_put(to_dir, to_last, node))
        return no_memory(to, err);
    dcp_node_remove(from_dir, from_last);
    if (!dcp_node_sync(to_dir) || !dcp_node_sync(from_dir))
        return no_memory(to, err);
    return DCP_OK;
}

static int mem_publish(void *self, const char *from, const char *to,
                       struct dcp_error *err)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    int rc = publish_locked(mem, from, to, err);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int exchange_locked(const struct mem *mem, const char *name, const char *other,
                           struct dcp_error *err)
{
    struct dcp_node *dir, *other_dir, *node, *other_node;
    const char *last, *other_last;
    DCP_TRY(find_parent(mem, "exchange", name, &dir, &last, err));
    DCP_TRY(find_parent(mem, "exchange", other, &other_dir, &other_last, err));
    DCP_TRY(find_node(mem, "exchange", name, &node, err));
    DCP_TRY(find_node(mem, "exchange", other, &other_node, err));
    node->n_refs++; /* while it has no name */
    bool done =
        dcp_node_put(dir, last, other_node) && dcp_node_put(other_dir, other_last, node);
    dcp_node_drop(node);
    done = done && dcp_node_sync(other_dir) && dcp_node_sync(dir);
    return done ? DCP_OK : no_memory(other, err);
}

static int mem_exchange(void *self, const char *name, const char *other,
                        struct dcp_error *err)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    int rc = exchange_locked(mem, name, other, err);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int replace_locked(const struct mem *mem, const char *name, struct dcp_node *node,
                          struct dcp_error *err)
{
    struct dcp_node *parent;
    const char *last;
    DCP_TRY(find_parent(mem, "replace", name, &parent, &last, err));
    DCP_TRY(check_space(mem, name, node->now.size, err));
    const struct dcp_node *old = dcp_node_find(parent, last, strlen(last));
    if (old && old->is_dir)
        return fail(DCP_E_IO, "replace", name, "it is a folder", err);
    if (!dcp_node_put(parent, last, node))
        return no_memory(name, err);
    return dcp_node_sync(parent) ? DCP_OK : no_memory(name, err);
}

static int mem_replace(void *self, const char *name, const void *data, size_t size_bytes,
                       struct dcp_error *err)
{
    struct mem *mem = self;
    struct dcp_node *node = dcp_node_new(false);
    if (!node || !dcp_node_resize(node, size_bytes)) {
        dcp_node_drop(node);
        return no_memory(name, err);
    }
    if (size_bytes)
        memcpy(node->now.data, data, size_bytes);
    int rc = dcp_node_sync(node) ? DCP_OK : no_memory(name, err);
    pthread_mutex_lock(&mem->lock);
    if (!rc)
        rc = replace_locked(mem, name, node, err);
    dcp_node_drop(node);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int mem_remove(void *self, const char *name, struct dcp_error *err)
{
    struct mem *mem = self;
    struct dcp_node *parent;
    const char *last;
    pthread_mutex_lock(&mem->lock);
    int rc = find_parent(mem, "remove", name, &parent, &last, err);
    if (!rc && !dcp_node_find(parent, last, strlen(last)))
        rc = not_found("remove", name, err);
    if (!rc)
        dcp_node_remove(parent, last);
    pthread_mutex_unlock(&mem->lock);
    return rc;
}

static int mem_lock(void *self, struct dcp_error *err)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    bool busy = mem->locked;
    mem->locked = true;
    pthread_mutex_unlock(&mem->lock);
    return busy ? dcp_error_set(err, DCP_E_BUSY, "'%s' is in use by this process",
                                ROOT_NAME)
                : DCP_OK;
}

static void mem_unlock(void *self)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    mem->locked = false;
    pthread_mutex_unlock(&mem->lock);
}

static uint64_t mem_free_bytes(void *self)
{
    struct mem *mem = self;
    pthread_mutex_lock(&mem->lock);
    uint64_t bytes = free_bytes(mem);
    pthread_mutex_unlock(&mem->lock);
    return bytes;
}

static void mem_free(void *self)
{
    struct mem *mem = self;
    dcp_node_drop(mem->root);
    pthread_mutex_destroy(&mem->lock);
    free(mem);
}

static const struct dcp_store_ops mem_ops = {
    .list = mem_list,
    .stat = mem_stat,
    .open = mem_open,
    .reopen = mem_open,
    .create = mem_create,
    .read_at = mem_read_at,
    .write_at = mem_write_at,
    .sync = mem_sync,
    .close = mem_close,
    .make_dir = mem_make_dir,
    .sync_dir = mem_sync_dir,
    .publish = mem_publish,
    .exchange = mem_exchange,
    .replace = mem_replace,
    .remove = mem_remove,
    .lock = mem_lock,
    .unlock = mem_unlock,
    .free_bytes = mem_free_bytes,
    .free = mem_free,
};

int dcp_store_mem(struct dcp_store *out_store, struct dcp_error *err)
{
    *out_store = (struct dcp_store){ 0 };
    struct mem *mem = calloc(1, sizeof *mem);
    struct dcp_node *root = dcp_node_new(true);
    if (!mem || !root) {
        free(mem);
        dcp_node_drop(root);
        return no_memory("a store in memory", err);
    }
    *mem = (struct mem){ .root = root, .limit_bytes = UINT64_MAX };
    pthread_mutex_init(&mem->lock, NULL);
    *out_store = (struct dcp_store){ .ops = &mem_ops, .self = mem, .root = ROOT_NAME };
    return DCP_OK;
}

void dcp_store_mem_limit(struct dcp_store *store, uint64_t bytes)
{
    struct mem *mem = store->self;
    pthread_mutex_lock(&mem->lock);
    mem->limit_bytes = bytes;
    pthread_mutex_unlock(&mem->lock);
}

int dcp_store_mem_crash(struct dcp_store *store, struct dcp_error *err)
{
    struct mem *mem = store->self;
    pthread_mutex_lock(&mem->lock);
    mem->locked = false;
    bool done = dcp_node_crash(mem->root);
    pthread_mutex_unlock(&mem->lock);
    return done ? DCP_OK : no_memory("a crash", err);
}
