/* A pickle, and what is made of it: the tree, JSON, and again a pickle. */
#include "base/arena.h"
#include "base/json.h"
#include "formats/pickle/json.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* Stands for whatever lies outside the pickle. */
static int take(void *self, const struct dcp_pickle_node *node, const char *path,
                json_t **out, struct dcp_error *err)
{
    (void)self;
    (void)path;
    (void)err;
    if (node->kind == DCP_PICKLE_PERSID)
        *out = json_null();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    const struct dcp_pickle_hook hook = { .take = take };
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_pickle_node *root;
    struct dcp_error err = { 0 };
    json_t *json = NULL;
    size_t used;

    if (!arena)
        abort();
    int rc = dcp_pickle_parse(data, size_bytes, arena, &root, &used, &err);
    if (!rc && (used > size_bytes || data[used - 1] != '.'))
        abort();
    if (!rc)
        rc = dcp_pickle_to_json(root, arena, &hook, &json, &err);
    if (!rc) {
        /* The JSON is such that base/json.h reads it again, equal. */
        char *text = dcp_json_text(json, 0);
        json_t *again = NULL;
        if (!text || dcp_json_parse(text, strlen(text), "pickle", &again, &err) ||
            !json_equal(json, again))
            abort();
        json_decref(again);
        free(text);
    }
    if (rc && !err.message[0])
        abort();
    json_decref(json);
    dcp_arena_free(arena);
    return 0;
}
