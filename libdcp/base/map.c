/* map: open addressing, at most half full. */
#include "map.h"
#include "hash.h"
#include "mem.h"
#include <string.h>

enum { FIRST_CAP = 64 };

struct dcp_map_slot {
    union {
        const void *key;
        unsigned char copy[8];
    };
    uint32_t n, hash;
    int64_t number; /* plus 1; 0: the slot is free */
};

void dcp_map_fini(struct dcp_map *map)
{
    free(map->slots);
    *map = (struct dcp_map){ 0 };
}

static const void *key_of(const struct dcp_map_slot *slot)
{
    return slot->n <= sizeof slot->copy ? slot->copy : slot->key;
}

/* Where a key stands, or would. */
static struct dcp_map_slot *slot_of(const struct dcp_map *map, const void *key, size_t n,
                                    uint32_t hash)
{
    for (size_t at = hash;; at++) {
        struct dcp_map_slot *slot = &map->slots[at & (map->cap - 1)];
        if (!slot->number ||
            (slot->hash == hash && slot->n == n && (!n || !memcmp(key_of(slot), key, n))))
            return slot;
    }
}

static bool grow(struct dcp_map *map)
{
    struct dcp_map grown = { .n = map->n, .cap = map->cap ? 2 * map->cap : FIRST_CAP };

    grown.slots = dcp_mem_calloc(grown.cap, sizeof *grown.slots);
    if (!grown.slots)
        return false;
    for (size_t i = 0; i < map->cap; i++) {
        const struct dcp_map_slot *slot = &map->slots[i];
        if (slot->number)
            *slot_of(&grown, key_of(slot), slot->n, slot->hash) = *slot;
    }
    free(map->slots);
    *map = grown;
    return true;
}

int64_t dcp_map_find(const struct dcp_map *map, const void *key, size_t n)
{
    return map->cap ? slot_of(map, key, n, (uint32_t)dcp_hash_xxh3(key, n))->number - 1
                    : -1;
}

bool dcp_map_set(struct dcp_map *map, const void *key, size_t n, int64_t number)
{
    uint32_t hash = (uint32_t)dcp_hash_xxh3(key, n);

    if (n > UINT32_MAX || (2 * (map->n + 1) > map->cap && !grow(map)))
        return false;
    struct dcp_map_slot *slot = slot_of(map, key, n, hash);
    map->n += !slot->number;
    *slot = (struct dcp_map_slot){ .n = (uint32_t)n, .hash = hash, .number = number + 1 };
    if (n > sizeof slot->copy)
        slot->key = key;
    else if (n)
        memcpy(slot->copy, key, n);
    return true;
}
