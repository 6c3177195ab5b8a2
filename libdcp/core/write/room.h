/* room: how much of a disk a step takes that is to be saved. */
#ifndef DCP_CORE_WRITE_ROOM_H
#define DCP_CORE_WRITE_ROOM_H

#include "finish.h"

/* What all files of a step take once it is published: shards and their manifests, parity
 * with its copies of manifest.json, the consolidated export, manifest.json itself, the
 * pointer. The layout has given the shards their sizes, which with a codec are the
 * largest they can get; what is text and not yet written is estimated from what it will
 * list, rather too large than too small. */
uint64_t dcp_room_of_step(const struct dcp_finish *finish);

#endif
