/* tables: the facts of all tensors of a catalog, one array for each. */
#ifndef DCP_FLAT_TABLES_H
#define DCP_FLAT_TABLES_H

#include <dcp/flat.h>
#include <dcp/tensor.h>

struct dcp_flat_tables {
    struct dcp_flat_tensors told; /* points to what follows */
    char *blobs[4];
    uint64_t *offsets[4];
    int32_t *roles, *dtypes, *ndims, *flags;
    int64_t *shapes;
    uint64_t *fingerprints, *n_pieces;
};

/* Of its own; caller owns. Errors: MEMORY. */
int dcp_flat_tables_new(const struct dcp_catalog *catalog, struct dcp_flat_tables **out,
                        struct dcp_error *err);
void dcp_flat_tables_free(struct dcp_flat_tables *tables);

#endif
