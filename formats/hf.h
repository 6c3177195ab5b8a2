/* hf: what other formats ask of the configurations of Hugging Face. */
#ifndef DCP_FORMATS_HF_H
#define DCP_FORMATS_HF_H

#include <dcp/tensor.h>

/* When the catalog's model configuration says that the head is the embedding: the names
 * of both, static; else NULL. Errors: CORRUPT, MEMORY. */
int dcp_hf_tied_head(const struct dcp_catalog *catalog, const char **out_head,
                     const char **out_embedding, struct dcp_error *err);

#endif
