/* id: the number that torch writes into .data/serialization_id.
 *
 * It is two hashes: of the record names, in the order in which a std::unordered_set of
 * them is walked, and of the checksums, in the order of the records. To write the file
 * that torch writes, the set of GNU libstdc++ is walked here too: its hash of strings
 * (MurmurHash64A, seed 0xc70f6907), its bucket counts, and how it links nodes. Sources:
 * torch caffe2/serialize/inline_container.cc (writeSerializationId), c10 hash_combine,
 * libstdc++ hash_bytes.cc and hashtable.h. Torch only logs the number; another standard
 * library gives another one. */
#include "base/bytes.h"
#include "base/mem.h"
#include "torch.h"
#include <stdio.h>
#include <string.h>

static uint64_t mix(uint64_t v)
{
    return v ^ (v >> 47);
}

static uint64_t hash_text(const char *text)
{
    const uint64_t mul = 0xc6a4a7935bd1e995u;
    size_t n = strlen(text), whole = n & ~(size_t)7;
    uint64_t hash = 0xc70f6907u ^ (n * mul), tail = 0;

    for (size_t i = 0; i < whole; i += 8) {
        hash ^= mix(dcp_le64(text + i) * mul) * mul;
        hash *= mul;
    }
    for (size_t i = n; i-- > whole;)
        tail = tail << 8 | (unsigned char)text[i];
    if (n > whole)
        hash = (hash ^ tail) * mul;
    return mix(mix(hash) * mul);
}

static uint64_t combine(uint64_t seed, uint64_t value)
{
    return seed ^ (value + 0x9e3779b9u + (seed << 6) + (seed >> 2));
}

/* The bucket counts that a growing set takes: each the first of libstdc++'s primes that
 * is at least twice the one before. */
static const size_t bucket_counts[] = { 13,     29,      59,      127,     257,
                                        541,    1109,    2357,    5087,    10273,
                                        20753,  42043,   85229,   172933,  351061,
                                        712697, 1447153, 2938679, 5967347, 12117689 };

enum { NONE = -1, HEAD = -2 }; /* ends of the list; else the index of a node */

/* A single linked list of all nodes; a bucket points to the node before its first. */
struct set {
    uint64_t *hashes;
    int64_t *next;
    int64_t head;
    int64_t *buckets;
    size_t n_buckets;
};

static int64_t *next_of(struct set *set, int64_t node)
{
    return node == HEAD ? &set->head : &set->next[node];
}

static size_t bucket_of(const struct set *set, int64_t node)
{
    return (size_t)(set->hashes[node] % set->n_buckets);
}

static bool set_grow(struct set *set, size_t n_buckets)
{
    int64_t *buckets = dcp_mem_calloc(n_buckets, sizeof *buckets);
    int64_t node = set->head;
    size_t first_bucket = 0;

    if (!buckets)
        return false;
    for (size_t i = 0; i < n_buckets; i++)
        buckets[i] = NONE;
    free(set->buckets);
    set->buckets = buckets;
    set->n_buckets = n_buckets;
    set->head = NONE;
    while (node != NONE) {
        int64_t following = set->next[node];
        size_t bucket = bucket_of(set, node);
        if (buckets[bucket] == NONE) {
            set->next[node] = set->head;
            set->head = node;
            buckets[bucket] = HEAD;
            if (set->next[node] != NONE)
                buckets[first_bucket] = node;
            first_bucket = bucket;
        } else {
            set->next[node] = *next_of(set, buckets[bucket]);
            *next_of(set, buckets[bucket]) = node;
        }
        node = following;
    }
    return true;
}

static void set_insert(struct set *set, int64_t node)
{
    size_t bucket = bucket_of(set, node);

    if (set->buckets[bucket] != NONE) {
        set->next[node] = *next_of(set, set->buckets[bucket]);
        *next_of(set, set->buckets[bucket]) = node;
        return;
    }
    set->next[node] = set->head;
    set->head = node;
    if (set->next[node] != NONE)
        set->buckets[bucket_of(set, set->next[node])] = node;
    set->buckets[bucket] = HEAD;
}

int dcp_torch_serialization_id(const struct dcp_torch_id_record *records, size_t n,
                               char out[41], struct dcp_error *err)
{
    DCP_CLEANUP_FREE uint64_t *hashes = dcp_mem_calloc(n, sizeof *hashes);
    DCP_CLEANUP_FREE int64_t *next = dcp_mem_calloc(n, sizeof *next);
    struct set set = { .hashes = hashes, .next = next, .head = NONE };
    uint64_t names = 0, checksums = 0;
    bool ok = hashes && next;
    size_t grown = 0;

    for (size_t i = 0; i < n && ok; i++) {
        if (i + 1 > set.n_buckets && grown < DCP_ARRAY_LEN(bucket_counts))
            ok = set_grow(&set, bucket_counts[grown++]);
        if (!ok)
            break;
        hashes[i] = hash_text(records[i].name);
        set_insert(&set, (int64_t)i);
        if (records[i].size_bytes)
            checksums = combine(checksums, records[i].crc32);
    }
    free(set.buckets);
    if (!ok)
        return dcp_error_memory(err, "a PyTorch file");
    for (int64_t node = set.head; node != NONE; node = next[node])
        names = combine(names, hashes[node]);
    snprintf(out, 41, "%020llu%020llu", (unsigned long long)names,
             (unsigned long long)checksums);
    return DCP_OK;
}
