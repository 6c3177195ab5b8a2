/* finite: whether a state is of any use: the numbers that training computes with are
 * neither infinite nor NaN, and moments are not all zero. */
#ifndef DCP_CORE_INTEGRITY_FINITE_H
#define DCP_CORE_INTEGRITY_FINITE_H

#include <dcp/tensor.h>

/* Whether the numbers of such a tensor must be: weights and what an optimizer keeps of
 * them. A buffer may well hold an infinity, as masks do. */
bool dcp_finite_matters(const struct dcp_tensor *tensor);
/* Whether the elements in size_bytes bytes are neither infinite nor NaN. */
bool dcp_finite_all(enum dcp_dtype dtype, const void *data, size_t size_bytes);
/* Whether an optimizer's mean of gradients or of their squares is in it, which only what
 * was never trained has as zeros; and whether all of some bytes are zero. */
bool dcp_finite_is_moment(const struct dcp_tensor *tensor);
bool dcp_finite_is_zero(const void *data, size_t size_bytes);

#endif
