/* sharded: a folder of files with an index.json that says which tensor is in which. */
#ifndef DCP_FORMATS_SAFETENSORS_SHARDED_H
#define DCP_FORMATS_SAFETENSORS_SHARDED_H

#include <dcp/format.h>

extern const struct dcp_format dcp_format_safetensors_sharded;

/* Reads "weight_map" of the index, and each file it names with index_file. Only tensors
 * that the map gives to a file are taken from it; each must be there. Errors: CORRUPT,
 * NOT_FOUND (a file), those of index_file. */
int dcp_sharded_index(const struct dcp_source *source, const char *index_name,
                      int (*index_file)(const struct dcp_source *source, const char *name,
                                        struct dcp_catalog *catalog,
                                        struct dcp_error *err),
                      struct dcp_catalog *catalog, struct dcp_error *err);

#endif
