/* corruption: what is said, and the next act, when a checkpoint is corrupt. */
#ifndef DCP_CLI_CORRUPTION_H
#define DCP_CLI_CORRUPTION_H

#include "program.h"
#include <dcp/reshard.h>
#include <stdbool.h>

/* Warns that a checkpoint is read through its parity (location->corruption). */
void dcp_corruption_tell_reconstructed(struct dcp_main *m,
                                       const struct dcp_location *location);
/* Sets the hint of an error about a checkpoint: how to list everything that is corrupt
 * (unless all was listed), and the newest complete step before the corrupt one, when it
 * is in a run folder.
 */
void dcp_corruption_hint(const struct dcp_location *location, bool all_listed,
                         struct dcp_error *err);
/* Warns of the steps of a run folder that are newer than the one the place is, and why
 * they are not it. Does nothing where the place is not a step that was looked for. */
void dcp_corruption_passed_over(const struct dcp_location *location,
                                const struct dcp_log *log);

#endif
