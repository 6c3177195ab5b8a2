#include "lib/packed_folder.h"
#include "base/bytes.h"
#include "lib/must.h"
#include "lib/torch_zip.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 64, MAX_NAME = 200, MAX_STORAGES = 512 };

/* The folders of a name. */
static void make_folders(const struct dcp_store *store, char *name)
{
    for (char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        store->ops->make_dir(store->self, name, NULL);
        *slash = '/';
    }
}

static void make_file(const struct dcp_store *store, char *name, const uint8_t *pickle,
                      size_t n, const uint32_t *sizes, size_t n_sizes)
{
    size_t len = strlen(name), size = n;
    unsigned char *zip = NULL;

    if (len > 3 && !strcmp(name + len - 3, ".pt") &&
        !(zip = torch_zip_storages(pickle, n, sizes, n_sizes, &size)))
        return;
    make_folders(store, name);
    dcp_store_write_file(store, name, zip ? zip : pickle, size, NULL);
    free(zip);
}

/* Reads one entry; false at the end, or where it is incomplete. */
static bool take_entry(struct dcp_cursor *c, const struct dcp_store *store)
{
    const uint8_t *rest = c->data + c->at;
    size_t left = dcp_cursor_left(c);
    const uint8_t *end = left ? memchr(rest, '\n', left) : NULL;
    uint32_t sizes[MAX_STORAGES];
    char name[MAX_NAME] = "";

    if (!end || end == rest || end - rest >= MAX_NAME)
        return false;
    memcpy(name, rest, (size_t)(end - rest));
    dcp_cursor_take(c, (size_t)(end - rest) + 1);
    uint32_t n = dcp_cursor_le32(c);
    const uint8_t *pickle = n <= dcp_cursor_left(c) ? dcp_cursor_take(c, n) : NULL;
    bool whole = pickle && dcp_cursor_left(c) >= 2;
    unsigned n_sizes = whole ? dcp_cursor_le16(c) : UINT16_MAX;
    if (n_sizes > MAX_STORAGES || dcp_cursor_left(c) < 4 * (size_t)n_sizes)
        return false;
    for (unsigned i = 0; i < n_sizes; i++)
        sizes[i] = dcp_cursor_le32(c);
    make_file(store, name, pickle, n, sizes, n_sizes);
    return true;
}

void packed_folder_open(struct dcp_store *out, const void *data, size_t size_bytes)
{
    struct dcp_cursor c = dcp_cursor_init(data, size_bytes);

    must(!dcp_store_mem(out, NULL));
    for (int i = 0; i < MAX_FILES && take_entry(&c, out); i++)
        continue;
}
