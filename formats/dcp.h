/* dcp: the format of torch.distributed.checkpoint, "DCP": a folder with .metadata and
 * data files (dcp_meta.h, dcp_item.h). What the files of the format share. */
#ifndef DCP_FORMATS_DCP_H
#define DCP_FORMATS_DCP_H

#include "dcp_item.h"
#include "dcp_keys.h"
#include "dcp_meta.h"
#include "dcp_optim.h"
#include "roles.h"

/* "__3_0.distcp"; and the rank in such a name, or -1. */
void dcp_dcp_file_name(char out[64], int rank);
int dcp_dcp_file_rank(const char *name);

int dcp_dcp_probe(const struct dcp_source *source);
int dcp_dcp_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                  struct dcp_error *err);
int dcp_dcp_layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                   struct dcp_literals *literals, struct dcp_error *err);
int dcp_dcp_seal(struct dcp_catalog *catalog, int rank,
                 const struct dcp_target_options *options, struct dcp_literals *literals,
                 struct dcp_error *err);

/* A checkpoint that is being read. */
struct dcp_reading {
    const struct dcp_source *source;
    struct dcp_catalog *catalog;
    struct dcp_meta meta;
    struct dcp_items items;
    struct dcp_keys keys;
    bool has_optim;            /* in keys.optim */
    int *tensor_of;            /* of each of the meta's tensors: the catalog's, or -1 */
    size_t *meta_of;           /* of each of the catalog's tensors */
    struct dcp_entry *entries; /* objects */
    size_t n_entries;
};
/* All objects, once tensors and their roles are there. Errors: CORRUPT, UNSUPPORTED,
 * NOT_FOUND, IO, MEMORY. */
int dcp_reading_objects(struct dcp_reading *r, struct dcp_error *err);
/* What Megatron-LM keeps in common.pt, when it is there. Comes last. Errors: as above. */
int dcp_reading_common(struct dcp_reading *r, struct dcp_error *err);
/* Whether an object or a tensor goes there with Megatron's files, not under a key; and
 * these files. Errors: MEMORY. */
bool dcp_common_carries(const struct dcp_catalog *catalog, const char *name);
int dcp_common_write(struct dcp_catalog *catalog, struct dcp_literals *literals,
                     struct dcp_error *err);

#endif
