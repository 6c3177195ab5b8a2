/* A file that claims to be a tar archive, plain or compressed: what is in it can be
 * listed, and read or refused. */
#include "base/fs.h"
#include "lib/fuzz_formats.h"
#include "lib/must.h"
#include <string.h>

#define MOST_BYTES ((uint64_t)1 << 20) /* files larger than this are read in part */
#define MOST_FILES 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* Reads the end of a file before its beginning, and not behind it. */
static void read_file(const struct dcp_store *store, const char *name, uint64_t size)
{
    static unsigned char out[MOST_BYTES];
    struct dcp_store_file *file;
    uint64_t begin = size > MOST_BYTES ? size - MOST_BYTES : 0;

    must(!store->ops->open(store->self, name, &file, NULL));
    for (int i = 0; i < 2; i++, begin = 0) {
        struct dcp_error err = { 0 };
        size_t n = (size_t)(size - begin < MOST_BYTES ? size - begin : MOST_BYTES);
        int rc = store->ops->read_at(store->self, file, begin, out, n, &err);
        must(!rc == !err.message[0]);
    }
    must(store->ops->read_at(store->self, file, size, out, 1, NULL) == DCP_E_CORRUPT);
    store->ops->close(store->self, file, NULL);
}

static void read_folder(const struct dcp_store *store, const char *dir, int depth,
                        int *left)
{
    struct dcp_store_entry *entries;
    size_t n;
    bool is_dir;
    uint64_t size;

    must(!store->ops->list(store->self, dir, &entries, &n, NULL));
    for (size_t i = 0; i<n && * left> 0; i++, (*left)--) {
        must(i == 0 || strcmp(entries[i - 1].name, entries[i].name) < 0);
        char *path = *dir ? dcp_fs_join(dir, entries[i].name) : strdup(entries[i].name);
        must(path && dcp_store_name_ok(path));
        must(!store->ops->stat(store->self, path, &is_dir, &size, NULL));
        must(is_dir == entries[i].is_dir && size == entries[i].size_bytes);
        if (!is_dir)
            read_file(store, path, size);
        else if (depth < 8)
            read_folder(store, path, depth + 1, left);
        free(path);
    }
    dcp_store_list_free(entries, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct dcp_store store, bundle;
    struct dcp_error err = { 0 };
    int left = MOST_FILES;

    fuzz_store(&store, "x", data, size_bytes);
    dcp_bundle_probe(&store, "x");
    int rc = dcp_store_bundle(&bundle, &store, "x", &err);
    must(!rc == !err.message[0]);
    if (rc) {
        dcp_store_free(&store);
        return 0;
    }
    read_folder(&bundle, "", 0, &left);
    dcp_store_free(&bundle);
    return 0;
}
