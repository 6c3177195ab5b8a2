#include "cache.h"
#include "base/mem.h"

#define SMALL_BYTES 4096 /* of blocks of which there is a head for each */

struct entry {
    size_t unit;
    uint64_t block;
    size_t n;
    struct entry *chain;         /* the next one under the same head */
    struct entry *older, *newer; /* by their last use */
    unsigned char data[];
};

struct dcp_cache {
    uint64_t most_bytes, n_bytes; /* with what an entry costs besides its block */
    struct entry **heads;         /* by hash */
    size_t n_heads;               /* a power of two */
    struct entry *oldest, *newest;
    struct entry *room; /* what is being filled; NULL: nothing */
};

struct dcp_cache *dcp_cache_new(uint64_t most_bytes)
{
    struct dcp_cache *cache = calloc(1, sizeof *cache);
    size_t n = 64;

    if (!cache)
        return NULL;
    while (n < most_bytes / SMALL_BYTES && n < (size_t)1 << 20)
        n *= 2;
    cache->most_bytes = most_bytes;
    cache->n_heads = n;
    cache->heads = dcp_mem_calloc(n, sizeof(struct entry *));
    if (cache->heads)
        return cache;
    free(cache);
    return NULL;
}

void dcp_cache_free(struct dcp_cache *cache)
{
    struct entry *next;

    if (!cache)
        return;
    for (struct entry *e = cache->oldest; e; e = next) {
        next = e->newer;
        free(e);
    }
    free(cache->room);
    free(cache->heads);
    free(cache);
}

/* Where the pointer to the entries of that hash stands. */
static struct entry **head_of(const struct dcp_cache *cache, size_t unit, uint64_t block)
{
    uint64_t hash = ((uint64_t)unit << 20 ^ block) * UINT64_C(0x9e3779b97f4a7c15);

    return &cache->heads[hash >> 40 & (cache->n_heads - 1)];
}

static void take_out(struct dcp_cache *cache, struct entry *e)
{
    *(e->older ? &e->older->newer : &cache->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &cache->newest) = e->older;
}

static void put_newest(struct dcp_cache *cache, struct entry *e)
{
    e->older = cache->newest;
    e->newer = NULL;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
}

const unsigned char *dcp_cache_find(struct dcp_cache *cache, size_t unit, uint64_t block)
{
    struct entry *e = *head_of(cache, unit, block);

    while (e && (e->unit != unit || e->block != block))
        e = e->chain;
    if (!e)
        return NULL;
    if (e != cache->newest) {
        take_out(cache, e);
        put_newest(cache, e);
    }
    return e->data;
}

/* The one that was not used for longest, out of everything. */
static struct entry *evict(struct dcp_cache *cache)
{
    struct entry *e = cache->oldest;
    struct entry **at = head_of(cache, e->unit, e->block);

    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    take_out(cache, e);
    cache->n_bytes -= sizeof *e + e->n;
    return e;
}

unsigned char *dcp_cache_room(struct dcp_cache *cache, size_t n)
{
    struct entry *room = cache->room; /* of a block that could not be read */

    cache->room = NULL;
    while (cache->oldest && cache->n_bytes + sizeof *room + n > cache->most_bytes) {
        free(room);
        room = evict(cache);
    }
    if (room && room->n != n) { /* as a rule it is as large */
        free(room);
        room = NULL;
    }
    if (!room && !(room = malloc(sizeof *room + n)))
        return NULL;
    room->n = n;
    cache->room = room;
    return room->data;
}

void dcp_cache_keep(struct dcp_cache *cache, size_t unit, uint64_t block)
{
    struct entry *e = cache->room, **head = head_of(cache, unit, block);

    cache->room = NULL;
    e->unit = unit;
    e->block = block;
    e->chain = *head;
    *head = e;
    cache->n_bytes += sizeof *e + e->n;
    put_newest(cache, e);
}
