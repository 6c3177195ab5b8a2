/* tokenizer_bpe: applies ranked merges to words. Lowest rank first, leftmost first
 * (Sennrich, Haddow, Birch 2016; on bytes as in GPT-2), in O(n log n) for a word of n
 * bytes. */
#include "tokenizer_bpe.h"

#include "base/arena.h"
#include "base/map.h"
#include "base/mem.h"
#include <string.h>

#define N_BYTES 256
#define NOWHERE UINT32_MAX /* no neighbour, no rank */

struct token {
    const char *bytes; /* NULL: no such id */
    size_t size_bytes;
};
struct merge {
    int32_t left, right, merged;
};

struct bpe {
    struct dcp_arena *arena; /* of the tokens' bytes */
    struct token *tokens;
    int32_t n_tokens;
    int32_t byte_ids[N_BYTES];
    struct merge *merges; /* by rank */
    size_t n_merges, cap_merges;
    struct dcp_map ranks; /* of pairs */
};

int bpe_new(int32_t n_ids, struct bpe **out, struct dcp_error *err)
{
    struct bpe *bpe = dcp_mem_calloc(1, sizeof *bpe);
    if (bpe) {
        bpe->arena = dcp_arena_new();
        bpe->tokens = dcp_mem_calloc((size_t)n_ids, sizeof *bpe->tokens);
    }
    if (!bpe || !bpe->arena || !bpe->tokens) {
        bpe_free(bpe);
        return dcp_error_memory(err, "the vocabulary");
    }
    bpe->n_tokens = n_ids;
    for (int b = 0; b < N_BYTES; b++)
        bpe->byte_ids[b] = -1;
    *out = bpe;
    return DCP_OK;
}

void bpe_free(struct bpe *bpe)
{
    if (!bpe)
        return;
    dcp_arena_free(bpe->arena);
    free(bpe->tokens);
    free(bpe->merges);
    dcp_map_fini(&bpe->ranks);
    free(bpe);
}

int bpe_add_token(struct bpe *bpe, int32_t id, const char *bytes, size_t size_bytes,
                  bool is_whole, struct dcp_error *err)
{
    struct token *token = &bpe->tokens[id];
    if (token->bytes)
        return dcp_error_set(err, DCP_E_CORRUPT, "two tokens have id %d", id);
    token->bytes = dcp_arena_copy(bpe->arena, bytes, size_bytes);
    if (!token->bytes)
        return dcp_error_memory(err, "the vocabulary");
    token->size_bytes = size_bytes;
    if (size_bytes == 1 && !is_whole)
        bpe->byte_ids[(unsigned char)*bytes] = id;
    return DCP_OK;
}

int bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t merged,
                  struct dcp_error *err)
{
    struct merge *grown =
        dcp_mem_grow(bpe->merges, &bpe->cap_merges, bpe->n_merges + 1, sizeof *grown);
    if (!grown || bpe->n_merges + 1 >= NOWHERE)
        return dcp_error_memory(err, "the merges");
    bpe->merges = grown;
    bpe->merges[bpe->n_merges++] =
        (struct merge){ .left = left, .right = right, .merged = merged };
    return DCP_OK;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static int64_t rank_of(const struct bpe *bpe, uint64_t pair)
{
    return dcp_map_find(&bpe->ranks, &pair, sizeof pair);
}

int bpe_finish(struct bpe *bpe, struct dcp_error *err)
{
    for (int b = 0; b < N_BYTES; b++)
        if (bpe->byte_ids[b] < 0)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "the vocabulary has no token for byte 0x%02x", b);
    for (size_t i = 0; i < bpe->n_merges; i++) {
        uint64_t pair = pair_of(bpe->merges[i].left, bpe->merges[i].right);
        int64_t rank = rank_of(bpe, pair);
        if (rank >= 0)
            return dcp_error_set(err, DCP_E_CORRUPT, "merges %lld and %zu are the same",
                                 (long long)rank + 1, i + 1);
        if (!dcp_map_set(&bpe->ranks, &pair, sizeof pair, (int64_t)i))
            return dcp_error_memory(err, "the merges");
    }
    return DCP_OK;
}

int bpe_vocab_size(const struct bpe *bpe)
{
    return bpe->n_tokens;
}

int32_t bpe_find(const struct bpe *bpe, const char *text)
{
    size_t size = strlen(text);
    for (int32_t id = 0; id < bpe->n_tokens; id++) {
        const struct token *token = &bpe->tokens[id];
        if (token->bytes && token->size_bytes == size &&
            memcmp(token->bytes, text, size) == 0)
            return id;
    }
    return -1;
}

const char *bpe_token(const struct bpe *bpe, int32_t id, size_t *out_size_bytes)
{
    if (id < 0 || id >= bpe->n_tokens)
        return NULL;
    *out_size_bytes = bpe->tokens[id].size_bytes;
    return bpe->tokens[id].bytes;
}

/* A symbol of the word that is being merged: one byte at first, then what a merge made.
 * `id` is -1 when it went into its left neighbour. */
struct node {
    int32_t id;
    uint32_t prev, next;
};
/* Memory that one call of bpe_encode uses for word after word. The heap holds possible
 * merges as rank << 32 | place of the left symbol: the least is the next to apply. */
struct scratch {
    struct node *nodes;
    uint64_t *heap;
    size_t n_heap, cap_nodes, cap_heap;
};

static void heap_push(struct scratch *s, uint64_t item)
{
    size_t at = s->n_heap++;
    while (at > 0 && s->heap[(at - 1) / 2] > item) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = item;
}

static uint64_t heap_pop(struct scratch *s)
{
    uint64_t least = s->heap[0], item = s->heap[--s->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child])
            child++;
        if (child >= s->n_heap || s->heap[child] >= item)
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = item;
    return least;
}

/* Notes the merge of the symbol at `place` with its right neighbour, when there is one.
 */
static void propose(const struct bpe *bpe, struct scratch *s, uint32_t place)
{
    if (place == NOWHERE || s->nodes[place].next == NOWHERE)
        return;
    const struct node *left = &s->nodes[place];
    int64_t rank = rank_of(bpe, pair_of(left->id, s->nodes[left->next].id));
    if (rank >= 0)
        heap_push(s, (uint64_t)rank << 32 | place);
}

/* Applies a noted merge, unless its symbols have changed since. */
static void apply(const struct bpe *bpe, struct scratch *s, uint64_t item)
{
    uint32_t place = (uint32_t)item;
    const struct merge *merge = &bpe->merges[item >> 32];
    struct node *left = &s->nodes[place];
    if (left->id != merge->left || left->next == NOWHERE ||
        s->nodes[left->next].id != merge->right)
        return;
    struct node *right = &s->nodes[left->next];
    left->id = merge->merged;
    left->next = right->next;
    right->id = -1;
    if (left->next != NOWHERE)
        s->nodes[left->next].prev = place;
    propose(bpe, s, left->prev);
    propose(bpe, s, place);
}

/* Room for a word of n bytes: each of its n - 1 merges at most proposes two more. */
static int scratch_reserve(struct scratch *s, size_t n, struct dcp_error *err)
{
    if (n >= NOWHERE / 3)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "a word of %zu bytes without a break is too long", n);
    struct node *nodes = dcp_mem_grow(s->nodes, &s->cap_nodes, n, sizeof *nodes);
    if (nodes)
        s->nodes = nodes;
    uint64_t *heap = dcp_mem_grow(s->heap, &s->cap_heap, 3 * n, sizeof *heap);
    if (heap)
        s->heap = heap;
    return nodes && heap ? DCP_OK : dcp_error_memory(err, "the merges of a word");
}

static int encode_word(const struct bpe *bpe, struct scratch *s, const char *word,
                       size_t n, struct tokenizer_ids *ids, struct dcp_error *err)
{
    DCP_TRY(scratch_reserve(s, n, err));
    int32_t *grown = dcp_mem_grow(ids->ids, &ids->cap, ids->n + n, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the ids of a text");
    ids->ids = grown;

    for (uint32_t i = 0; i < n; i++)
        s->nodes[i] = (struct node){
            .id = bpe->byte_ids[(unsigned char)word[i]],
            .prev = i ? i - 1 : NOWHERE,
            .next = i + 1 < n ? i + 1 : NOWHERE,
        };
    s->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        propose(bpe, s, i);
    while (s->n_heap)
        apply(bpe, s, heap_pop(s));
    for (uint32_t i = 0; i != NOWHERE; i = s->nodes[i].next)
        ids->ids[ids->n++] = s->nodes[i].id;
    return DCP_OK;
}

int bpe_encode(const struct bpe *bpe, const char *text, size_t size_bytes,
               struct tokenizer_ids *ids, struct dcp_error *err)
{
    struct scratch scratch = { 0 };
    int rc = DCP_OK;
    for (size_t at = 0, n; !rc && at < size_bytes; at += n) {
        n = tokenizer_word(text + at, size_bytes - at);
        rc = encode_word(bpe, &scratch, text + at, n, ids, err);
    }
    free(scratch.nodes);
    free(scratch.heap);
    return rc;
}
