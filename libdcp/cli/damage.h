/* damage: the next act after damage was found in a checkpoint. */
#ifndef DCP_CLI_DAMAGE_H
#define DCP_CLI_DAMAGE_H

#include "main.h"
#include <dcp/reshard.h>
#include <stdbool.h>

/* Warns that a checkpoint is read through its parity (place->damage). */
void dcp_damage_tell_mended(struct dcp_main *m, const struct dcp_place *place);
/* Sets the hint of an error about a checkpoint: how to list all damage (unless all was
 * listed), and the newest whole step before the damaged one, when it is in a run folder.
 */
void dcp_damage_hint(const struct dcp_place *place, bool all_listed,
                     struct dcp_error *err);

#endif
