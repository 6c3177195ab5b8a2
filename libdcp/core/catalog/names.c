/* names: open addressing, at most half full. */
#include "names.h"
#include "base/hash.h"
#include "base/mem.h"
#include <string.h>

enum { FIRST_CAP = 64 };

struct dcp_name_slot {
    uint32_t hash;
    uint32_t number; /* of the tensor, plus 1; 0: the slot is free */
};

void dcp_names_fini(struct dcp_names *names)
{
    free(names->slots);
    *names = (struct dcp_names){ 0 };
}

static uint32_t hash_of(const char *name)
{
    return (uint32_t)dcp_hash_xxh3(name, strlen(name));
}

/* Where a name stands, or would; tensors NULL: where it would. */
static struct dcp_name_slot *slot_of(const struct dcp_names *names,
                                     const struct dcp_tensor *tensors, const char *name,
                                     uint32_t hash)
{
    for (size_t at = hash;; at++) {
        struct dcp_name_slot *slot = &names->slots[at & (names->cap - 1)];
        if (!slot->number || (tensors && slot->hash == hash &&
                              !strcmp(tensors[slot->number - 1].name, name)))
            return slot;
    }
}

int dcp_names_find(const struct dcp_names *names, const struct dcp_tensor *tensors,
                   const char *name)
{
    return names->cap ? (int)slot_of(names, tensors, name, hash_of(name))->number - 1
                      : -1;
}

bool dcp_names_reserve(struct dcp_names *names, size_t n_more)
{
    struct dcp_names grown = { .n = names->n,
                               .cap = names->cap ? names->cap : FIRST_CAP };

    if (n_more > SIZE_MAX / 4 - names->n)
        return false;
    while (2 * (names->n + n_more) > grown.cap)
        grown.cap *= 2;
    if (grown.cap == names->cap)
        return true;
    grown.slots = dcp_mem_calloc(grown.cap, sizeof *grown.slots);
    if (!grown.slots)
        return false;
    for (size_t i = 0; i < names->cap; i++)
        if (names->slots[i].number)
            *slot_of(&grown, NULL, NULL, names->slots[i].hash) = names->slots[i];
    free(names->slots);
    *names = grown;
    return true;
}

bool dcp_names_add(struct dcp_names *names, const struct dcp_tensor *tensors, int tensor,
                   int *out_tensor)
{
    const char *name = tensors[tensor].name;
    uint32_t hash = hash_of(name);

    if (!dcp_names_reserve(names, 1))
        return false;
    struct dcp_name_slot *slot = slot_of(names, tensors, name, hash);
    if (!slot->number) {
        *slot = (struct dcp_name_slot){ hash, (uint32_t)tensor + 1 };
        names->n++;
    }
    *out_tensor = (int)slot->number - 1;
    return true;
}
