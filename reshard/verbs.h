/* verbs: one table for each, in a file of its own. */
#ifndef RESHARD_VERBS_H
#define RESHARD_VERBS_H

#include "cli/opt.h"

extern const struct dcp_command reshard_run;
extern const struct dcp_command reshard_export;
extern const struct dcp_command reshard_repair;
extern const struct dcp_command reshard_delta;
extern const struct dcp_command reshard_keygen;
extern const struct dcp_command reshard_sign_verb;
extern const struct dcp_command reshard_verify;
extern const struct dcp_command reshard_formats;
extern const struct dcp_command reshard_prune;
extern const struct dcp_command reshard_tag;
extern const struct dcp_command reshard_pin;
extern const struct dcp_command reshard_unpin;
extern const struct dcp_command reshard_gc;

/* Exit statuses of the two that write. */
extern const struct dcp_exit reshard_exits[];

#endif
