#include "arena.h"

#include "mem.h"
#include <stdalign.h>
#include <string.h>

#define FIRST_CHUNK_BYTES 4096
#define LARGEST_CHUNK_BYTES (1u << 20)

struct chunk {
    struct chunk *next;
    size_t size_bytes, used;
    max_align_t data[];
};

struct dcp_arena {
    struct chunk *chunks; /* the one that is being filled comes first */
    size_t next_bytes;
};

struct dcp_arena *dcp_arena_new(void)
{
    struct dcp_arena *arena = calloc(1, sizeof *arena);
    if (arena)
        arena->next_bytes = FIRST_CHUNK_BYTES;
    return arena;
}

void dcp_arena_free(struct dcp_arena *arena)
{
    if (!arena)
        return;
    for (struct chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(arena);
}

static struct chunk *chunk_new(size_t size_bytes)
{
    if (size_bytes > SIZE_MAX - sizeof(struct chunk))
        return NULL;
    struct chunk *c = calloc(1, sizeof *c + size_bytes);
    if (c)
        c->size_bytes = size_bytes;
    return c;
}

void *dcp_arena_alloc(struct dcp_arena *arena, size_t n, size_t size_bytes)
{
    const size_t align = alignof(max_align_t);
    size_t want;
    if (!dcp_mul_size(n, size_bytes, &want) || want > SIZE_MAX - align)
        return NULL;
    want = want ? (want + align - 1) / align * align : align;

    struct chunk *c = arena->chunks;
    if (!c || want > c->size_bytes - c->used) {
        bool large = want > arena->next_bytes / 2;
        struct chunk *fresh = chunk_new(large ? want : arena->next_bytes);
        if (!fresh)
            return NULL;
        if (large && c) { /* a chunk of its own, behind the one that still has room */
            fresh->next = c->next;
            c->next = fresh;
        } else {
            fresh->next = c;
            arena->chunks = fresh;
        }
        if (!large && arena->next_bytes < LARGEST_CHUNK_BYTES)
            arena->next_bytes *= 2;
        c = fresh;
    }
    void *out = (unsigned char *)c->data + c->used;
    c->used += want;
    return out;
}

void *dcp_arena_copy(struct dcp_arena *arena, const void *data, size_t size_bytes)
{
    void *out = dcp_arena_alloc(arena, size_bytes, 1);
    if (out && size_bytes)
        memcpy(out, data, size_bytes);
    return out;
}

char *dcp_arena_text_n(struct dcp_arena *arena, const char *text, size_t n)
{
    char *out = n < SIZE_MAX ? dcp_arena_alloc(arena, n + 1, 1) : NULL;
    if (out && n)
        memcpy(out, text, n);
    return out;
}

char *dcp_arena_text(struct dcp_arena *arena, const char *text)
{
    return dcp_arena_text_n(arena, text, strlen(text));
}
