/* source: the checkpoint that an operand names, opened as the common options say. Every
 * program opens checkpoints here. */
#ifndef DCP_CLI_SOURCE_H
#define DCP_CLI_SOURCE_H

#include "main.h"
#include <dcp/reshard.h>

/* As dcp_place_open. */
int dcp_source_open(const struct dcp_main *m, const char *path, struct dcp_place *out,
                    struct dcp_error *err);

#endif
