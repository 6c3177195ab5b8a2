/* checkpoint: one that a test opened, with all that is asked of it. Fails the test when
 * something does not succeed. */
#ifndef TESTS_LIB_CHECKPOINT_H
#define TESTS_LIB_CHECKPOINT_H

#include "base/json.h"
#include <dcp/reshard.h>

struct checkpoint {
    struct dcp_location location;
    struct dcp_catalog *catalog;
    struct dcp_identity *identity;
    struct dcp_reader *reader;
};

/* Of any format; its catalog is complete. */
void checkpoint_open(const char *path, struct checkpoint *out);
void checkpoint_close(struct checkpoint *checkpoint);

/* A tensor's bytes; caller frees. */
void *checkpoint_read(struct checkpoint *checkpoint, int tensor);
/* Its dtype (as PyTorch calls it) and shape are those of the keys "dtype" and "shape". */
void checkpoint_expect_facts(const struct dcp_tensor *tensor, const json_t *expected);
/* That, and the SHA-256 of its bytes is that of the key "sha256". */
void checkpoint_expect_tensor(struct checkpoint *checkpoint, int tensor,
                              const json_t *expected);
/* An object of a catalog; NULL: there is none. Caller decrefs, as of the file's. */
json_t *checkpoint_object(const struct dcp_catalog *catalog, const char *name);
json_t *checkpoint_load_json(const char *path);

#endif
