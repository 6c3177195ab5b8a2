/* names: the opcodes that no checkpoint needs. They are run only where names are
 * wanted, so that a pickle tells them all. */
#include "base/mem.h"
#include "base/str.h"
#include "globals.h"
#include "machine.h"
#include <string.h>

static int push_none(struct dcp_pickle_machine *m)
{
    return dcp_pickle_push_new(m, dcp_pickle_node_new(m, DCP_PICKLE_NONE));
}

/* (mark, args…) INST: a class by two lines, called. */
static int op_inst(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node **items, *cls;
    size_t n;

    DCP_TRY(dcp_pickle_pop_mark(m, &items, &n));
    DCP_TRY(dcp_pickle_push_global(m, m->text, m->text_len, m->text2, m->text2_len));
    DCP_TRY(dcp_pickle_pop(m, &cls));
    return dcp_pickle_push_object(m, cls, NULL, NULL);
}

/* (mark, class, args…) OBJ */
static int op_obj(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node **items;
    size_t n;

    DCP_TRY(dcp_pickle_pop_mark(m, &items, &n));
    if (!n)
        return dcp_pickle_broken(m, "there is no class");
    return dcp_pickle_push_object(m, items[0], NULL, NULL);
}

/* A class by a number of copyreg's registry, whatever that holds. */
static int op_ext(struct dcp_pickle_machine *m)
{
    static const char module[] = "copyreg", name[] = "_inverted_registry";

    return dcp_pickle_push_global(m, module, sizeof module - 1, name, sizeof name - 1);
}

/* A line that is a text, perhaps in quotes. */
static int op_text(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *node = dcp_pickle_node_new(m, DCP_PICKLE_STR);
    bool quoted = m->text_len >= 2 && (m->text[0] == '\'' || m->text[0] == '"');

    if (node) {
        node->text.data = m->text + quoted;
        node->text.size_bytes = m->text_len - 2 * (size_t)quoted;
    }
    return dcp_pickle_push_new(m, node);
}

static bool parse_index(const struct dcp_pickle_machine *m, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < m->text_len && m->text_len < 12; i++) {
        if (m->text[i] < '0' || m->text[i] > '9')
            return false;
        *out = 10 * *out + (uint64_t)(m->text[i] - '0');
    }
    return m->text_len && m->text_len < 12;
}

/* Python takes signs, blanks and underscores, too. */
static int bad_index(struct dcp_pickle_machine *m)
{
    static const char what[] = "the index is no number";

    for (size_t i = 0; i < m->text_len; i++)
        if (!strchr("0123456789+-_ \t\r\f\v", m->text[i]) || !m->text[i])
            return dcp_pickle_broken(m, what);
    return dcp_pickle_corrupt(m, what);
}

static int op_get(struct dcp_pickle_machine *m)
{
    uint64_t index;

    return parse_index(m, &index) ? dcp_pickle_memo_get(m, index) : bad_index(m);
}

static int op_put(struct dcp_pickle_machine *m)
{
    uint64_t index;

    return parse_index(m, &index) ? dcp_pickle_memo_set(m, index) : bad_index(m);
}

static int push_marked(struct dcp_pickle_machine *m, enum dcp_pickle_kind kind)
{
    struct dcp_pickle_node **items, *node = dcp_pickle_node_new(m, kind);
    size_t n;

    DCP_TRY(dcp_pickle_pop_mark(m, &items, &n));
    return dcp_pickle_push_new(m, node);
}

static int op_list(struct dcp_pickle_machine *m)
{
    return push_marked(m, DCP_PICKLE_LIST);
}

static int op_dict(struct dcp_pickle_machine *m)
{
    return push_marked(m, DCP_PICKLE_DICT);
}

static int op_nothing(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *top;

    return dcp_pickle_top(m, &top);
}

const struct dcp_pickle_op dcp_pickle_name_ops[256] = {
    ['i'] = { "INST", TWO_LINES, op_inst },
    ['o'] = { "OBJ", NOTHING, op_obj },
    [0x82] = { "EXT1", U1, op_ext },
    [0x83] = { "EXT2", U2, op_ext },
    [0x84] = { "EXT4", I4, op_ext },
    [0x97] = { "NEXT_BUFFER", NOTHING, push_none },
    [0x98] = { "READONLY_BUFFER", NOTHING, op_nothing },
    ['P'] = { "PERSID", ONE_LINE, push_none },
    ['I'] = { "INT", ONE_LINE, push_none },
    ['L'] = { "LONG", ONE_LINE, push_none },
    ['F'] = { "FLOAT", ONE_LINE, push_none },
    ['S'] = { "STRING", ONE_LINE, op_text },
    ['V'] = { "UNICODE", ONE_LINE, op_text },
    ['g'] = { "GET", ONE_LINE, op_get },
    ['p'] = { "PUT", ONE_LINE, op_put },
    ['l'] = { "LIST", NOTHING, op_list },
    ['d'] = { "DICT", NOTHING, op_dict },
};
