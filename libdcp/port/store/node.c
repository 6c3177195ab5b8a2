#include "node.h"

#include "base/mem.h"
#include <string.h>

struct dcp_node *dcp_node_new(bool is_dir)
{
    struct dcp_node *node = calloc(1, sizeof *node);
    if (node) {
        node->n_refs = 1;
        node->is_dir = is_dir;
    }
    return node;
}

static void names_clear(struct dcp_node_names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        dcp_node_drop(names->entries[i].node);
        free(names->entries[i].name);
    }
    free(names->entries);
    *names = (struct dcp_node_names){ 0 };
}

void dcp_node_drop(struct dcp_node *node)
{
    if (!node || --node->n_refs > 0)
        return;
    names_clear(&node->names);
    names_clear(&node->durable);
    free(node->now.data);
    free(node->synced.data);
    free(node);
}

/* As strcmp, with the first n bytes of a name. */
static int compare(const char *entry, const char *name, size_t n)
{
    int order = strncmp(entry, name, n);
    return order ? order : entry[n] != '\0';
}

/* Where a name of n bytes stands, or would stand. */
static size_t find_place(const struct dcp_node_names *names, const char *name, size_t n,
                         bool *out_found)
{
    size_t low = 0, high = names->n;
    *out_found = false;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = compare(names->entries[mid].name, name, n);
        if (order < 0) {
            low = mid + 1;
        } else {
            high = mid;
            *out_found = *out_found || order == 0;
        }
    }
    return low;
}

struct dcp_node *dcp_node_find(const struct dcp_node *dir, const char *name, size_t n)
{
    bool found;
    size_t at = find_place(&dir->names, name, n, &found);
    return found ? dir->names.entries[at].node : NULL;
}

static bool names_put(struct dcp_node_names *names, const char *name,
                      struct dcp_node *node)
{
    bool found;
    size_t at = find_place(names, name, strlen(name), &found);
    if (!found) {
        struct dcp_node_entry *entries =
            dcp_mem_grow(names->entries, &names->cap, names->n + 1, sizeof *entries);
        if (!entries)
            return false;
        names->entries = entries;
        char *copy = strdup(name);
        if (!copy)
            return false;
        memmove(entries + at + 1, entries + at, (names->n - at) * sizeof *entries);
        entries[at] = (struct dcp_node_entry){ .name = copy };
        names->n++;
    }
    node->n_refs++;
    dcp_node_drop(names->entries[at].node);
    names->entries[at].node = node;
    return true;
}

bool dcp_node_put(struct dcp_node *dir, const char *name, struct dcp_node *node)
{
    return names_put(&dir->names, name, node);
}

void dcp_node_remove(struct dcp_node *dir, const char *name)
{
    struct dcp_node_names *names = &dir->names;
    bool found;
    size_t at = find_place(names, name, strlen(name), &found);
    if (!found)
        return;
    dcp_node_drop(names->entries[at].node);
    free(names->entries[at].name);
    names->n--;
    memmove(names->entries + at, names->entries + at + 1,
            (names->n - at) * sizeof *names->entries);
}

static bool names_copy(struct dcp_node_names *to, const struct dcp_node_names *from)
{
    struct dcp_node_names copy = { 0 };
    for (size_t i = 0; i < from->n; i++)
        if (!names_put(&copy, from->entries[i].name, from->entries[i].node)) {
            names_clear(&copy);
            return false;
        }
    names_clear(to);
    *to = copy;
    return true;
}

static bool bytes_resize(struct dcp_node_bytes *bytes, size_t size)
{
    unsigned char *data = dcp_mem_grow(bytes->data, &bytes->cap, size, 1);
    if (!data)
        return false;
    bytes->data = data;
    if (size > bytes->size)
        memset(data + bytes->size, 0, size - bytes->size);
    bytes->size = size;
    return true;
}

static bool bytes_copy(struct dcp_node_bytes *to, const struct dcp_node_bytes *from)
{
    if (!bytes_resize(to, from->size))
        return false;
    if (from->size)
        memcpy(to->data, from->data, from->size);
    return true;
}

bool dcp_node_resize(struct dcp_node *file, size_t size)
{
    return bytes_resize(&file->now, size);
}

bool dcp_node_sync(struct dcp_node *node)
{
    return node->is_dir ? names_copy(&node->durable, &node->names)
                        : bytes_copy(&node->synced, &node->now);
}

bool dcp_node_crash(struct dcp_node *node)
{
    if (!node->is_dir)
        return bytes_copy(&node->now, &node->synced);
    bool done = names_copy(&node->names, &node->durable);
    for (size_t i = 0; done && i < node->names.n; i++)
        done = dcp_node_crash(node->names.entries[i].node);
    return done;
}

uint64_t dcp_node_used(const struct dcp_node *node)
{
    uint64_t used = node->now.size;
    for (size_t i = 0; i < node->names.n; i++)
        used += dcp_node_used(node->names.entries[i].node);
    return used;
}
