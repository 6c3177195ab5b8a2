/* hf: what other formats ask of the configurations of Hugging Face. */
#ifndef DCP_FORMATS_HF_H
#define DCP_FORMATS_HF_H

#include "names.h"
#include <dcp/tensor.h>

/* When the catalog's model configuration says that the head is the embedding: the names
 * of both, static; else NULL. Errors: CORRUPT, MEMORY. */
int dcp_hf_tied_head(const struct dcp_catalog *catalog, bool *out_tied,
                     char head[DCP_NAMES_MAX_BYTES], char embedding[DCP_NAMES_MAX_BYTES],
                     struct dcp_error *err);

#endif
