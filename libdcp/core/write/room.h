/* room: how much of a disk a step takes that is to be saved. */
#ifndef DCP_CORE_WRITE_ROOM_H
#define DCP_CORE_WRITE_ROOM_H

#include "finish.h"

/* What the files of one rank take: the layout has given the shard its size, which with a
 * codec is the largest it can get; what is text and not yet written is estimated, here
 * and below, from what it will list, rather too large than too small. */
struct dcp_room {
    uint64_t shard_bytes, manifest_bytes;
};
/* Of the rank whose pieces and files a catalog has. */
struct dcp_room dcp_room_of_rank(const struct dcp_catalog *catalog);

/* What all files of a step take once it is published: those of the ranks, parity with its
 * copies of manifest.json, the consolidated export, manifest.json itself, the pointer. */
uint64_t dcp_room_of_step(const struct dcp_finish *finish, const struct dcp_room *ranks);

#endif
