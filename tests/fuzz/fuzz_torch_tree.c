/* The data.pkl of a sound PyTorch file: the checksum does not stand between the fuzzer
 * and the code that reads tensors from the tree. */
#include "formats.h"
#include "lib/fuzz_formats.h"
#include "zip.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

enum { N_STORAGES = 4, STORAGE_BYTES = 64 };

/* A container with this pickle, a version and a few storages; caller frees. */
static unsigned char *make_file(const uint8_t *data, size_t size_bytes, size_t *out_size)
{
    static const unsigned char storage[STORAGE_BYTES] = { 1, 2, 3 };
    struct dcp_zip_out records[2 + N_STORAGES] = {
        { .name = "x/data.pkl", .data = data, .size_bytes = size_bytes },
        { .name = "x/version", .data = "3\n", .size_bytes = 2 },
        { .name = "x/data/0", .data = storage, .size_bytes = STORAGE_BYTES },
        { .name = "x/data/1", .data = storage, .size_bytes = STORAGE_BYTES },
        { .name = "x/data/2", .data = storage, .size_bytes = STORAGE_BYTES },
        { .name = "x/data/3", .data = storage, .size_bytes = 0 },
    };
    const size_t n = sizeof records / sizeof *records;
    struct dcp_catalog *catalog;
    struct dcp_literals literals = { 0 };
    uint64_t directory, total;

    dcp_zip_plan(records, n, 8, &directory, &total);
    unsigned char *file = calloc(1, (size_t)total);
    if (!file || dcp_catalog_new(&catalog, NULL) ||
        dcp_zip_write_headers(records, n, 0, catalog, &literals, NULL) ||
        dcp_zip_write_tail(records, n, directory, 0, catalog, &literals, NULL))
        abort();
    for (size_t i = 0; i < literals.n; i++)
        memcpy(file + literals.items[i].offset, literals.items[i].data,
               literals.items[i].size_bytes);
    dcp_catalog_free(catalog);
    *out_size = (size_t)total;
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct dcp_store store;
    size_t n;
    unsigned char *file = make_file(data, size_bytes, &n);

    fuzz_store(&store, "x", file, n);
    free(file);
    const struct dcp_source source = { .store = &store, .name = "x" };
    fuzz_format(&source, &dcp_format_torch);
    dcp_store_free(&store);
    return 0;
}
