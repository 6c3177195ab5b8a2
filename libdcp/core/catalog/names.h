/* names: which tensor of a catalog has a name. The names lie in the tensors, so a slot is
 * 8 bytes, and those of 100,000 tensors fit a cache. Thread rule: any number may find
 * while nobody adds. */
#ifndef DCP_CORE_CATALOG_NAMES_H
#define DCP_CORE_CATALOG_NAMES_H

#include <dcp/tensor.h>

/* Zero-initialise; dcp_names_fini. */
struct dcp_names {
    struct dcp_name_slot *slots;
    size_t n, cap; /* cap: a power of two, or 0 */
};
void dcp_names_fini(struct dcp_names *names);

/* The tensor of a name, or -1. */
int dcp_names_find(const struct dcp_names *names, const struct dcp_tensor *tensors,
                   const char *name);
/* Adds the tensor's name, unless another tensor has it; *out_tensor: which has it now.
 * False: out of memory. */
bool dcp_names_add(struct dcp_names *names, const struct dcp_tensor *tensors, int tensor,
                   int *out_tensor);
/* Room for so many names more. False: out of memory. */
bool dcp_names_reserve(struct dcp_names *names, size_t n_more);

#endif
