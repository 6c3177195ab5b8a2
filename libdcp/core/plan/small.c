#include "small.h"
#include "core/catalog/region.h"

bool dcp_small_is_cut(const struct dcp_tensor *tensor, const struct dcp_region *region)
{
    int64_t n = dcp_region_elems(tensor, region);

    return n > 0 && n < tensor->n_elems && dcp_tensor_bytes(tensor) <= DCP_SMALL_BYTES;
}

int dcp_small_join(struct dcp_catalog *catalog, struct dcp_error *err)
{
    size_t kept = 0;

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        struct dcp_piece *pieces = &catalog->pieces[tensor->first_piece];
        bool is_cut = tensor->n_elems == 0 && tensor->n_pieces;
        for (size_t i = 0; i < tensor->n_pieces; i++)
            is_cut |= dcp_small_is_cut(tensor, &pieces[i].region);
        if (is_cut)
            catalog->pieces[kept++] = (struct dcp_piece){ .tensor = (int)t, .file = -1 };
        for (size_t i = 0; i < tensor->n_pieces && !is_cut; i++)
            catalog->pieces[kept++] = pieces[i];
    }
    catalog->n_pieces = kept;
    return dcp_catalog_sort(catalog, err);
}
