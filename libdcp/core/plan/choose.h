/* choose: which tensors a target gets. Those of the source that are selected and that the
 * target's format holds; a weight out of its master where only masters are stored; a
 * master out of its weight where the format wants masters; a second name for the same
 * bytes as a tie, or in full. Pure. */
#ifndef DCP_CORE_PLAN_CHOOSE_H
#define DCP_CORE_PLAN_CHOOSE_H

#include <dcp/reshard.h>

/* Adds the tensors to a target whose format, layout and world size are set, without
 * pieces; those that only are a second name say so in tied_to and get none.
 * *out_src_tensor[t] is the source's tensor behind tensor t; caller frees. Errors:
 * MISMATCH (nothing selected; what the format cannot hold, unless lossy), MEMORY. */
int dcp_choose(const struct dcp_catalog *src, const struct dcp_format *format,
               const struct dcp_reshard_options *options, struct dcp_catalog *target,
               int **out_src_tensor, struct dcp_error *err);
/* What becomes of a tensor in that target. of_src: identity of src. */
enum dcp_disposition dcp_choose_disposition(const struct dcp_catalog *src,
                                            const struct dcp_identity *of_src,
                                            const struct dcp_format *format,
                                            const struct dcp_catalog *target,
                                            const struct dcp_tensor *tensor);
/* Says that the numbers of a quantized tensor are not read: UNSUPPORTED. */
int dcp_quantized_refuse(const struct dcp_tensor *tensor, struct dcp_error *err);
/* Whether it was asked for. */
bool dcp_choose_selected(const struct dcp_tensor *tensor,
                         const struct dcp_reshard_options *options);
/* Whether it is neither weight nor buffer nor the optimizer's, where the model alone was
 * asked for: a counter of the trainer's, a callback's tensor. */
bool dcp_choose_is_beside(const struct dcp_catalog *src, const struct dcp_tensor *tensor,
                          const struct dcp_reshard_options *options);

#endif
