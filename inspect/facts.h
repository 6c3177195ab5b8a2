/* facts: what a catalog says about a checkpoint as a whole. */
#ifndef INSPECT_FACTS_H
#define INSPECT_FACTS_H

#include <dcp/family.h>
#include <dcp/training.h>

/* All tensors of one role and dtype. */
struct inspect_group {
    enum dcp_role role;
    enum dcp_dtype dtype;
    bool quantized; /* the dtype says nothing */
    uint64_t n_tensors, n_elems, size_bytes;
};

struct inspect_facts {
    struct inspect_group *groups; /* by role, then dtype; those that are there */
    size_t n_groups;
    uint64_t role_tensors[DCP_N_ROLES];
    uint64_t n_params; /* elements of weights; tied ones count once */
    uint64_t n_tied;   /* weights that are another one under a second name */
    uint64_t tensor_bytes;
    uint64_t n_shards; /* files that hold pieces */
    uint64_t shard_bytes, shard_least, shard_most;
    bool has_digests;   /* something in it can be verified */
    bool has_optimizer; /* moments, or state of another kind */

    struct dcp_family family;
    char weight[64];   /* the first that the model has and this not, or "" */
    char missing[192]; /* what a resume would lack, or "" */
};

/* Errors: MEMORY. */
int inspect_facts_gather(const struct dcp_catalog *catalog, struct inspect_facts *out,
                         struct dcp_error *err);
void inspect_facts_fini(struct inspect_facts *facts);

#endif
