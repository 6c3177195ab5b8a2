/* reader: any part of any tensor of a checkpoint, whatever its layout: a plan onto whole
 * tensors. */
#include "base/mem.h"
#include "choose.h"
#include "copy.h"
#include <dcp/reshard.h>

struct dcp_reader {
    struct dcp_catalog *whole; /* the same tensors, in one piece each */
    struct dcp_plan *plan;
    struct dcp_blocks *blocks;
    struct dcp_copier copier;
};

int dcp_reader_new(const struct dcp_source *source, const struct dcp_catalog *catalog,
                   uint64_t memory_bytes, struct dcp_reader **out_reader,
                   struct dcp_error *err)
{
    struct dcp_reader *reader = calloc(1, sizeof *reader);
    int rc =
        reader ? dcp_catalog_new(&reader->whole, err) : dcp_error_memory(err, "a reader");

    *out_reader = NULL;
    for (size_t t = 0; t < catalog->n_tensors && !rc; t++) {
        rc = dcp_catalog_add_tensor(reader->whole, &catalog->tensors[t], NULL, err);
        struct dcp_piece piece = { .tensor = (int)t, .file = -1 };
        if (catalog->tensors[t].quantized) /* none of it */
            piece.region = (struct dcp_region){ .kind = DCP_FLAT };
        if (!rc)
            rc = dcp_catalog_add_piece(reader->whole, &piece, err);
    }
    if (!rc)
        rc = dcp_catalog_sort(reader->whole, err);
    if (!rc)
        rc = dcp_plan_new(catalog, reader->whole, NULL, &reader->plan, err);
    if (!rc)
        rc = dcp_blocks_new(source, catalog, memory_bytes, true, &reader->blocks, err);
    if (rc) {
        dcp_reader_free(reader);
        return rc;
    }
    reader->copier = (struct dcp_copier){ .plan = reader->plan,
                                          .src = catalog,
                                          .dst = reader->whole,
                                          .blocks = reader->blocks };
    *out_reader = reader;
    return DCP_OK;
}

int dcp_reader_read(struct dcp_reader *reader, int tensor, int64_t begin, int64_t end,
                    void *out, struct dcp_error *err)
{
    if (tensor < 0 || (size_t)tensor >= reader->whole->n_tensors || begin < 0 ||
        begin > end || end > reader->whole->tensors[tensor].n_elems)
        return dcp_error_set(err, DCP_E_USAGE, "a read reaches outside of its tensor");
    if (reader->whole->tensors[tensor].quantized)
        return dcp_quantized_refuse(&reader->whole->tensors[tensor], err);
    return dcp_copy_piece(&reader->copier, (size_t)tensor, begin, end, out, err);
}

void dcp_reader_free(struct dcp_reader *reader)
{
    if (!reader)
        return;
    dcp_blocks_free(reader->blocks);
    dcp_plan_free(reader->plan);
    dcp_catalog_free(reader->whole);
    free(reader);
}
