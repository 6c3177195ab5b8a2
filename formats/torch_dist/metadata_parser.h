/* metadata_parser: what the parts of the parser share. Private to metadata*.c. */
#ifndef DCP_FORMATS_TORCH_DIST_METADATA_PARSER_H
#define DCP_FORMATS_TORCH_DIST_METADATA_PARSER_H

#include "formats/pickle/pickle.h"
#include "metadata.h"

struct dcp_meta_parser {
    struct dcp_meta *meta;
    const unsigned char *data; /* of the pickle */
    int rank;
    struct dcp_error *err; /* never NULL */
    struct dcp_arena *scratch;
    size_t first_part;           /* of this pickle */
    struct dcp_text_index boxes; /* its parts, once a hint did not help */
};

/* An instance of a class of torch.distributed, whose modules were moved about. */
bool dcp_meta_is(const struct dcp_pickle_node *node, const char *class);
/* A field of an instance; NULL: it is not there, or None. */
const struct dcp_pickle_node *dcp_meta_field(const struct dcp_pickle_node *node,
                                             const char *name);
/* CORRUPT: "the entry of 'name' what". */
int dcp_meta_malformed(struct dcp_meta_parser *p, const char *name, const char *what);
int dcp_meta_no_memory(struct dcp_meta_parser *p);
/* A str without NUL, not empty, as text of the arena. */
int dcp_meta_text(struct dcp_meta_parser *p, const struct dcp_pickle_node *node,
                  const char *what, const char **out);
bool dcp_meta_u64(const struct dcp_pickle_node *node, uint64_t *out);
/* A number of 64 bits that was written as a signed one. */
bool dcp_meta_digest(const struct dcp_pickle_node *node, uint64_t *out);

/* The three dicts, in this order. */
int dcp_meta_take_state_dict(struct dcp_meta_parser *p,
                             const struct dcp_pickle_node *dict);
int dcp_meta_take_storage_data(struct dcp_meta_parser *p,
                               const struct dcp_pickle_node *dict);
int dcp_meta_take_planner_data(struct dcp_meta_parser *p,
                               const struct dcp_pickle_node *dict);

#endif
