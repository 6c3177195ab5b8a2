/* signature: a step that is signed where it lies. */
#ifndef RESHARD_SIGNATURE_H
#define RESHARD_SIGNATURE_H

#include "cli/main.h"

/* Errors: those of dcp_place_open and dcp_sign. */
int reshard_sign(struct dcp_main *m, const char *path, const char *key,
                 struct dcp_signature *out, struct dcp_error *err);

#endif
