/* signature: a step that is signed where it lies. */
#ifndef RESHARD_SIGNATURE_H
#define RESHARD_SIGNATURE_H

#include "cli/main.h"
#include <dcp/signature.h>

/* `path` names it for people. Errors: those of dcp_sign. */
int reshard_sign(struct dcp_main *m, const struct dcp_source *step, const char *path,
                 const char *key, struct dcp_signature *out, struct dcp_error *err);

#endif
