/* contents: what a target is to hold, from the source's catalog and what was asked. Pure.
 */
#ifndef DCP_CORE_PLAN_CONTENTS_H
#define DCP_CORE_PLAN_CONTENTS_H

#include <dcp/reshard.h>

/* A catalog of the tensors that are selected and that the format holds (see choose.h),
 * without pieces, and of the objects that may go along, which facts count; step, world
 * size and layout are set. *out_src_tensor[t] is the source's tensor behind tensor t;
 * caller frees both. Errors: MISMATCH (nothing selected; what the format cannot hold),
 * USAGE, MEMORY. */
int dcp_contents_new(const struct dcp_catalog *src, const struct dcp_format *format,
                     const struct dcp_reshard_options *options,
                     struct dcp_reshard_plan *facts, struct dcp_catalog **out_target,
                     int **out_src_tensor, struct dcp_error *err);

/* The names of what is no tensor and has no place in a target whose extents are assigned,
 * and of files beside the weights, NULL-terminated; belongs to the target, NULL: none.
 * src_tensor: as above. Errors: CORRUPT (a spelling that is none), MEMORY. */
int dcp_contents_left(const struct dcp_catalog *src, const struct dcp_format *format,
                      struct dcp_catalog *target, const int *src_tensor,
                      const char *const **out, struct dcp_error *err);

#endif
