/* tree: checks a tree that was read, and answers questions about its nodes. */
#include "base/mem.h"
#include "machine.h"
#include <string.h>

/* The i-th child of a node, or NULL behind the last. *out_none: there is no such child,
 * but there may be further ones. */
static struct dcp_pickle_node *child(const struct dcp_pickle_node *node, size_t i,
                                     bool *out_none)
{
    *out_none = false;
    switch (node->kind) {
    case DCP_PICKLE_TUPLE:
    case DCP_PICKLE_LIST:
    case DCP_PICKLE_DICT:
    case DCP_PICKLE_SET:
    case DCP_PICKLE_FROZENSET:
        return i < node->list.n ? node->list.items[i] : NULL;
    case DCP_PICKLE_PERSID:
        return i == 0 ? node->id : NULL;
    case DCP_PICKLE_OBJECT: {
        const struct dcp_pickle_object *o = node->object;
        struct dcp_pickle_node *const fixed[] = { o->cls, o->args, o->kwargs, o->state };
        if (i < DCP_ARRAY_LEN(fixed)) {
            *out_none = !fixed[i];
            return fixed[i];
        }
        i -= DCP_ARRAY_LEN(fixed);
        if (i < o->items.n)
            return o->items.items[i];
        i -= o->items.n;
        return i < o->pairs.n ? o->pairs.items[i] : NULL;
    }
    default:
        return NULL;
    }
}

#define ON_PATH UINT32_MAX

int dcp_pickle_check_tree(struct dcp_pickle_node *root, struct dcp_error *err)
{
    struct step {
        struct dcp_pickle_node *node;
        size_t next;
        uint32_t height; /* of the highest child so far */
    };
    DCP_CLEANUP_FREE struct step *path =
        dcp_mem_calloc(DCP_PICKLE_MAX_DEPTH, sizeof *path);
    size_t n = 0;

    if (!path)
        return dcp_error_memory(err, "a pickle");
    path[n++] = (struct step){ .node = root };
    root->height = ON_PATH;
    while (n) {
        struct step *step = &path[n - 1];
        bool none;
        struct dcp_pickle_node *node = child(step->node, step->next, &none);
        step->next++;
        if (none)
            continue;
        if (!node) {
            step->node->height = step->height + 1;
            if (n > 1 && path[n - 2].height < step->node->height)
                path[n - 2].height = step->node->height;
            n--;
        } else if (node->height == ON_PATH) {
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "an object of the pickle contains itself, which is not "
                                 "supported");
        } else if (node->height) {
            if (step->height < node->height)
                step->height = node->height;
        } else {
            if (n >= DCP_PICKLE_MAX_DEPTH)
                return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                     "the pickle is nested over %d deep",
                                     DCP_PICKLE_MAX_DEPTH);
            node->height = ON_PATH;
            path[n++] = (struct step){ .node = node };
        }
    }
    if (root->height > DCP_PICKLE_MAX_DEPTH)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "the pickle is nested over %d deep",
                             DCP_PICKLE_MAX_DEPTH);
    return DCP_OK;
}

bool dcp_pickle_is_global(const struct dcp_pickle_node *node, const char *module,
                          const char *name)
{
    return node && node->kind == DCP_PICKLE_GLOBAL && !strcmp(node->global.name, name) &&
           !strcmp(node->global.module, module);
}

bool dcp_pickle_is_call(const struct dcp_pickle_node *node, const char *module,
                        const char *name)
{
    return node && node->kind == DCP_PICKLE_OBJECT &&
           dcp_pickle_is_global(node->object->cls, module, name);
}

bool dcp_pickle_is_text(const struct dcp_pickle_node *node, const char *text)
{
    return node && node->kind == DCP_PICKLE_STR &&
           node->text.size_bytes == strlen(text) &&
           !memcmp(node->text.data, text, node->text.size_bytes);
}

const struct dcp_pickle_list *dcp_pickle_pairs(const struct dcp_pickle_node *node)
{
    if (node && node->kind == DCP_PICKLE_DICT)
        return &node->list;
    if (dcp_pickle_is_call(node, "collections", "OrderedDict") ||
        dcp_pickle_is_call(node, "collections", "defaultdict") ||
        dcp_pickle_is_call(node, "collections", "Counter"))
        return &node->object->pairs;
    return NULL;
}

const struct dcp_pickle_node *dcp_pickle_get(const struct dcp_pickle_node *node,
                                             const char *key)
{
    const struct dcp_pickle_list *pairs = dcp_pickle_pairs(node);

    for (size_t i = pairs ? pairs->n : 0; i >= 2; i -= 2)
        if (dcp_pickle_is_text(pairs->items[i - 2], key))
            return pairs->items[i - 1];
    return NULL;
}

const struct dcp_pickle_node *dcp_pickle_item(const struct dcp_pickle_node *node,
                                              size_t i)
{
    if (node && node->kind == DCP_PICKLE_OBJECT)
        node = node->object->args;
    if (!node || (node->kind != DCP_PICKLE_TUPLE && node->kind != DCP_PICKLE_LIST) ||
        i >= node->list.n)
        return NULL;
    return node->list.items[i];
}

/* UTF-8 text of code points below 256 to the bytes it encodes. */
static bool latin1_decode(const char *text, size_t n, unsigned char *out, size_t *out_n)
{
    size_t written = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned c = (unsigned char)text[i];
        if (c >= 0x80) {
            if ((c != 0xc2 && c != 0xc3) || i + 1 >= n)
                return false;
            c = (c & 3) << 6 | ((unsigned char)text[++i] & 0x3f);
        }
        out[written++] = (unsigned char)c;
    }
    *out_n = written;
    return true;
}

int dcp_pickle_bytes(const struct dcp_pickle_node *node, struct dcp_arena *arena,
                     bool *out_found, const unsigned char **out, size_t *out_size_bytes,
                     struct dcp_error *err)
{
    *out_found = false;
    /* bytearray(b'…') and bytes(b'…') hold what they were made from. */
    if ((dcp_pickle_is_call(node, "builtins", "bytearray") ||
         dcp_pickle_is_call(node, "builtins", "bytes")) &&
        node->object->args->list.n <= 1) {
        if (!node->object->args->list.n) {
            *out_found = true;
            *out = (const unsigned char *)"";
            *out_size_bytes = 0;
            return DCP_OK;
        }
        node = node->object->args->list.items[0];
    }
    if (node->kind == DCP_PICKLE_BYTES || node->kind == DCP_PICKLE_BYTEARRAY) {
        *out_found = true;
        *out = (const unsigned char *)node->text.data;
        *out_size_bytes = node->text.size_bytes;
        return DCP_OK;
    }
    const struct dcp_pickle_node *text = dcp_pickle_item(node, 0);
    if (!dcp_pickle_is_call(node, "_codecs", "encode") || !text ||
        text->kind != DCP_PICKLE_STR ||
        !dcp_pickle_is_text(dcp_pickle_item(node, 1), "latin1"))
        return DCP_OK;
    unsigned char *data = dcp_arena_alloc(arena, text->text.size_bytes + 1, 1);
    if (!data)
        return dcp_error_memory(err, "bytes of a pickle");
    *out_found =
        latin1_decode(text->text.data, text->text.size_bytes, data, out_size_bytes);
    *out = data;
    return DCP_OK;
}
