/* The names in a pickle, of opcodes too that are refused elsewhere: what can be read as a
 * checkpoint is read as far, and tells no fewer names than stand in it. */
#include "base/arena.h"
#include "formats/pickle/pickle.h"
#include <dcp/globals.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

enum { SHORT = 1000 }; /* longer names are cut where they are told */

static int take(void *self, const char *name, struct dcp_error *err)
{
    (void)err;
    ++*(size_t *)self;
    if (!name[0] || !dcp_global_kind_name(dcp_global_judge(name)))
        abort();
    return 0;
}

/* Classes of the tree: at least this many names must be told. */
static size_t count(const struct dcp_pickle_node *node)
{
    return node && node->kind == DCP_PICKLE_GLOBAL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    size_t n = 0, used, parsed = 0;
    const struct dcp_pickle_names names = { .take = take, .self = &n };
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_pickle_node *root;
    struct dcp_error err = { 0 };

    if (!arena)
        abort();
    int rc = dcp_pickle_names(data, size_bytes, &names, &used, &err);
    if (used > size_bytes || (rc && !err.message[0]))
        abort();
    if (size_bytes < SHORT &&
        !dcp_pickle_parse(data, size_bytes, arena, &root, &parsed, NULL) &&
        (rc || used != parsed || n < count(root)))
        abort();
    dcp_arena_free(arena);
    return 0;
}
