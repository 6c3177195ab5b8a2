/* cache: blocks that were read and may be asked for again, those used last, in bounded
 * memory: small blocks take little of it. What one thread reads others find; while it
 * reads they wait for it. Thread rule: any number of threads. */
#ifndef DCP_CORE_READ_CACHE_H
#define DCP_CORE_READ_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_cache;
struct dcp_cached; /* a block that somebody holds: it stays where it is */

/* most_bytes: of all blocks, beside what is held. NULL: out of memory. */
struct dcp_cache *dcp_cache_new(uint64_t most_bytes);
/* Nobody holds a block any more. */
void dcp_cache_free(struct dcp_cache *cache);
/* It may take so much more. */
void dcp_cache_grow(struct dcp_cache *cache, uint64_t more_bytes);

/* Block number `block` of a unit, n bytes, for the caller to hold. *out_fill: it was not
 * there, and the caller is to write it to its data. NULL: out of memory. */
struct dcp_cached *dcp_cache_take(struct dcp_cache *cache, size_t unit, uint64_t block,
                                  size_t n, bool *out_fill);
unsigned char *dcp_cached_data(struct dcp_cached *cached);
/* Ends what dcp_cache_take began. good: what was to be filled was; if not it is gone, and
 * the next who asks for it fills it. */
void dcp_cache_give(struct dcp_cache *cache, struct dcp_cached *cached, bool good);

#endif
