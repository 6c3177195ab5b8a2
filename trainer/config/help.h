/* help: the list of all keys of a configuration, for people. */
#ifndef TRAINER_CONFIG_HELP_H
#define TRAINER_CONFIG_HELP_H

#include "base/buf.h"
#include <dcp/error.h>

/* Adds every key with its type, default and meaning, then those without effect and those
 * that are refused, from the table of keys; lines end before column 73. docs/CONFIG.md
 * holds the same text. Errors: MEMORY. */
int settings_help(struct dcp_buf *out, struct dcp_error *err);

#endif
