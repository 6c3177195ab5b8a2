/* deepspeed_names: which weights the numbers of a torch optimizer stand for.
 *
 * An optimizer numbers its parameters group by group and keeps no names. A group lists
 * its parameters in the order of the model, as every usual way of making groups does; so
 * the shapes tell which weight goes into which group, as long as there is only one way to
 * deal the weights out. */
#ifndef DCP_FORMATS_DEEPSPEED_NAMES_H
#define DCP_FORMATS_DEEPSPEED_NAMES_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_ds_shape {
    int ndim; /* -1: not known, anything fits */
    const int64_t *sizes;
};

/* A group: its parameters are numbers first .. first + n. */
struct dcp_ds_numbers {
    size_t first, n;
};

/* Deals n weights out to the groups, of which there are as many numbers in all. out[i] is
 * the weight of number i. *out_found: there is exactly one way. Errors: MEMORY. */
int dcp_ds_deal(const struct dcp_ds_shape *weights, size_t n,
                const struct dcp_ds_shape *numbers, const struct dcp_ds_numbers *groups,
                size_t n_groups, size_t *out, bool *out_found, struct dcp_error *err);

#endif
