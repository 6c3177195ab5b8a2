/* torch_zip: made with the zip writer of formats/. */
#include "lib/torch_zip.h"
#include "base/hash.h"
#include "formats/archive/zip.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *make(struct dcp_zip_out *records, size_t n, size_t *out_size_bytes)
{
    struct dcp_target target = { 0 };
    uint64_t directory, total;

    for (size_t i = 0; i < n; i++)
        records[i].crc32 = dcp_hash_crc32(0, records[i].data, records[i].size_bytes);
    dcp_zip_plan(records, n, 8, &directory, &total);
    unsigned char *file = calloc(1, (size_t)total);
    if (!file || dcp_catalog_new(&target.catalog, NULL) ||
        dcp_zip_write_headers(records, n, 0, &target, NULL) ||
        dcp_zip_write_tail(records, n, directory, 0, &target, NULL))
        abort();
    const struct dcp_literals *literals = &target.literals;
    for (size_t i = 0; i < literals->n; i++)
        memcpy(file + literals->items[i].offset, literals->items[i].data,
               literals->items[i].size_bytes);
    dcp_catalog_free(target.catalog);
    *out_size_bytes = (size_t)total;
    return file;
}

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
    for (size_t i = 0; i < sizeof storage; i++)
        storage[i] = (unsigned char)i;
    return make(records, sizeof records / sizeof *records - !byteorder, out_size_bytes);
}

unsigned char *torch_zip_storages(const void *pickle, size_t size_bytes,
                                  const uint32_t *sizes, size_t n_sizes,
                                  size_t *out_size_bytes)
{
    struct dcp_zip_out *records = calloc(n_sizes + 2, sizeof *records);
    char(*names)[32] = calloc(n_sizes, sizeof *names);
    uint32_t most = 0;
    uint64_t total = 0;

    for (size_t i = 0; i < n_sizes; i++) {
        total += sizes[i];
        most = sizes[i] > most ? sizes[i] : most;
    }
    unsigned char *zeros = total <= 4u << 20 ? calloc(1, (size_t)most + 1) : NULL;
    unsigned char *file = NULL;
    if (!records || (n_sizes && !names))
        abort();
    records[0] = (struct dcp_zip_out){ .name = "x/data.pkl",
                                       .data = pickle,
                                       .size_bytes = size_bytes };
    records[1] =
        (struct dcp_zip_out){ .name = "x/version", .data = "3\n", .size_bytes = 2 };
    for (size_t i = 0; i < n_sizes; i++) {
        snprintf(names[i], sizeof names[i], "x/data/%zu", i);
        records[2 + i] = (struct dcp_zip_out){ .name = names[i],
                                               .data = zeros,
                                               .size_bytes = sizes[i] };
    }
    if (zeros)
        file = make(records, n_sizes + 2, out_size_bytes);
    free(zeros);
    free(names);
    free(records);
    return file;
}
