/* merge: takes tensors of one catalog over into another, under other names if wanted. */
#ifndef DCP_FORMATS_COMMON_MERGE_H
#define DCP_FORMATS_COMMON_MERGE_H

#include <dcp/format.h>

/* Which tensors to take, and what to call them. `name` gives the new name (the old one, a
 * part of it, or one that lives until the next call), or NULL to leave the tensor out. */
struct dcp_merge_rule {
    const char *(*name)(void *self, const struct dcp_tensor *tensor);
    void *self;
};

/* Adds the files of `from`, and its tensors with their pieces; objects are left to the
 * caller. A NULL rule takes everything. Errors: CORRUPT (a name twice), MEMORY. */
int dcp_merge(struct dcp_catalog *into, const struct dcp_catalog *from,
              const struct dcp_merge_rule *rule, struct dcp_error *err);
/* The files alone, behind those that are there, and their checksums. Errors: MEMORY. */
int dcp_merge_files(struct dcp_catalog *into, const struct dcp_catalog *from,
                    struct dcp_error *err);
/* Takes over one object by name when `from` has it and `into` has not. */
int dcp_merge_object(struct dcp_catalog *into, const struct dcp_catalog *from,
                     const char *name, struct dcp_error *err);

#endif
