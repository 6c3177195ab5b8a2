/* The description of a parity file, and what is done with a step that has nothing but
 * that file: byte 0 says how much of the input is description, the rest lies behind it.
 */
#include "base/buf.h"
#include "core/parity/parity.h"
#include "core/parity/reconstruction.h"
#include "lib/must.h"
#include <string.h>

#include <dcp/dcp.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEP "step-00000001"

static void write_parity(const struct dcp_store *store, const struct dcp_parity *parity,
                         const uint8_t *rest, size_t n)
{
    DCP_CLEANUP_BUF struct dcp_buf file = { 0 };
    char name[64], path[128];

    dcp_parity_name(parity, 0, 0, name);
    snprintf(path, sizeof path, STEP "/%s", name);
    dcp_parity_head(parity, &file);
    dcp_buf_add(&file, rest, n);
    must(!file.failed);
    must(store->ops->make_dir(store->self, STEP, NULL) == 0);
    must(dcp_store_write_file(store, path, file.data, file.size_bytes, NULL) == 0);
}

/* Reads the beginning and the end of every file through its parity. */
static void read_reconstructed(const struct dcp_reconstruction *rebuilt)
{
    const struct dcp_parity *parity = dcp_reconstruction_parity(rebuilt);
    const struct dcp_store *store = dcp_reconstruction_store(rebuilt);
    struct dcp_store_file *file;
    unsigned char bytes[16];
    char path[512];

    for (size_t f = 0; f < parity->n_files && f < 8; f++) {
        uint64_t end = parity->files[f].size_bytes;
        if (snprintf(path, sizeof path, STEP "/%s", parity->files[f].name) >=
                (int)sizeof path ||
            store->ops->open(store->self, path, &file, NULL))
            continue;
        store->ops->read_at(store->self, file, 0, bytes, end < 16 ? (size_t)end : 16,
                            NULL);
        if (end > 16)
            store->ops->read_at(store->self, file, end - 16, bytes, 16, NULL);
        store->ops->close(store->self, file, NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dcp_parity *parity;
    struct dcp_store store;
    struct dcp_reconstruction *rebuilt;

    if (!size || size > 1 << 16)
        return 0;
    size_t n = data[0] == 255 ? size - 1 : (size - 1) * data[0] / 255;
    if (dcp_parity_parse((const char *)data + 1, n, &parity, NULL))
        return 0;
    must(dcp_store_mem(&store, NULL) == 0);
    write_parity(&store, parity, data + 1 + n, size - 1 - n);
    if (!dcp_reconstruction_open(&store, STEP, &rebuilt, NULL)) {
        read_reconstructed(rebuilt);
        dcp_reconstruction_free(rebuilt);
    }
    dcp_repair(&store, STEP, &(struct dcp_repair_options){ .threads = 1 }, NULL, NULL);
    dcp_parity_free(parity);
    dcp_store_free(&store);
    return 0;
}
