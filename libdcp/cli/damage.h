/* damage: what is said, and the next act, when a checkpoint is damaged. */
#ifndef DCP_CLI_DAMAGE_H
#define DCP_CLI_DAMAGE_H

#include "program.h"
#include <dcp/reshard.h>
#include <stdbool.h>

/* Warns that a checkpoint is read through its parity (place->damage). */
void dcp_damage_tell_mended(struct dcp_main *m, const struct dcp_place *place);
/* Sets the hint of an error about a checkpoint: how to list all damage (unless all was
 * listed), and the newest whole step before the damaged one, when it is in a run folder.
 */
void dcp_damage_hint(const struct dcp_place *place, bool all_listed,
                     struct dcp_error *err);
/* Warns of the steps of a run folder that are newer than the one the place is, and why
 * they are not it. Does nothing where the place is not a step that was looked for. */
void dcp_damage_passed_over(const struct dcp_place *place, const struct dcp_log *log);

#endif
