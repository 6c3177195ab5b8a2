/* nested: the tree of torch.save from the paths of a distributed checkpoint's keys, the
 * other way round than tree.h. */
#ifndef DCP_FORMATS_STATE_DICT_NESTED_H
#define DCP_FORMATS_STATE_DICT_NESTED_H

#include <dcp/tensor.h>
#include <jansson.h>

/* The tree of a catalog that was a distributed checkpoint ("nested" of keys.h), as
 * JSON of torch/torch.h to be freed with json_decref; NULL: it has none, or they do not
 * go together. Errors: those of dcp_out_make. */
int dcp_nested_make(struct dcp_catalog *catalog, json_t **out, struct dcp_error *err);

#endif
