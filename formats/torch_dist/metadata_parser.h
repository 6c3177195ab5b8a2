/* metadata_parser: what the parts of the parser share. Private to metadata*.c. */
#ifndef DCP_FORMATS_TORCH_DIST_METADATA_PARSER_H
#define DCP_FORMATS_TORCH_DIST_METADATA_PARSER_H

#include "base/map.h"
#include "formats/pickle/pickle.h"
#include "metadata.h"

struct dcp_torch_dist_parser {
    struct dcp_torch_dist_metadata *meta;
    const unsigned char *data; /* of the pickle */
    int rank;
    struct dcp_error *err; /* never NULL */
    struct dcp_arena *scratch;
    size_t first_part;    /* of this pickle */
    struct dcp_map boxes; /* its parts, once a hint did not help */
};

/* An instance of a class of torch.distributed, whose modules were moved about. */
bool dcp_torch_dist_is(const struct dcp_pickle_node *node, const char *class);
/* A field of an instance; NULL: it is not there, or None. */
const struct dcp_pickle_node *dcp_torch_dist_field(const struct dcp_pickle_node *node,
                                                   const char *name);
/* CORRUPT: "the entry of 'name' what". */
int dcp_torch_dist_malformed(struct dcp_torch_dist_parser *p, const char *name,
                             const char *what);
int dcp_torch_dist_no_memory(struct dcp_torch_dist_parser *p);
/* A str without NUL, not empty, as text of the arena. */
int dcp_torch_dist_text(struct dcp_torch_dist_parser *p,
                        const struct dcp_pickle_node *node, const char *what,
                        const char **out);
bool dcp_torch_dist_u64(const struct dcp_pickle_node *node, uint64_t *out);
/* A number of 64 bits that was written as a signed one. */
bool dcp_torch_dist_digest(const struct dcp_pickle_node *node, uint64_t *out);

/* The three dicts, in this order. */
int dcp_torch_dist_take_state_dict(struct dcp_torch_dist_parser *p,
                                   const struct dcp_pickle_node *dict);
int dcp_torch_dist_take_storage_data(struct dcp_torch_dist_parser *p,
                                     const struct dcp_pickle_node *dict);
int dcp_torch_dist_take_planner_data(struct dcp_torch_dist_parser *p,
                                     const struct dcp_pickle_node *dict);

#endif
