/* family: what a configuration tells of a model, which weights it promises, and what a
 * catalog lacks of them. The rule is that of the trainer: a step is resumed when every
 * weight of the model is there, itself or its master, under its name with or without
 * "transformer.". */
#ifndef DCP_FAMILY_H
#define DCP_FAMILY_H

#include <dcp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dcp_family {
    char name[64];             /* "gpt2"; "" when unknown */
    int64_t n_layers, n_vocab; /* 0 when unknown */
};

#define DCP_FAMILY_LACKS "the model has more weights than this holds ('%s')"

/* Whether an object describes the model. */
DCP_PUBLIC bool dcp_family_is_config(const char *object_name);
/* What it says; layers that it does not say are counted. */
DCP_PUBLIC void dcp_family_read(const struct dcp_catalog *catalog,
                                struct dcp_family *out);
/* The first tensor that is missing of a model, for each of its parameters one with `role`
 * or (-1: none) `other`; its name goes to out. False, and "", when all are there, or the
 * family is not known: then nothing can be said. */
DCP_PUBLIC bool dcp_family_lacks(const struct dcp_family *family,
                                 const struct dcp_catalog *catalog, enum dcp_role role,
                                 int other, char *out, size_t cap);
/* The first weight, for DCP_FAMILY_LACKS; false also where there are no weights at all.
 */
DCP_PUBLIC bool dcp_family_lacks_weight(const struct dcp_catalog *catalog, char *out,
                                        size_t cap);

#ifdef __cplusplus
}
#endif
#endif
