#include "cache.h"
#include "base/mem.h"
#include <pthread.h>

enum { FIRST_HEADS = 64 };

struct dcp_cached {
    size_t unit;
    uint64_t block;
    size_t n;
    int holders;
    bool filled;
    struct dcp_cached *chain;         /* the next one under the same head */
    struct dcp_cached *older, *newer; /* by their last use */
    unsigned char data[];
};

struct dcp_cache {
    pthread_mutex_t lock;         /* of all but the data */
    pthread_cond_t ended;         /* somebody's filling */
    uint64_t most_bytes, n_bytes; /* with what an entry costs besides its block */
    size_t n_blocks;
    struct dcp_cached **heads; /* by hash */
    size_t n_heads;            /* a power of two, as many as there are blocks or more */
    struct dcp_cached *oldest, *newest;
};

/* Where the pointer to the entries of that hash stands. */
static struct dcp_cached **head_of(const struct dcp_cache *cache, size_t unit,
                                   uint64_t block)
{
    uint64_t hash = ((uint64_t)unit << 20 ^ block) * UINT64_C(0x9e3779b97f4a7c15);

    return &cache->heads[hash >> 40 & (cache->n_heads - 1)];
}

static void chain(const struct dcp_cache *cache, struct dcp_cached *e)
{
    struct dcp_cached **head = head_of(cache, e->unit, e->block);

    e->chain = *head;
    *head = e;
}

/* A chain that is long is slow. Without memory it stays so. */
static void add_heads(struct dcp_cache *cache)
{
    struct dcp_cached **heads =
        dcp_mem_calloc(2 * cache->n_heads, sizeof(struct dcp_cached *));

    if (!heads)
        return;
    free(cache->heads);
    cache->heads = heads;
    cache->n_heads *= 2;
    for (struct dcp_cached *e = cache->oldest; e; e = e->newer)
        chain(cache, e);
}

struct dcp_cache *dcp_cache_new(uint64_t most_bytes)
{
    struct dcp_cache *cache = calloc(1, sizeof *cache);

    if (!cache)
        return NULL;
    cache->most_bytes = most_bytes;
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->ended, NULL);
    cache->n_heads = FIRST_HEADS;
    cache->heads = dcp_mem_calloc(cache->n_heads, sizeof(struct dcp_cached *));
    if (cache->heads)
        return cache;
    dcp_cache_free(cache);
    return NULL;
}

void dcp_cache_free(struct dcp_cache *cache)
{
    struct dcp_cached *next;

    if (!cache)
        return;
    for (struct dcp_cached *e = cache->oldest; e; e = next) {
        next = e->newer;
        free(e);
    }
    pthread_cond_destroy(&cache->ended);
    pthread_mutex_destroy(&cache->lock);
    free(cache->heads);
    free(cache);
}

void dcp_cache_grow(struct dcp_cache *cache, uint64_t more_bytes)
{
    pthread_mutex_lock(&cache->lock);
    cache->most_bytes += more_bytes;
    pthread_mutex_unlock(&cache->lock);
}

static void unlink_use(struct dcp_cache *cache, struct dcp_cached *e)
{
    *(e->older ? &e->older->newer : &cache->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &cache->newest) = e->older;
}

static void put_newest(struct dcp_cache *cache, struct dcp_cached *e)
{
    e->older = cache->newest;
    e->newer = NULL;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
}

static void put(struct dcp_cache *cache, struct dcp_cached *e)
{
    if (cache->n_blocks++ == cache->n_heads)
        add_heads(cache);
    chain(cache, e);
    cache->n_bytes += sizeof *e + e->n;
    put_newest(cache, e);
}

static void take_out(struct dcp_cache *cache, struct dcp_cached *e)
{
    struct dcp_cached **at = head_of(cache, e->unit, e->block);

    while (*at != e)
        at = &(*at)->chain;
    *at = e->chain;
    cache->n_blocks--;
    cache->n_bytes -= sizeof *e + e->n;
    unlink_use(cache, e);
}

/* Memory for a block of n bytes, once those that were not used for longest have gone for
 * it. The last of them is used again: as a rule it is as large. */
static struct dcp_cached *make_room(struct dcp_cache *cache, size_t n)
{
    struct dcp_cached *room = NULL, *next;

    for (struct dcp_cached *e = cache->oldest;
         e && cache->n_bytes + sizeof *e + n > cache->most_bytes; e = next) {
        next = e->newer;
        if (e->holders)
            continue;
        take_out(cache, e);
        free(room);
        room = e;
    }
    if (room && room->n == n)
        return room;
    free(room);
    return malloc(sizeof *room + n);
}

static struct dcp_cached *find(const struct dcp_cache *cache, size_t unit, uint64_t block)
{
    struct dcp_cached *e = *head_of(cache, unit, block);

    while (e && (e->unit != unit || e->block != block))
        e = e->chain;
    return e;
}

struct dcp_cached *dcp_cache_take(struct dcp_cache *cache, size_t unit, uint64_t block,
                                  size_t n, bool *out_fill)
{
    struct dcp_cached *e;

    pthread_mutex_lock(&cache->lock);
    while ((e = find(cache, unit, block)) && !e->filled)
        pthread_cond_wait(&cache->ended, &cache->lock);
    *out_fill = !e;
    if (e && e != cache->newest) {
        unlink_use(cache, e);
        put_newest(cache, e);
    }
    if (!e && (e = make_room(cache, n))) {
        *e = (struct dcp_cached){ .unit = unit, .block = block, .n = n };
        put(cache, e);
    }
    if (e)
        e->holders++;
    pthread_mutex_unlock(&cache->lock);
    return e;
}

unsigned char *dcp_cached_data(struct dcp_cached *cached)
{
    return cached->data;
}

void dcp_cache_give(struct dcp_cache *cache, struct dcp_cached *e, bool good)
{
    pthread_mutex_lock(&cache->lock);
    e->holders--;
    if (!e->filled) {
        e->filled = good;
        if (!good) {
            take_out(cache, e);
            free(e);
        }
        pthread_cond_broadcast(&cache->ended);
    }
    pthread_mutex_unlock(&cache->lock);
}
