/* text_index: open addressing, at most half full. */
#include "text_index.h"
#include "base/hash.h"
#include "base/mem.h"
#include <string.h>

enum { FIRST_CAP = 64 };

struct dcp_text_slot {
    const char *name; /* NULL: free */
    size_t n;
    uint64_t hash;
    int64_t number;
};

void dcp_text_index_fini(struct dcp_text_index *names)
{
    free(names->slots);
    *names = (struct dcp_text_index){ 0 };
}

/* Where a name stands, or would. */
static struct dcp_text_slot *slot_of(const struct dcp_text_index *names, const char *name,
                                     size_t n, uint64_t hash)
{
    size_t at = (size_t)hash & (names->cap - 1);

    for (;; at = (at + 1) & (names->cap - 1)) {
        struct dcp_text_slot *slot = &names->slots[at];
        if (!slot->name ||
            (slot->hash == hash && slot->n == n && !memcmp(slot->name, name, n)))
            return slot;
    }
}

static bool grow(struct dcp_text_index *names)
{
    struct dcp_text_index grown = { .n = names->n,
                                    .cap = names->cap ? 2 * names->cap : FIRST_CAP };

    grown.slots = dcp_mem_calloc(grown.cap, sizeof *grown.slots);
    if (!grown.slots)
        return false;
    for (size_t i = 0; i < names->cap; i++) {
        const struct dcp_text_slot *slot = &names->slots[i];
        if (slot->name)
            *slot_of(&grown, slot->name, slot->n, slot->hash) = *slot;
    }
    free(names->slots);
    *names = grown;
    return true;
}

int64_t dcp_text_index_find(const struct dcp_text_index *names, const char *name,
                            size_t n)
{
    if (!names->cap)
        return -1;
    const struct dcp_text_slot *slot = slot_of(names, name, n, dcp_hash_xxh3(name, n));
    return slot->name ? slot->number : -1;
}

bool dcp_text_index_set(struct dcp_text_index *names, const char *name, size_t n,
                        int64_t number)
{
    uint64_t hash = dcp_hash_xxh3(name, n);

    if (2 * (names->n + 1) > names->cap && !grow(names))
        return false;
    struct dcp_text_slot *slot = slot_of(names, name, n, hash);
    names->n += !slot->name;
    *slot = (struct dcp_text_slot){ name, n, hash, number };
    return true;
}
