/* carried: files that go along byte for byte beside the keys of a distributed checkpoint:
 * what Megatron-LM has in common.pt and metadata.json. */
#ifndef DCP_FORMATS_STATE_DICT_CARRIED_H
#define DCP_FORMATS_STATE_DICT_CARRIED_H

#include <dcp/tensor.h>

/* Objects that carry a file, and the prefix of the names under which its values are shown
 * for people. */
#define DCP_CARRIED_COMMON "megatron.common.pt"
#define DCP_CARRIED_METADATA "megatron.metadata.json"
#define DCP_CARRIED_PREFIX "common."

/* Whether an object or a tensor goes with these files, not under a key. */
bool dcp_is_carried(const struct dcp_catalog *catalog, const char *name);

#endif
