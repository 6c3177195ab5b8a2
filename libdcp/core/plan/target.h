/* target: the catalog that a reshard is to write, from the source's catalog and what was
 * asked. Pure. */
#ifndef DCP_CORE_PLAN_TARGET_H
#define DCP_CORE_PLAN_TARGET_H

#include <dcp/reshard.h>

/* The tensors that are selected and that the format holds (see choose.h), cut by the
 * layout for the new world, replicas assigned; the objects, step and mesh.
 * *out_src_tensor[t] is the source's tensor behind tensor t; caller frees both. Errors:
 * MISMATCH (nothing selected; what the format cannot hold), USAGE, MEMORY. */
int dcp_target_new(const struct dcp_catalog *src, const struct dcp_format *format,
                   const struct dcp_reshard_options *options,
                   struct dcp_catalog **out_target, int **out_src_tensor,
                   struct dcp_error *err);

/* Whether a target has a place for objects. */
bool dcp_target_holds_objects(const struct dcp_format *format,
                              const struct dcp_catalog *target);
/* The names of what is no tensor and has no place in a target that is laid out, and of
 * files beside the weights, NULL-terminated; belongs to the target, NULL: none. Errors:
 * MEMORY. */
int dcp_target_objects_left(const struct dcp_catalog *src,
                            const struct dcp_format *format, struct dcp_catalog *target,
                            const char *const **out, struct dcp_error *err);

#endif
