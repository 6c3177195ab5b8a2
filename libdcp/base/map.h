/* map: which number belongs to a key of bytes. Thread rule: any number may find while
 * nobody sets. */
#ifndef DCP_BASE_MAP_H
#define DCP_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; dcp_map_fini. Keys of up to 8 bytes are copied, longer ones are
 * borrowed until then; none has 4 GiB. */
struct dcp_map {
    struct dcp_map_slot *slots;
    size_t n, cap; /* cap: a power of two, or 0 */
};
void dcp_map_fini(struct dcp_map *map);

/* The number of a key, or -1, which is nobody's. */
int64_t dcp_map_find(const struct dcp_map *map, const void *key, size_t n);
/* Sets it, also in the place of another. False: out of memory. */
bool dcp_map_set(struct dcp_map *map, const void *key, size_t n, int64_t number);

#endif
