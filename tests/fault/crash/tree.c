#include "base/fs.h"
#include "lib/must.h"
#include "model.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void tree_free(struct tree *tree)
{
    for (size_t i = 0; i < tree->n; i++) {
        free(tree->items[i].path);
        free(tree->items[i].data);
    }
    free(tree->items);
    *tree = (struct tree){ 0 };
}

/* FNV-1a, eight bytes at a time. */
static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *at = data;

    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x100000001B3u;
        hash ^= hash >> 29;
    }
    for (; size; at++, size--)
        hash = (hash ^ *at) * 0x100000001B3u;
    return hash;
}

uint64_t tree_hash(const struct tree *tree)
{
    uint64_t hash = 0xCBF29CE484222325u;

    for (size_t i = 0; i < tree->n; i++) {
        const struct tree_item *item = &tree->items[i];
        uint64_t facts[2] = { item->is_dir, item->size };
        hash = mix(hash, item->path, strlen(item->path) + 1);
        hash = mix(hash, facts, sizeof facts);
        if (item->size)
            hash = mix(hash, item->data, item->size);
    }
    return hash;
}

const struct tree_item *tree_find(const struct tree *tree, const char *path)
{
    for (size_t i = 0; i < tree->n; i++)
        if (!strcmp(tree->items[i].path, path))
            return &tree->items[i];
    return NULL;
}

/* What follows a path in the path of an item below it, or is the path; else NULL. */
static const char *below(const char *path, const char *item)
{
    size_t n = strlen(path);

    if (strncmp(item, path, n) || (item[n] && item[n] != '/'))
        return NULL;
    return item + n;
}

static size_t next_below(const struct tree *tree, const char *path, size_t i)
{
    while (i < tree->n && !below(path, tree->items[i].path))
        i++;
    return i;
}

bool tree_same(const struct tree *a, const char *a_path, const struct tree *b,
               const char *b_path)
{
    size_t i = next_below(a, a_path, 0), j = next_below(b, b_path, 0);

    while (i < a->n && j < b->n) {
        const struct tree_item *x = &a->items[i], *y = &b->items[j];
        if (strcmp(below(a_path, x->path), below(b_path, y->path)) ||
            x->is_dir != y->is_dir || x->size != y->size ||
            (x->size && memcmp(x->data, y->data, x->size) != 0))
            return false;
        i = next_below(a, a_path, i + 1);
        j = next_below(b, b_path, j + 1);
    }
    return i >= a->n && j >= b->n;
}

static bool read_into(struct tree *tree, const char *folder, const char *path)
{
    char full[2048], below[1024];
    struct stat st;

    snprintf(full, sizeof full, "%s%s%s", folder, *path ? "/" : "", path);
    if (stat(full, &st))
        return false;
    tree->items = realloc(tree->items, (tree->n + 1) * sizeof *tree->items);
    must(tree->items);
    struct tree_item *item = &tree->items[tree->n++];
    *item = (struct tree_item){ .path = strdup(path), .is_dir = S_ISDIR(st.st_mode) };
    if (!item->is_dir) {
        void *data;
        int rc = dcp_fs_read_file(full, (size_t)1 << 30, &data, &item->size, NULL);
        item->data = rc ? NULL : data;
        return !rc;
    }
    DIR *dir = opendir(full);
    const struct dirent *entry;
    bool fine = dir != NULL;
    while (fine && (entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", entry->d_name);
        fine = read_into(tree, folder, below);
    }
    if (dir)
        closedir(dir);
    return fine;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct tree_item *)a)->path,
                  ((const struct tree_item *)b)->path);
}

bool tree_read(struct tree *tree, const char *folder)
{
    *tree = (struct tree){ 0 };
    bool fine = read_into(tree, folder, "");
    qsort(tree->items, tree->n, sizeof *tree->items, by_path);
    return fine;
}

bool tree_write(const struct tree *tree, const char *folder)
{
    char path[2048];

    for (size_t i = 0; i < tree->n; i++) {
        const struct tree_item *item = &tree->items[i];
        snprintf(path, sizeof path, "%s%s%s", folder, *item->path ? "/" : "", item->path);
        if (item->is_dir) {
            if (mkdir(path, 0777))
                return false;
            continue;
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0)
            return false;
        int rc = dcp_fs_write_at(fd, item->data, item->size, 0);
        if (close(fd) || rc)
            return false;
    }
    return true;
}
