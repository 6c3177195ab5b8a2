/* .metadata of a distributed checkpoint, beside data files that are sound: three items of
 * tensors and one of an object in "__0_0.distcp", one compressed item in "z", and a
 * safetensors file. What is read is written again, in the same format. */
#include "base/buf.h"
#include "formats/torch/item.h"
#include "formats/torch_dist/reading.h"
#include "formats/torch_dist/torch_dist.h"
#include "lib/format_io.h"
#include "lib/fuzz_formats.h"
#include "lib/must.h"
#include <dcp/reshard.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define MOST_BYTES ((uint64_t)1 << 16) /* tensors larger than this are not read */
#define MOST_TENSORS 64
#define ITEM_BYTES ((size_t)768)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* The items stand at 0 (F32 [2, 2]), at 768 (F32 [1, 2]) and at 1536 (F32 []), the object
 * {"k": 1} at 2304. */
static void put_data(const struct dcp_store *store)
{
    static const int64_t shapes[2][2] = { { 2, 2 }, { 1, 2 } };
    static const float values[4] = { 1, 2, 3, 4 };
    const struct dcp_tensor tensors[] = {
        { .dtype = DCP_F32, .ndim = 2, .shape = shapes[0], .n_elems = 4 },
        { .dtype = DCP_F32, .ndim = 2, .shape = shapes[1], .n_elems = 2 },
        { .dtype = DCP_F32, .n_elems = 1 },
    };
    struct dcp_buf buf = { 0 };
    char packed[4096];

    for (size_t i = 0; i < 3; i++) {
        must(!dcp_torch_item_tensor(DCP_TORCH_STYLE_1_13, &tensors[i], values, &buf,
                                    NULL));
        dcp_buf_add_fill(&buf, 0, ITEM_BYTES * (i + 1) - buf.size_bytes);
    }
    json_t *object = json_pack("{s:i}", "k", 1);
    must(!dcp_torch_item_object(DCP_TORCH_STYLE_1_13, object, &buf, NULL));
    json_decref(object);
    must(!buf.failed);
    must(!dcp_store_write_file(store, "__0_0.distcp", buf.data, buf.size_bytes, NULL));
    size_t n = ZSTD_compress(packed, sizeof packed, buf.data, ITEM_BYTES, 1);
    must(!ZSTD_isError(n));
    must(!dcp_store_write_file(store, "z", packed, n, NULL));
    dcp_buf_fini(&buf);
}

/* What index let through lies inside its files; its tensors can be read or say why not.
 */
static void check_catalog(const struct dcp_source *source,
                          const struct dcp_catalog *catalog)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        uint64_t size_bytes = catalog->files[piece->file].size_bytes;
        must(piece->rank >= 0 && piece->rank < catalog->world_size);
        must(piece->offset <= size_bytes &&
             piece->stored_size <= size_bytes - piece->offset);
    }
    fuzz_read(source, catalog);
}

/* Whether the plain writer of the tests can copy it: whole tensors, not compressed. */
static bool is_plain(const struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (tensor->n_pieces != 1 || dcp_tensor_bytes(tensor) > MOST_BYTES ||
            catalog->pieces[tensor->first_piece].region.kind != DCP_WHOLE ||
            catalog->pieces[tensor->first_piece].codec != DCP_CODEC_NONE)
            return false;
    }
    return catalog->n_tensors <= MOST_TENSORS;
}

static void check_write(const struct dcp_source *source,
                        const struct dcp_catalog *catalog)
{
    const struct dcp_target_options options = { 0 };
    struct dcp_store store;
    struct dcp_catalog *again;
    struct dcp_error err = { 0 };

    must(!dcp_store_mem(&store, NULL) && !dcp_catalog_new(&again, NULL));
    const struct dcp_source written = { &store, "", true };
    int rc =
        format_write(source, catalog, &dcp_format_torch_dist, &options, &store, &err);
    must(!rc || rc == DCP_E_MISMATCH || rc == DCP_E_CORRUPT);
    if (!rc) {
        rc = dcp_format_torch_dist.index(&written, again, &err);
        if (rc)
            fprintf(stderr, "%s\n", err.message);
        must(!rc);
        must(again->n_tensors == catalog->n_tensors);
    }
    dcp_catalog_free(again);
    dcp_store_free(&store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct dcp_store store;
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    fuzz_store(&store, ".metadata", data, size_bytes);
    put_data(&store);
    const struct dcp_source source = { &store, "", true };
    must(!dcp_catalog_new(&catalog, NULL));
    dcp_format_torch_dist.probe(&source);
    int rc = dcp_format_torch_dist.index(&source, catalog, &err);
    must(rc == DCP_OK || err.message[0]);
    if (!rc) {
        must(!dcp_catalog_sort(catalog, NULL));
        check_catalog(&source, catalog);
        if (is_plain(catalog))
            check_write(&source, catalog);
    }
    dcp_catalog_free(catalog);
    dcp_store_free(&store);
    return 0;
}
