/* fuzz_formats: read, check, write, read again. */
#include "lib/fuzz_formats.h"
#include "lib/format_io.h"
#include <dcp/reshard.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TENSOR_BYTES (1u << 20)
#define MAX_TOTAL_BYTES (4u << 20)

#define CHECK(condition, err)                                                  \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
                    (err)->message);                                           \
            abort();                                                           \
        }                                                                      \
    } while (0)

void fuzz_store(struct dcp_store *out, const char *name, const void *data,
                size_t size_bytes)
{
    struct dcp_error err = { 0 };

    CHECK(!dcp_store_mem(out, &err), &err);
    CHECK(!dcp_store_write_file(out, name, data, size_bytes, &err), &err);
}

static void check_extents(const struct dcp_catalog *catalog)
{
    const struct dcp_error none = { .message = "an extent outside its file" };

    for (size_t i = 0; i < catalog->n_pieces; i++) {
        const struct dcp_piece *piece = &catalog->pieces[i];
        if (piece->file < 0)
            continue;
        uint64_t size_bytes = catalog->files[piece->file].size_bytes;
        CHECK(piece->offset <= size_bytes, &none);
        CHECK(piece->stored_size <= size_bytes - piece->offset, &none);
    }
}

/* Whether all tensors have data, and little enough of it to be read here. */
static bool is_small(const struct dcp_catalog *catalog)
{
    uint64_t total = 0;

    for (size_t i = 0; i < catalog->n_tensors; i++) {
        uint64_t size_bytes = dcp_tensor_bytes(&catalog->tensors[i]);
        total += size_bytes;
        if (size_bytes > MAX_TENSOR_BYTES || total > MAX_TOTAL_BYTES ||
            !catalog->tensors[i].n_pieces)
            return false;
    }
    return true;
}

static void check_same(const struct dcp_catalog *a, const struct dcp_source *source_a,
                       const struct dcp_catalog *b, const struct dcp_source *source_b)
{
    struct dcp_error err = { 0 };

    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct dcp_tensor *tensor = &a->tensors[i];
        int at = dcp_catalog_find(b, tensor->name);
        void *data_a, *data_b;
        CHECK(at >= 0 && b->tensors[at].dtype == tensor->dtype, &err);
        CHECK(b->tensors[at].n_elems == tensor->n_elems, &err);
        CHECK(!format_read_tensor(source_a, a, (int)i, &data_a, &err), &err);
        CHECK(!format_read_tensor(source_b, b, at, &data_b, &err), &err);
        CHECK(!memcmp(data_a, data_b, (size_t)dcp_tensor_bytes(tensor)), &err);
        free(data_a);
        free(data_b);
    }
}

/* A catalog may hold what a format cannot (MISMATCH); nothing else may go wrong. */
static void check_write(const struct dcp_source *source,
                        const struct dcp_catalog *catalog, const char *name)
{
    const struct dcp_format *format = dcp_format_find(name);
    const struct dcp_target_options options = { .name = "target" };
    const struct dcp_source target = { .name = "target" };
    struct dcp_source written = target;
    struct dcp_catalog *again;
    struct dcp_store store;
    struct dcp_error err = { 0 };

    CHECK(!dcp_store_mem(&store, &err), &err);
    written.store = &store;
    int rc = format_write(source, catalog, format, &options, &store, &err);
    CHECK(!rc || rc == DCP_E_MISMATCH || rc == DCP_E_CORRUPT, &err);
    if (!rc) {
        CHECK(!dcp_catalog_new(&again, &err), &err);
        CHECK(!format->index(&written, again, &err), &err);
        CHECK(!dcp_catalog_sort(again, &err), &err);
        CHECK(again->n_tensors == catalog->n_tensors, &err);
        check_same(catalog, source, again, &written);
        dcp_catalog_free(again);
    }
    dcp_store_free(&store);
}

void fuzz_read(const struct dcp_source *source, const struct dcp_catalog *catalog)
{
    struct dcp_reader *reader;
    struct dcp_error err = { 0 };
    unsigned char *out = malloc(MAX_TENSOR_BYTES);
    int rc = dcp_reader_new(source, catalog, 1, true, &reader, &err);

    CHECK(out && (!rc || err.message[0]), &err);
    for (size_t t = 0; !rc && t < catalog->n_tensors; t++)
        if (dcp_tensor_bytes(&catalog->tensors[t]) <= MAX_TENSOR_BYTES)
            dcp_reader_read(reader, (int)t, 0, catalog->tensors[t].n_elems, out, NULL);
    if (!rc)
        dcp_reader_free(reader);
    free(out);
}

void fuzz_format(const struct dcp_source *source, const struct dcp_format *format)
{
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    format->probe(source);
    CHECK(!dcp_catalog_new(&catalog, &err), &err);
    int rc = format->index(source, catalog, &err);
    CHECK(!rc || err.message[0], &err);
    if (!rc)
        rc = dcp_catalog_sort(catalog, &err);
    if (!rc) {
        check_extents(catalog);
        if (is_small(catalog)) {
            check_write(source, catalog, "torch");
            check_write(source, catalog, "safetensors");
        }
    }
    dcp_catalog_free(catalog);
}

void fuzz_file(const struct dcp_format *format, const void *data, size_t size_bytes)
{
    struct dcp_store store;

    fuzz_store(&store, "x", data, size_bytes);
    const struct dcp_source source = { .store = &store, .name = "x" };
    fuzz_format(&source, format);
    dcp_store_free(&store);
}
