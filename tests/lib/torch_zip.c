/* torch_zip: made with the zip writer of formats/. */
#include "lib/torch_zip.h"
#include "base/hash.h"
#include "zip.h"
#include <stdlib.h>
#include <string.h>

unsigned char *torch_zip_make(const void *pickle, size_t size_bytes, const char *version,
                              const char *byteorder, size_t *out_size_bytes)
{
    unsigned char storage[TORCH_ZIP_STORAGE_BYTES];
    struct dcp_zip_out records[] = {
        { .name = "x/data.pkl", .data = pickle, .size_bytes = size_bytes },
        { .name = "x/version", .data = version, .size_bytes = strlen(version) },
        { .name = "x/data/0", .data = storage, .size_bytes = sizeof storage },
        { .name = "x/data/1", .data = storage, .size_bytes = sizeof storage },
        { .name = "x/data/2", .data = storage, .size_bytes = sizeof storage },
        { .name = "x/data/3", .data = storage, .size_bytes = 0 },
        { .name = "x/byteorder",
          .data = byteorder,
          .size_bytes = byteorder ? strlen(byteorder) : 0 },
    };
    size_t n = sizeof records / sizeof *records - !byteorder;
    struct dcp_catalog *catalog;
    struct dcp_literals literals = { 0 };
    uint64_t directory, total;

    for (size_t i = 0; i < sizeof storage; i++)
        storage[i] = (unsigned char)i;
    for (size_t i = 0; i < n; i++)
        records[i].crc32 = dcp_hash_crc32(0, records[i].data, records[i].size_bytes);
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
    *out_size_bytes = (size_t)total;
    return file;
}
