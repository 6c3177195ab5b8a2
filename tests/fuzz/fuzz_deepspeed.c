/* A DeepSpeed checkpoint or a universal one, packed as lib/packed_folder.h says. */
#include "core/plan/contents.h"
#include "core/plan/target.h"
#include "lib/fuzz_formats.h"
#include "lib/must.h"
#include "lib/packed_folder.h"
#include <dcp/dcp.h>
#include <stdlib.h>

#define MOST_BYTES ((uint64_t)1 << 20) /* tensors larger than this are not read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* What index let through: nothing lies outside of anything. */
static void check_catalog(const struct dcp_catalog *catalog)
{
    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_piece *piece = &catalog->pieces[p];
        if (piece->file < 0)
            continue;
        uint64_t size = catalog->files[piece->file].size_bytes;
        must(piece->rank >= 0 && piece->rank < catalog->world_size);
        must(piece->offset <= size && piece->stored_size <= size - piece->offset);
        must(dcp_piece_bytes(catalog, piece) <= piece->stored_size || piece->stride);
    }
}

/* The files of a target are decided, with whatever the objects hold. */
static void lay_out(const struct dcp_catalog *catalog, const char *name,
                    const char *layout)
{
    const struct dcp_format *format = dcp_format_find(name);
    const struct dcp_reshard_options options = {
        .world_size = 2, .layout = layout, .dtype = -1, .lossy = true
    };
    struct dcp_reshard_plan facts = { 0 };
    struct dcp_catalog *target;
    struct dcp_error err = { 0 };
    int *src_tensor;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (dcp_tensor_bytes(&catalog->tensors[t]) > MOST_BYTES)
            return;
    int rc =
        dcp_contents_new(catalog, format, &options, &facts, &target, &src_tensor, &err);
    struct dcp_target open = { .format = format,
                               .catalog = target,
                               .options = &options.target };
    if (!rc)
        rc = dcp_target_open(&open, DCP_CODEC_NONE, &err);
    dcp_target_close(&open);
    must(!rc || ((rc == DCP_E_MISMATCH || rc == DCP_E_CORRUPT) && err.message[0]));
    if (target) {
        dcp_catalog_free(target);
        free(src_tensor);
    }
}

static void run(const struct dcp_source *source, const char *name)
{
    const struct dcp_format *format = dcp_format_find(name);
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    format->probe(source);
    must(!dcp_catalog_new(&catalog, NULL));
    int rc = format->index(source, catalog, &err);
    must(rc == DCP_OK || err.message[0]);
    if (!rc) {
        must(!dcp_catalog_sort(catalog, NULL));
        check_catalog(catalog);
        dcp_catalog_check(catalog, NULL);
        fuzz_read(source, catalog);
        lay_out(catalog, "deepspeed", "zero3");
        lay_out(catalog, "deepspeed", "zero2");
        lay_out(catalog, "universal", "zero1");
    }
    dcp_catalog_free(catalog);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    struct dcp_store store;

    packed_folder_open(&store, data, size_bytes);
    const struct dcp_source source = { &store, "", true };
    run(&source, "deepspeed");
    run(&source, "universal");
    dcp_store_free(&store);
    return 0;
}
