/* stack: the stack, the marks and the memo of the machine, and their opcodes. */
#include "base/mem.h"
#include "machine.h"
#include <string.h>

#define MAX_PROTOCOL 5

int dcp_pickle_corrupt(struct dcp_pickle_machine *m, const char *what)
{
    return dcp_error_set(m->err, DCP_E_CORRUPT, "pickle opcode %s at byte %zu: %s",
                         m->op_name, m->op_at, what);
}

int dcp_pickle_broken(struct dcp_pickle_machine *m, const char *what)
{
    m->why = DCP_PICKLE_BROKEN;
    return dcp_pickle_corrupt(m, what);
}

int dcp_pickle_cut_off(struct dcp_pickle_machine *m, const char *what)
{
    m->why = DCP_PICKLE_CUT_OFF;
    return dcp_pickle_corrupt(m, what);
}

int dcp_pickle_no_memory(struct dcp_pickle_machine *m)
{
    return dcp_error_memory(m->err, "a pickle");
}

int dcp_pickle_push(struct dcp_pickle_machine *m, struct dcp_pickle_node *node)
{
    struct dcp_pickle_node **stack =
        dcp_mem_grow(m->stack, &m->cap_stack, m->n_stack + 1, sizeof *stack);

    if (!stack)
        return dcp_pickle_no_memory(m);
    m->stack = stack;
    stack[m->n_stack++] = node;
    m->n_held += m->names && dcp_pickle_is_getattr(node);
    return DCP_OK;
}

/* Items above the last mark: no opcode but those that take a mark reaches below it. */
size_t dcp_pickle_reach(const struct dcp_pickle_machine *m)
{
    return m->n_stack - (m->n_marks ? m->marks[m->n_marks - 1] : 0);
}

int dcp_pickle_pop(struct dcp_pickle_machine *m, struct dcp_pickle_node **out)
{
    if (!dcp_pickle_reach(m))
        return dcp_pickle_broken(m, "the stack is empty");
    *out = m->stack[--m->n_stack];
    return DCP_OK;
}

int dcp_pickle_top(struct dcp_pickle_machine *m, struct dcp_pickle_node **out)
{
    if (!dcp_pickle_reach(m))
        return dcp_pickle_broken(m, "the stack is empty");
    *out = m->stack[m->n_stack - 1];
    return DCP_OK;
}

/* Takes the last mark and all above it; *out points into the stack until the next push.
 */
int dcp_pickle_pop_mark(struct dcp_pickle_machine *m, struct dcp_pickle_node ***out,
                        size_t *out_n)
{
    if (!m->n_marks)
        return dcp_pickle_broken(m, "there is no mark");
    size_t height = m->marks[--m->n_marks];
    *out = m->stack ? m->stack + height : NULL;
    *out_n = m->n_stack - height;
    m->n_stack = height;
    return DCP_OK;
}

struct dcp_pickle_node *dcp_pickle_node_new(struct dcp_pickle_machine *m,
                                            enum dcp_pickle_kind kind)
{
    if (m->n_nodes >= DCP_PICKLE_MAX_NODES) {
        dcp_error_set(m->err, DCP_E_UNSUPPORTED, "a pickle has over %u objects",
                      DCP_PICKLE_MAX_NODES);
        return NULL;
    }
    m->n_nodes++;
    struct dcp_pickle_node *node = dcp_arena_alloc(m->arena, 1, sizeof *node);
    if (node)
        node->kind = kind;
    else
        dcp_pickle_no_memory(m);
    return node;
}

/* Pushes what node_new made; the error is set when it is NULL. */
int dcp_pickle_push_new(struct dcp_pickle_machine *m, struct dcp_pickle_node *node)
{
    return node                     ? dcp_pickle_push(m, node)
           : m->err && m->err->code ? m->err->code
                                    : DCP_E_MEMORY;
}

int dcp_pickle_memo_set(struct dcp_pickle_machine *m, uint64_t index)
{
    struct dcp_pickle_node *node = NULL;

    DCP_TRY(dcp_pickle_top(m, &node));
    /* Real writers count from 0, one opcode each: an index over the size is a bomb. */
    if (index >= m->in.size_bytes)
        return dcp_pickle_corrupt(m, "the memo index is larger than any real pickle's");
    size_t old_cap = m->cap_memo;
    struct dcp_pickle_node **memo =
        dcp_mem_grow(m->memo, &m->cap_memo, (size_t)index + 1, sizeof *memo);
    if (!memo)
        return dcp_pickle_no_memory(m);
    m->memo = memo;
    memset(memo + old_cap, 0, (m->cap_memo - old_cap) * sizeof *memo);
    m->n_memoized += !memo[index];
    memo[index] = node;
    if (index >= m->n_memo)
        m->n_memo = (size_t)index + 1;
    return DCP_OK;
}

static int op_put(struct dcp_pickle_machine *m)
{
    return dcp_pickle_memo_set(m, m->arg);
}

/* The next index is how many there are, as in CPython: where BINPUT left a gap, that one
 * may be set already. */
static int op_memoize(struct dcp_pickle_machine *m)
{
    return dcp_pickle_memo_set(m, m->n_memoized);
}

int dcp_pickle_memo_get(struct dcp_pickle_machine *m, uint64_t index)
{
    if (index >= m->n_memo || !m->memo[index])
        return dcp_pickle_broken(m, "nothing was remembered under that index");
    return dcp_pickle_push(m, m->memo[index]);
}

static int op_get(struct dcp_pickle_machine *m)
{
    return dcp_pickle_memo_get(m, m->arg);
}

static int op_mark(struct dcp_pickle_machine *m)
{
    size_t *marks = dcp_mem_grow(m->marks, &m->cap_marks, m->n_marks + 1, sizeof *marks);

    if (!marks)
        return dcp_pickle_no_memory(m);
    m->marks = marks;
    marks[m->n_marks++] = m->n_stack;
    return DCP_OK;
}

static int op_pop(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *node;

    if (m->n_marks && !dcp_pickle_reach(m)) {
        m->n_marks--;
        return DCP_OK;
    }
    return dcp_pickle_pop(m, &node);
}

static int op_pop_mark(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node **items;
    size_t n;

    return dcp_pickle_pop_mark(m, &items, &n);
}

static int op_dup(struct dcp_pickle_machine *m)
{
    struct dcp_pickle_node *node = NULL;

    DCP_TRY(dcp_pickle_top(m, &node));
    return dcp_pickle_push(m, node);
}

static int op_proto(struct dcp_pickle_machine *m)
{
    if (m->arg > MAX_PROTOCOL && m->names)
        return dcp_pickle_broken(m, "the protocol is invalid");
    if (m->arg > MAX_PROTOCOL)
        return dcp_error_set(m->err, DCP_E_UNSUPPORTED,
                             "the pickle protocol is %u; 2 to %d are known",
                             (unsigned)m->arg, MAX_PROTOCOL);
    return DCP_OK;
}

/* A frame only groups opcodes; its length must at least be possible. */
static int op_frame(struct dcp_pickle_machine *m)
{
    if (m->arg > dcp_cursor_left(&m->in))
        return dcp_pickle_cut_off(m, "the frame is longer than the pickle");
    return DCP_OK;
}

static int op_stop(struct dcp_pickle_machine *m)
{
    if (!dcp_pickle_reach(m))
        return dcp_pickle_broken(m, "it must leave one object");
    if (m->n_marks || m->n_stack != 1)
        return dcp_pickle_corrupt(m, "it must leave one object");
    m->stopped = true;
    return DCP_OK;
}

const struct dcp_pickle_op dcp_pickle_stack_ops[256] = {
    [0x80] = { "PROTO", U1, op_proto },    [0x95] = { "FRAME", U8, op_frame },
    ['.'] = { "STOP", NOTHING, op_stop },  ['('] = { "MARK", NOTHING, op_mark },
    ['0'] = { "POP", NOTHING, op_pop },    ['1'] = { "POP_MARK", NOTHING, op_pop_mark },
    ['2'] = { "DUP", NOTHING, op_dup },    ['q'] = { "BINPUT", U1, op_put },
    ['r'] = { "LONG_BINPUT", U4, op_put }, [0x94] = { "MEMOIZE", NOTHING, op_memoize },
    ['h'] = { "BINGET", U1, op_get },      ['j'] = { "LONG_BINGET", U4, op_get },
};
