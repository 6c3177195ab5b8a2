/* hf_shards: what PyTorch's HuggingFaceStorageWriter leaves when it saves from all
 * ranks: a folder of shard-<rank>-model-<i>-of-<n>.safetensors without an index; and its
 * FileSystemWriter(serialization_format=SAFETENSORS): the same in files
 * __<rank>_<i>.distcp beside .metadata, whose places in files are not true. Each holds
 * parts of tensors; safetensors/parts.h has where they begin. How
 * large a tensor is nobody says: as large as its parts reach. Source: _hf_utils.py and
 * hf_storage.py of PyTorch 2.13. */
#ifndef DCP_FORMATS_TORCH_DIST_HF_SHARDS_H
#define DCP_FORMATS_TORCH_DIST_HF_SHARDS_H

#include <dcp/format.h>

bool dcp_torch_dist_shards_probe(const struct dcp_source *source);
/* Errors: CORRUPT, UNSUPPORTED, IO, MEMORY. */
int dcp_shards_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                     struct dcp_error *err);

#endif
