/* arena: memory that is freed all at once. Thread rule: one arena, one thread. */
#ifndef DCP_BASE_ARENA_H
#define DCP_BASE_ARENA_H

#include <stddef.h>

struct dcp_arena;

struct dcp_arena *dcp_arena_new(void); /* NULL: out of memory */
void dcp_arena_free(struct dcp_arena *arena);
/* n × size_bytes zeroed bytes aligned for any type; NULL: out of memory or overflow. */
void *dcp_arena_alloc(struct dcp_arena *arena, size_t n, size_t size_bytes);
/* Copies; NULL: out of memory. */
void *dcp_arena_copy(struct dcp_arena *arena, const void *data, size_t size_bytes);
char *dcp_arena_text(struct dcp_arena *arena, const char *text);
char *dcp_arena_text_n(struct dcp_arena *arena, const char *text, size_t n);

#endif
