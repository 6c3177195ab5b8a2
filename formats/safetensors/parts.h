/* parts: safetensors files that hold parts of tensors, as PyTorch's
 * HuggingFaceStorageWriter makes them: "DCP_SHARDING_INFO" in __metadata__ is a JSON
 * text, {name: {"saved_offsets": [...]}}, that says where each begins. Source:
 * _hf_utils.py of PyTorch 2.13. */
#ifndef DCP_FORMATS_SAFETENSORS_PARTS_H
#define DCP_FORMATS_SAFETENSORS_PARTS_H

#include <dcp/tensor.h>
#include <jansson.h>

/* The object that keeps a file's __metadata__. */
#define DCP_SAFETENSORS_METADATA "safetensors.metadata"
#define DCP_PARTS_INFO "DCP_SHARDING_INFO"

/* What the file of a catalog says, freed with json_decref; NULL: nothing of parts.
 * Errors: CORRUPT, MEMORY. */
int dcp_parts_read(const struct dcp_catalog *catalog, json_t **out,
                   struct dcp_error *err);
/* Where the part of a tensor begins; false: the file does not say. */
bool dcp_parts_offset(json_t *info, const struct dcp_tensor *tensor,
                      int64_t out[DCP_MAX_NDIM]);
/* For readers of whole tensors: UNSUPPORTED when a file that was read holds a part of a
 * larger one. Errors also: those of dcp_parts_read. */
int dcp_parts_refuse(const struct dcp_catalog *catalog, struct dcp_error *err);

#endif
