/* weights: which weights a model's configuration promises, and what a catalog lacks of
 * them. The rule is that of the trainer: a step is resumed when every weight of the model
 * is there, itself or its master, under its name with or without "transformer.". */
#ifndef INSPECT_WEIGHTS_H
#define INSPECT_WEIGHTS_H

#include <dcp/tensor.h>

/* The first tensor that is missing of a model with so many layers, for each of its
 * parameters one with `role` or (-1: none) `other`; its name goes to out. False when all
 * are there, or the family is not known: then nothing can be said. */
bool inspect_weights_lacks(const struct dcp_catalog *catalog, const char *family,
                           int64_t n_layers, enum dcp_role role, int other, char *out,
                           size_t cap);

#endif
