/* pickle: runs the machine from the first opcode to STOP. The opcodes are in three
 * tables, beside the functions that do them. */
#include "pickle.h"
#include "base/mem.h"
#include "machine.h"
#include <string.h>

enum { MAX_LINE = 2048 };

/* Opcodes that no checkpoint needs: they call, reach outside, or belong to protocol 0. */
static const struct dcp_pickle_op refused_ops[256] = {
    ['i'] = { "INST", NOTHING, NULL },
    ['o'] = { "OBJ", NOTHING, NULL },
    [0x82] = { "EXT1", NOTHING, NULL },
    [0x83] = { "EXT2", NOTHING, NULL },
    [0x84] = { "EXT4", NOTHING, NULL },
    [0x97] = { "NEXT_BUFFER", NOTHING, NULL },
    [0x98] = { "READONLY_BUFFER", NOTHING, NULL },
    ['P'] = { "PERSID", NOTHING, NULL },
    ['I'] = { "INT", NOTHING, NULL },
    ['L'] = { "LONG", NOTHING, NULL },
    ['F'] = { "FLOAT", NOTHING, NULL },
    ['S'] = { "STRING", NOTHING, NULL },
    ['V'] = { "UNICODE", NOTHING, NULL },
    ['g'] = { "GET", NOTHING, NULL },
    ['p'] = { "PUT", NOTHING, NULL },
    ['l'] = { "LIST", NOTHING, NULL },
    ['d'] = { "DICT", NOTHING, NULL },
};

static const struct dcp_pickle_op *const tables[] = {
    dcp_pickle_value_ops,
    dcp_pickle_stack_ops,
    dcp_pickle_object_ops,
    refused_ops,
};

static const struct dcp_pickle_op *op_of(const struct dcp_pickle_machine *m,
                                         unsigned byte)
{
    if (m && m->names && dcp_pickle_name_ops[byte].name)
        return &dcp_pickle_name_ops[byte];
    for (size_t i = 0; i < DCP_ARRAY_LEN(tables); i++)
        if (tables[i][byte].name)
            return &tables[i][byte];
    return NULL;
}

static int read_line(struct dcp_pickle_machine *m, const char **out, size_t *out_len)
{
    size_t left = dcp_cursor_left(&m->in);
    const char *begin = (const char *)m->in.data + m->in.at;
    const char *end = memchr(begin, '\n', left < MAX_LINE || m->names ? left : MAX_LINE);

    if (!end)
        return dcp_pickle_cut_off(m, "a name has no end");
    *out = begin;
    *out_len = (size_t)(end - begin);
    dcp_cursor_take(&m->in, *out_len + 1);
    return DCP_OK;
}

static int read_argument(struct dcp_pickle_machine *m, enum dcp_pickle_argument argument)
{
    struct dcp_cursor *in = &m->in;

    switch (argument) {
    case NOTHING:
        return DCP_OK;
    case U1:
    case BYTES_1:
        m->arg = dcp_cursor_u8(in);
        break;
    case U2:
        m->arg = dcp_cursor_le16(in);
        break;
    case I4:
        m->arg = (uint64_t)(int64_t)(int32_t)dcp_cursor_le32(in);
        break;
    case U4:
    case BYTES_4:
        m->arg = dcp_cursor_le32(in);
        break;
    case U8:
    case BYTES_8:
        m->arg = dcp_cursor_le64(in);
        break;
    case TWO_LINES:
        DCP_TRY(read_line(m, &m->text, &m->text_len));
        return read_line(m, &m->text2, &m->text2_len);
    case ONE_LINE:
        return read_line(m, &m->text, &m->text_len);
    }
    if (argument == BYTES_1 || argument == BYTES_4 || argument == BYTES_8) {
        if (m->arg > dcp_cursor_left(in))
            return dcp_pickle_cut_off(m, "its bytes reach past the end of the pickle");
        m->text_len = (size_t)m->arg;
        m->text = dcp_cursor_take(in, m->text_len);
    }
    return in->bad ? dcp_pickle_cut_off(m, "the pickle ends here") : DCP_OK;
}

static int run(struct dcp_pickle_machine *m)
{
    while (!m->stopped) {
        m->op_at = m->in.at;
        m->op_name = "STOP";
        if (!dcp_cursor_left(&m->in))
            return dcp_pickle_cut_off(m, "it is missing; the pickle is incomplete");
        unsigned byte = dcp_cursor_u8(&m->in);
        const struct dcp_pickle_op *op = op_of(m, byte);
        m->why = op ? DCP_PICKLE_REFUSED : DCP_PICKLE_BROKEN;
        if (!op)
            return dcp_error_set(m->err, DCP_E_CORRUPT,
                                 "byte %zu of the pickle, 0x%02x, is no opcode", m->op_at,
                                 byte);
        m->op_name = op->name;
        if (!op->run)
            return dcp_pickle_corrupt(
                m, "no checkpoint needs it, and it is not allowed here");
        DCP_TRY(read_argument(m, op->argument));
        DCP_TRY(op->run(m));
    }
    return DCP_OK;
}

int dcp_pickle_parse_ids(const void *data, size_t size_bytes, struct dcp_arena *arena,
                         struct dcp_pickle_ids *ids, struct dcp_pickle_node **out_root,
                         size_t *out_used, struct dcp_error *err)
{
    struct dcp_error own = { 0 };
    struct dcp_pickle_machine m = { .in = dcp_cursor_init(data, size_bytes),
                                    .arena = arena,
                                    .err = err ? err : &own,
                                    .ids = ids };

    *out_root = NULL;
    if (size_bytes > DCP_PICKLE_MAX_BYTES)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "a pickle is longer than %u bytes",
                             DCP_PICKLE_MAX_BYTES);
    int rc = run(&m);
    if (!rc && !out_used && dcp_cursor_left(&m.in))
        rc = dcp_error_set(err, DCP_E_CORRUPT, "%zu bytes follow the end of the pickle",
                           dcp_cursor_left(&m.in));
    if (!rc)
        rc = dcp_pickle_check_tree(m.stack[0], err);
    if (!rc)
        *out_root = m.stack[0];
    if (!rc && out_used)
        *out_used = m.in.at;
    free(m.stack);
    free(m.marks);
    free(m.memo);
    return rc;
}

int dcp_pickle_parse(const void *data, size_t size_bytes, struct dcp_arena *arena,
                     struct dcp_pickle_node **out_root, size_t *out_used,
                     struct dcp_error *err)
{
    return dcp_pickle_parse_ids(data, size_bytes, arena, NULL, out_root, out_used, err);
}

int dcp_pickle_names(const void *data, size_t size_bytes,
                     const struct dcp_pickle_names *names, size_t *out_used,
                     struct dcp_error *err)
{
    struct dcp_error own = { 0 };
    struct dcp_pickle_machine m = { .in = dcp_cursor_init(data, size_bytes),
                                    .arena = dcp_arena_new(),
                                    .err = err ? err : &own,
                                    .names = names };
    int rc = m.arena ? run(&m) : dcp_error_memory(err, "a pickle");

    if (m.n_held && (!rc || rc == DCP_E_CORRUPT || rc == DCP_E_UNSUPPORTED)) {
        int told = names->take(names->self, "builtins.getattr", err);
        rc = told ? told : rc;
    }
    if (rc == DCP_E_CORRUPT && m.why == DCP_PICKLE_REFUSED)
        rc = DCP_E_UNSUPPORTED;
    *out_used = rc == DCP_E_CORRUPT && m.why == DCP_PICKLE_CUT_OFF ? size_bytes : m.in.at;
    free(m.stack);
    free(m.marks);
    free(m.memo);
    dcp_arena_free(m.arena);
    return rc;
}

/* -- the end of a pickle ------------------------------------------------------------- */

/* Goes past what follows an opcode; false when it is not all there. */
static bool skip_argument(struct dcp_cursor *in, enum dcp_pickle_argument argument)
{
    static const unsigned char bytes_of[] = {
        [U1] = 1, [U2] = 2, [I4] = 4, [U4] = 4, [U8] = 8
    };
    uint64_t n = argument < DCP_ARRAY_LEN(bytes_of) ? bytes_of[argument] : 0;

    if (argument == BYTES_1)
        n = dcp_cursor_u8(in);
    else if (argument == BYTES_4)
        n = dcp_cursor_le32(in);
    else if (argument == BYTES_8)
        n = dcp_cursor_le64(in);
    for (int lines = argument == TWO_LINES ? 2 : 0; lines > 0; lines--) {
        const unsigned char *begin = in->data + in->at;
        const unsigned char *end = memchr(begin, '\n', dcp_cursor_left(in));
        if (!end)
            return false;
        dcp_cursor_take(in, (size_t)(end - begin) + 1);
    }
    if (in->bad || n > dcp_cursor_left(in))
        return false;
    dcp_cursor_take(in, (size_t)n);
    return true;
}

int dcp_pickle_find_end(const void *data, size_t size_bytes, size_t *at, bool *out_whole,
                        struct dcp_error *err)
{
    struct dcp_cursor in = dcp_cursor_init(data, size_bytes);

    *out_whole = false;
    for (in.at = *at; dcp_cursor_left(&in); *at = in.at) {
        unsigned byte = dcp_cursor_u8(&in);
        const struct dcp_pickle_op *op = op_of(NULL, byte);
        if (!op || !op->run)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "byte %zu of the pickle, 0x%02x, is no opcode of a "
                                 "checkpoint",
                                 *at, byte);
        if (!skip_argument(&in, op->argument))
            return op->argument == TWO_LINES && size_bytes - *at > 2 * MAX_LINE + 2
                       ? dcp_error_set(err, DCP_E_CORRUPT,
                                       "a name at byte %zu of the pickle has no end", *at)
                       : DCP_OK;
        if (byte == '.') {
            *at = in.at;
            *out_whole = true;
            return DCP_OK;
        }
    }
    return DCP_OK;
}
