/* value: the opcodes that make values and containers. */
#include "base/mem.h"
#include "base/str.h"
#include "machine.h"
#include <string.h>

enum { SURROGATE_BYTES = 3 };

static int op_none(struct dcp_pickle_machine *m)
{
    return dcp_pickle_push_new(m, dcp_pickle_node_new(m, DCP_PICKLE_NONE));
}

static int push_bool(struct dcp_pickle_machine *m, bool truth)
{
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_BOOL);

    if (node)
        node->truth = truth;
    return dcp_pickle_push_new(m, node);
}

static int op_true(struct dcp_pickle_machine *m)
{
    return push_bool(m, true);
}

static int op_false(struct dcp_pickle_machine *m)
{
    return push_bool(m, false);
}

static int op_int(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_INT);

    if (node)
        node->number = (int64_t)m->arg;
    return dcp_pickle_push_new(m, node);
}

static int op_long(struct dcp_pickle_machine *m)
{
    const unsigned char *bytes = (const unsigned char *)m->text;
    bool small = m->text_len <= 8;
    struct dcp_pickle_node *node =
        dcp_pickle_node_new(m, small ? DCP_PICKLE_INT : DCP_PICKLE_LONG);

    if (node && small) {
        uint64_t v = m->text_len && bytes[m->text_len - 1] & 0x80 ? UINT64_MAX : 0;
        for (size_t i = m->text_len; i-- > 0;)
            v = v << 8 | bytes[i];
        node->number = (int64_t)v;
    } else if (node) {
        node->text.data = m->text;
        node->text.size_bytes = m->text_len;
    }
    return dcp_pickle_push_new(m, node);
}

static int op_float(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_FLOAT);
    uint64_t bits = __builtin_bswap64(m->arg); /* the one big-endian number here */

    if (node)
        memcpy(&node->real, &bits, sizeof bits);
    return dcp_pickle_push_new(m, node);
}

static int push_text(struct dcp_pickle_machine *m, enum dcp_pickle_kind kind)
{
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, kind);

    if (node) {
        node->text.data = m->text;
        node->text.size_bytes = m->text_len;
    }
    return dcp_pickle_push_new(m, node);
}

/* UTF-8; unlike names elsewhere it may hold NUL, for it may be encoded bytes. */
static bool utf8_ok(const char *text, size_t n)
{
    while (n) {
        const char *nul = memchr(text, 0, n);
        size_t part = nul ? (size_t)(nul - text) : n;
        if (part && !dcp_str_utf8_ok(text, part))
            return false;
        part += nul != NULL;
        text += part;
        n -= part;
    }
    return true;
}

/* The length of the text before the next half of a surrogate pair, which Python takes and
 * which is no UTF-8: three bytes. */
static size_t before_surrogate(const char *text, size_t n)
{
    const unsigned char *at = (const unsigned char *)text;

    for (size_t i = 0; i + 2 < n; i++)
        if (at[i] == 0xed && (at[i + 1] & 0xe0) == 0xa0 && (at[i + 2] & 0xc0) == 0x80)
            return i;
    return n;
}

static int op_str(struct dcp_pickle_machine *m)
{
    bool surrogates = false;

    for (size_t i = 0; i < m->text_len; i += SURROGATE_BYTES) {
        size_t n = before_surrogate(m->text + i, m->text_len - i);
        if (!utf8_ok(m->text + i, n))
            return dcp_pickle_broken(m, "a string is not UTF-8");
        i += n;
        surrogates |= i < m->text_len;
    }
    if (surrogates)
        return dcp_error_set(m->err, DCP_E_UNSUPPORTED,
                             "a string of the pickle holds half of a surrogate "
                             "pair, which is not supported");
    return push_text(m, DCP_PICKLE_STR);
}

/* A str of Python 2 is text when it is ASCII, and bytes otherwise. */
static int op_py2_str(struct dcp_pickle_machine *m)
{
    for (size_t i = 0; i < m->text_len; i++)
        if ((unsigned char)m->text[i] >= 0x80)
            return push_text(m, DCP_PICKLE_BYTES);
    return push_text(m, DCP_PICKLE_STR);
}

static int op_bytes(struct dcp_pickle_machine *m)
{
    return push_text(m, DCP_PICKLE_BYTES);
}

static int op_bytearray(struct dcp_pickle_machine *m)
{
    return push_text(m, DCP_PICKLE_BYTEARRAY);
}

/* -- containers ---------------------------------------------------------------------- */

int dcp_pickle_list_add(struct dcp_pickle_machine *m, struct dcp_pickle_list *list,
                        struct dcp_pickle_node *const *items, size_t n)
{
    if (!n)
        return DCP_OK;
    if (n > list->cap - list->n) {
        size_t cap = 2 * list->cap > list->n + n ? 2 * list->cap : list->n + n;
        struct dcp_pickle_node **grown = dcp_arena_alloc(m->arena, cap, sizeof *grown);
        if (!grown)
            return dcp_pickle_no_memory(m);
        if (list->n)
            memcpy(grown, list->items, list->n * sizeof *grown);
        list->items = grown;
        list->cap = cap;
    }
    memcpy(list->items + list->n, items, n * sizeof *items);
    list->n += n;
    return DCP_OK;
}

static int push_list(struct dcp_pickle_machine *m, enum dcp_pickle_kind kind,
                     struct dcp_pickle_node *const *items, size_t n)
{
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, kind);
    int rc = node ? dcp_pickle_list_add(m, &node->list, items, n) : DCP_OK;

    return rc ? rc : dcp_pickle_push_new(m, node);
}

static int op_empty_list(struct dcp_pickle_machine *m)
{
    return push_list(m, DCP_PICKLE_LIST, NULL, 0);
}

static int op_empty_dict(struct dcp_pickle_machine *m)
{
    return push_list(m, DCP_PICKLE_DICT, NULL, 0);
}

static int op_empty_set(struct dcp_pickle_machine *m)
{
    return push_list(m, DCP_PICKLE_SET, NULL, 0);
}

static int op_empty_tuple(struct dcp_pickle_machine *m)
{
    return push_list(m, DCP_PICKLE_TUPLE, NULL, 0);
}

static int push_tuple(struct dcp_pickle_machine *m, size_t n)
{
    if (dcp_pickle_reach(m) < n)
        return dcp_pickle_broken(m, "the stack is too short");
    m->n_stack -= n;
    return push_list(m, DCP_PICKLE_TUPLE, m->stack + m->n_stack, n);
}

static int op_tuple1(struct dcp_pickle_machine *m)
{
    return push_tuple(m, 1);
}

static int op_tuple2(struct dcp_pickle_machine *m)
{
    return push_tuple(m, 2);
}

static int op_tuple3(struct dcp_pickle_machine *m)
{
    return push_tuple(m, 3);
}

static int push_marked(struct dcp_pickle_machine *m, enum dcp_pickle_kind kind)
{
    struct dcp_pickle_node **items;
    size_t n;

    DCP_TRY(dcp_pickle_pop_mark(m, &items, &n));
    return push_list(m, kind, items, n);
}

static int op_tuple(struct dcp_pickle_machine *m)
{
    return push_marked(m, DCP_PICKLE_TUPLE);
}

static int op_frozenset(struct dcp_pickle_machine *m)
{
    return push_marked(m, DCP_PICKLE_FROZENSET);
}

/* The list of a container on top of the stack that the opcode may add to: `kind` itself,
 * or an object whose class may behave like it. */
static int target(struct dcp_pickle_machine *m, enum dcp_pickle_kind kind,
                  struct dcp_pickle_list **out)
{
    struct dcp_pickle_node *node;

    DCP_TRY(dcp_pickle_top(m, &node));
    if (node->kind == kind)
        *out = &node->list;
    else if (node->kind == DCP_PICKLE_OBJECT)
        *out = kind == DCP_PICKLE_DICT ? &node->object->pairs : &node->object->items;
    else
        return dcp_pickle_corrupt(m, "the object below cannot take items");
    return DCP_OK;
}

static int add_marked(struct dcp_pickle_machine *m, enum dcp_pickle_kind kind)
{
    struct dcp_pickle_node **items;
    struct dcp_pickle_list *list = NULL;
    size_t n;

    DCP_TRY(dcp_pickle_pop_mark(m, &items, &n));
    DCP_TRY(target(m, kind, &list));
    if (kind == DCP_PICKLE_DICT && n % 2)
        return dcp_pickle_corrupt(m, "a key has no value");
    return dcp_pickle_list_add(m, list, items, n);
}

static int op_appends(struct dcp_pickle_machine *m)
{
    return add_marked(m, DCP_PICKLE_LIST);
}

static int op_setitems(struct dcp_pickle_machine *m)
{
    return add_marked(m, DCP_PICKLE_DICT);
}

static int op_additems(struct dcp_pickle_machine *m)
{
    return add_marked(m, DCP_PICKLE_SET);
}

static int op_append(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *item;
    struct dcp_pickle_list *list = NULL;

    DCP_TRY(dcp_pickle_pop(m, &item));
    DCP_TRY(target(m, DCP_PICKLE_LIST, &list));
    return dcp_pickle_list_add(m, list, &item, 1);
}

static int op_setitem(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *pair[2];
    struct dcp_pickle_list *list = NULL;

    DCP_TRY(dcp_pickle_pop(m, &pair[1]));
    DCP_TRY(dcp_pickle_pop(m, &pair[0]));
    DCP_TRY(target(m, DCP_PICKLE_DICT, &list));
    return dcp_pickle_list_add(m, list, pair, 2);
}

const struct dcp_pickle_op dcp_pickle_value_ops[256] = {
    ['N'] = { "NONE", NOTHING, op_none },
    [0x88] = { "NEWTRUE", NOTHING, op_true },
    [0x89] = { "NEWFALSE", NOTHING, op_false },
    ['J'] = { "BININT", I4, op_int },
    ['K'] = { "BININT1", U1, op_int },
    ['M'] = { "BININT2", U2, op_int },
    [0x8a] = { "LONG1", BYTES_1, op_long },
    [0x8b] = { "LONG4", BYTES_4, op_long },
    ['G'] = { "BINFLOAT", U8, op_float },
    ['X'] = { "BINUNICODE", BYTES_4, op_str },
    [0x8c] = { "SHORT_BINUNICODE", BYTES_1, op_str },
    [0x8d] = { "BINUNICODE8", BYTES_8, op_str },
    ['T'] = { "BINSTRING", BYTES_4, op_py2_str },
    ['U'] = { "SHORT_BINSTRING", BYTES_1, op_py2_str },
    ['B'] = { "BINBYTES", BYTES_4, op_bytes },
    ['C'] = { "SHORT_BINBYTES", BYTES_1, op_bytes },
    [0x8e] = { "BINBYTES8", BYTES_8, op_bytes },
    [0x96] = { "BYTEARRAY8", BYTES_8, op_bytearray },
    [']'] = { "EMPTY_LIST", NOTHING, op_empty_list },
    ['a'] = { "APPEND", NOTHING, op_append },
    ['e'] = { "APPENDS", NOTHING, op_appends },
    ['}'] = { "EMPTY_DICT", NOTHING, op_empty_dict },
    ['s'] = { "SETITEM", NOTHING, op_setitem },
    ['u'] = { "SETITEMS", NOTHING, op_setitems },
    [')'] = { "EMPTY_TUPLE", NOTHING, op_empty_tuple },
    ['t'] = { "TUPLE", NOTHING, op_tuple },
    [0x85] = { "TUPLE1", NOTHING, op_tuple1 },
    [0x86] = { "TUPLE2", NOTHING, op_tuple2 },
    [0x87] = { "TUPLE3", NOTHING, op_tuple3 },
    [0x8f] = { "EMPTY_SET", NOTHING, op_empty_set },
    [0x90] = { "ADDITEMS", NOTHING, op_additems },
    [0x91] = { "FROZENSET", NOTHING, op_frozenset },
};
