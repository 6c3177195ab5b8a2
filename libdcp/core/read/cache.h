/* cache: blocks that were read and may be asked for again, those used last, in bounded
 * memory: small blocks take little of it. Thread rule: one cache, one thread. */
#ifndef DCP_CORE_READ_CACHE_H
#define DCP_CORE_READ_CACHE_H

#include <stddef.h>
#include <stdint.h>

struct dcp_cache;

/* most_bytes: of all blocks. NULL: out of memory. */
struct dcp_cache *dcp_cache_new(uint64_t most_bytes);
void dcp_cache_free(struct dcp_cache *cache);

/* Block number `block` of a unit, until the next call; NULL: it is not there. */
const unsigned char *dcp_cache_find(struct dcp_cache *cache, size_t unit, uint64_t block);
/* Room for n bytes of a block that is not there, at most most_bytes, until the next call,
 * once others have gone for it. NULL: out of memory. */
unsigned char *dcp_cache_room(struct dcp_cache *cache, size_t n);
/* What was written to the room is that block from now on. */
void dcp_cache_keep(struct dcp_cache *cache, size_t unit, uint64_t block);

#endif
