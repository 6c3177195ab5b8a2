/* reading: what the reading files of the format share. */
#ifndef DCP_FORMATS_TORCH_DIST_READING_H
#define DCP_FORMATS_TORCH_DIST_READING_H

#include "formats/state_dict/keys.h"
#include "formats/state_dict/optim.h"
#include "item.h"
#include "metadata.h"

/* Reads a checkpoint. Errors: CORRUPT, UNSUPPORTED, NOT_FOUND, IO, MEMORY. */
int dcp_torch_dist_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                         struct dcp_error *err);

/* A checkpoint that is being read. */
struct dcp_torch_dist_reader {
    const struct dcp_source *source;
    struct dcp_catalog *catalog;
    struct dcp_torch_dist_metadata meta;
    struct dcp_torch_dist_items items;
    struct dcp_keys keys;
    bool has_optim;            /* in keys.optim */
    int *tensor_of;            /* of each of the meta's tensors: the catalog's, or -1 */
    size_t *meta_of;           /* of each of the catalog's tensors */
    struct dcp_entry *entries; /* objects */
    size_t n_entries;
};
/* All objects, once tensors and their roles are there. Errors: CORRUPT, UNSUPPORTED,
 * NOT_FOUND, IO, MEMORY. */
int dcp_reading_objects(struct dcp_torch_dist_reader *r, struct dcp_error *err);
/* What Megatron-LM keeps in common.pt, when it is there. Comes last. Errors: as above. */
int dcp_reading_common(struct dcp_torch_dist_reader *r, struct dcp_error *err);

#endif
