/* rename: rules for names applied to tensors and to the objects that list them. */
#ifndef DCP_CORE_CATALOG_RENAME_H
#define DCP_CORE_CATALOG_RENAME_H

#include <dcp/rename.h>
#include <dcp/tensor.h>

/* Renames a tensor that is to be added to the target: its param, and its name with it;
 * texts go to the target's memory. Errors: MISMATCH, MEMORY. */
int dcp_rename_tensor(const struct dcp_rename_rules *rename, struct dcp_catalog *target,
                      struct dcp_tensor *tensor, struct dcp_error *err);
/* Adds an object to the target, the parameters it lists renamed. Errors: CORRUPT,
 * MISMATCH, MEMORY. */
int dcp_rename_object(const struct dcp_rename_rules *rename, struct dcp_catalog *target,
                      const struct dcp_object *object, struct dcp_error *err);

#endif
