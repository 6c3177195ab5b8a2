/* safetensors: u64 length, JSON header, bytes. What the files of the format share.
 * Source: the format's README and its reference reader (huggingface/safetensors). */
#ifndef DCP_FORMATS_SAFETENSORS_SAFETENSORS_H
#define DCP_FORMATS_SAFETENSORS_SAFETENSORS_H

#include "parts.h"
#include <dcp/format.h>

extern const struct dcp_format dcp_format_safetensors;

#define DCP_SAFETENSORS_MAX_HEADER_BYTES 100000000u /* the reference reader's limit */
#define DCP_SAFETENSORS_SHARD_BYTES 5000000000u     /* when nothing is said, as there */

/* Reads the header of a file of the source (NULL: the source itself). The strings of
 * __metadata__ become the object "safetensors.metadata", except for the usual "format":
 * "pt". Errors: CORRUPT, UNSUPPORTED (a dtype), IO, MEMORY. */
int dcp_safetensors_index_file(const struct dcp_source *source, const char *name,
                               struct dcp_catalog *catalog, struct dcp_error *err);
/* Assigns a file that holds these tensors: adds file and header, gives the pieces their
 * extents in the order of the reference writer (widest dtype first, then by name; sorts
 * `tensors`). */
int dcp_safetensors_assign_file(struct dcp_target *target, const char *name,
                                size_t *tensors, size_t n, struct dcp_error *err);
/* Assigns as many files as needed: <stem>.safetensors, or shards with an index, none
 * larger than the target's options say. */
int dcp_safetensors_assign_folder(struct dcp_target *target, const char *stem,
                                  struct dcp_error *err);

#endif
