/* npy_header: the text of a header is a Python literal. Only the few forms that NumPy
 * writes, and wrote with Python 2, are read; nothing is evaluated. */
#include "base/bytes.h"
#include "base/mem.h"
#include "base/str.h"
#include "npy.h"
#include <stdio.h>
#include <string.h>

enum { ALIGN = 64, GROWTH_DIGITS = 21, SHORT_LENGTH_BYTES = 10 };

static const struct {
    const char *code;
    enum dcp_dtype dtype;
} dtypes[] = {
    { "b1", DCP_BOOL }, { "i1", DCP_I8 },    { "u1", DCP_U8 },  { "i2", DCP_I16 },
    { "u2", DCP_U16 },  { "i4", DCP_I32 },   { "u4", DCP_U32 }, { "i8", DCP_I64 },
    { "u8", DCP_U64 },  { "f2", DCP_F16 },   { "f4", DCP_F32 }, { "f8", DCP_F64 },
    { "c8", DCP_C64 },  { "c16", DCP_C128 },
};

bool dcp_npy_dtype(const char *code, size_t n, enum dcp_dtype *out)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(dtypes); i++)
        if (strlen(dtypes[i].code) == n && !memcmp(dtypes[i].code, code, n)) {
            *out = dtypes[i].dtype;
            return true;
        }
    return false;
}

/* -- reading ------------------------------------------------------------------------- */

struct parser {
    const char *at, *end;
    bool python2; /* numbers may end with L */
    const char *shown;
    struct dcp_error *err;
    struct dcp_npy *out;
    bool has_descr, has_order, has_shape, fortran;
};

static int corrupt(const struct parser *p, const char *what)
{
    return dcp_error_set(p->err, DCP_E_CORRUPT, "%s is not a valid NumPy array file: %s",
                         p->shown, what);
}

static int unsupported(const struct parser *p, const char *what)
{
    return dcp_error_set(p->err, DCP_E_UNSUPPORTED, "%s is a NumPy array %s", p->shown,
                         what);
}

static void skip_blanks(struct parser *p)
{
    while (p->at < p->end && strchr(" \t\r\n", *p->at) && *p->at)
        p->at++;
}

/* Takes the next character when it is that one. */
static bool take(struct parser *p, char c)
{
    skip_blanks(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool take_word(struct parser *p, const char *word)
{
    size_t n = strlen(word);

    skip_blanks(p);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* A string without escapes, in either kind of quotes. */
static bool take_text(struct parser *p, const char **out, size_t *out_n)
{
    skip_blanks(p);
    if (p->at < p->end && *p->at == 'u')
        p->at++;
    if (p->at == p->end || (*p->at != '\'' && *p->at != '"'))
        return false;
    char quote = *p->at++;
    *out = p->at;
    for (; p->at < p->end && *p->at != quote; p->at++)
        if (*p->at == '\\' || *p->at == '\n')
            return false;
    *out_n = (size_t)(p->at - *out);
    return p->at < p->end && take(p, quote);
}

/* A dimension: digits, with the L of Python 2. */
static bool take_dim(struct parser *p, int64_t *out)
{
    skip_blanks(p);
    const char *begin = p->at;
    for (*out = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (!dcp_mul_i64(*out, 10, out) || !dcp_add_i64(*out, *p->at - '0', out))
            return false;
    bool found = p->at > begin;
    if (found && p->python2 && p->at < p->end && *p->at == 'L')
        p->at++;
    return found;
}

/* (), (3,), (2, 3): one number needs its comma. */
static int parse_shape(struct parser *p)
{
    bool comma = true;

    if (!take(p, '('))
        return corrupt(p, "its shape is no tuple of numbers");
    for (p->out->ndim = 0; !take(p, ')'); p->out->ndim++) {
        int64_t dim;
        if (!comma || !take_dim(p, &dim))
            return corrupt(p, "its shape is no tuple of numbers");
        if (p->out->ndim == DCP_MAX_NDIM)
            return unsupported(p, "with more dimensions than supported");
        p->out->shape[p->out->ndim] = dim;
        comma = take(p, ',');
    }
    if (p->out->ndim == 1 && !comma)
        return corrupt(p, "its shape is no tuple of numbers");
    return DCP_OK;
}

/* The order of bytes, and what they are. */
static int parse_descr(struct parser *p)
{
    const char *text;
    size_t n;

    skip_blanks(p);
    if (p->at < p->end && *p->at == '[')
        return unsupported(p, "of structures, which are not tensors");
    if (!take_text(p, &text, &n) || n < 2)
        return corrupt(p, "its dtype is no text");
    char order = text[0];
    if (strchr("<>|=", order) && order) {
        text++;
        n--;
    }
    if (text[0] == 'O')
        return unsupported(p, "of Python objects, which would have to be executed");
    if (!dcp_npy_dtype(text, n, &p->out->dtype))
        return unsupported(p, "of a dtype that tensors do not have (texts, times, long "
                              "double, bfloat16 and others)");
    bool is_pair = p->out->dtype == DCP_C64 || p->out->dtype == DCP_C128;
    int width = (int)dcp_dtype_size(p->out->dtype) / (is_pair ? 2 : 1);
    p->out->swap_bytes = order == '>' && width > 1 ? width : 0;
    return DCP_OK;
}

static int parse_order(struct parser *p)
{
    p->fortran = take_word(p, "True");
    return p->fortran || take_word(p, "False")
               ? DCP_OK
               : corrupt(p, "its fortran_order is neither True nor False");
}

static int parse_member(struct parser *p)
{
    static const struct {
        const char *key;
        size_t seen;
        int (*parse)(struct parser *p);
    } members[] = {
        { "descr", offsetof(struct parser, has_descr), parse_descr },
        { "fortran_order", offsetof(struct parser, has_order), parse_order },
        { "shape", offsetof(struct parser, has_shape), parse_shape },
    };
    const char *key;
    size_t n;

    if (!take_text(p, &key, &n) || !take(p, ':'))
        return corrupt(p, "its header is no dict");
    for (size_t i = 0; i < DCP_ARRAY_LEN(members); i++) {
        bool *seen = (bool *)((char *)p + members[i].seen);
        if (strlen(members[i].key) != n || memcmp(members[i].key, key, n) != 0)
            continue;
        if (*seen)
            return corrupt(p, "its header has a key twice");
        *seen = true;
        return members[i].parse(p);
    }
    return corrupt(p, "its header has a key unknown to NumPy");
}

static int parse_text(struct parser *p)
{
    bool comma = true;

    if (!take(p, '{'))
        return corrupt(p, "its header is no dict");
    while (!take(p, '}')) {
        DCP_TRY(comma ? parse_member(p) : corrupt(p, "its header is no dict"));
        comma = take(p, ',');
    }
    skip_blanks(p);
    if (p->at < p->end)
        return corrupt(p, "something follows the dict in its header");
    return p->has_descr && p->has_order && p->has_shape
               ? DCP_OK
               : corrupt(p, "its header has too few keys");
}

/* Strides and size from the shape; both checked. */
static int measure(struct parser *p)
{
    struct dcp_npy *npy = p->out;
    int64_t n = 1, item = (int64_t)dcp_dtype_size(npy->dtype), size_bytes;
    bool empty = false;

    for (int d = 0; d < npy->ndim; d++)
        empty = empty || npy->shape[d] == 0;
    for (int i = 0; i < npy->ndim; i++) {
        int d = p->fortran ? i : npy->ndim - 1 - i;
        npy->stride[d] = n;
        if (!empty && !dcp_mul_i64(n, npy->shape[d], &n))
            return corrupt(p, "it is larger than any file");
    }
    if (!dcp_mul_i64(empty ? 0 : n, item, &size_bytes))
        return corrupt(p, "it is larger than any file");
    npy->size_bytes = (uint64_t)size_bytes;
    npy->dense = true;
    n = 1;
    for (int d = npy->ndim; d-- > 0 && !empty;) {
        npy->dense = npy->dense && (npy->shape[d] == 1 || npy->stride[d] == n);
        n *= npy->shape[d];
    }
    return DCP_OK;
}

int dcp_npy_parse(const void *data, size_t n, uint64_t file_bytes, const char *shown,
                  struct dcp_npy *out, struct dcp_error *err)
{
    struct dcp_cursor in = dcp_cursor_init(data, n);
    struct parser p = { .shown = shown, .err = err, .out = out };

    *out = (struct dcp_npy){ 0 };
    const void *magic = dcp_cursor_take(&in, DCP_NPY_MAGIC_BYTES);
    unsigned major = dcp_cursor_u8(&in), minor = dcp_cursor_u8(&in);
    if (in.bad || memcmp(magic, DCP_NPY_MAGIC, DCP_NPY_MAGIC_BYTES) != 0)
        return corrupt(&p, "it lacks the magic bytes");
    if (major < 1 || major > 3 || minor != 0)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "%s is a NumPy array file of version %u.%u; 1.0 to 3.0 are "
                             "known",
                             shown, major, minor);
    size_t text_bytes = major == 1 ? dcp_cursor_le16(&in) : dcp_cursor_le32(&in);
    if (in.bad || text_bytes > file_bytes - in.at)
        return corrupt(&p, "its header reaches past the end of the file");
    if (text_bytes > DCP_NPY_MAX_TEXT_BYTES)
        return corrupt(&p, "its header is longer than any that NumPy reads");
    p.at = dcp_cursor_take(&in, text_bytes);
    if (!p.at)
        return corrupt(&p, "its header is incomplete");
    p.end = p.at + text_bytes;
    p.python2 = major < 3;
    DCP_TRY(parse_text(&p));
    DCP_TRY(measure(&p));
    out->begin = in.at;
    if (out->size_bytes > file_bytes - out->begin)
        return corrupt(&p, "its array is incomplete");
    return out->size_bytes == file_bytes - out->begin
               ? DCP_OK
               : corrupt(&p, "bytes follow its array");
}

/* -- writing ------------------------------------------------------------------------- */

const char *dcp_npy_code(enum dcp_dtype dtype)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(dtypes); i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].code;
    return NULL;
}

static void put_shape(struct dcp_buf *out, const struct dcp_tensor *tensor)
{
    dcp_buf_add_text(out, "(");
    for (int d = 0; d < tensor->ndim; d++)
        dcp_buf_add_fmt(out, "%s%lld", d ? ", " : "", (long long)tensor->shape[d]);
    dcp_buf_add_text(out, tensor->ndim == 1 ? ",)" : ")");
}

/* Room for the first dimension to grow, as NumPy leaves it. */
static size_t growth_room(const struct dcp_tensor *tensor)
{
    if (!tensor->ndim)
        return 0;
    return GROWTH_DIGITS - (size_t)snprintf(NULL, 0, "%lld", (long long)tensor->shape[0]);
}

int dcp_npy_write(const struct dcp_tensor *tensor, const char *what, struct dcp_buf *out,
                  struct dcp_error *err)
{
    const char *code = dcp_npy_code(tensor->dtype);
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };

    if (!code) {
        dcp_error_of_tensor(err, DCP_E_MISMATCH, tensor->name,
                            "%s cannot hold: %s, which NumPy does not have (tensor '%s')",
                            what, dcp_dtype_torch_name(tensor->dtype),
                            DCP_SHOWN(tensor->name));
        dcp_error_hint(err, "--dtype fp32 or --dtype fp16 converts it");
        return DCP_E_MISMATCH;
    }
    dcp_buf_add_fmt(&text, "{'descr': '%s%s', 'fortran_order': False, 'shape': ",
                    dcp_dtype_size(tensor->dtype) > 1 ? "<" : "|", code);
    put_shape(&text, tensor);
    dcp_buf_add_text(&text, ", }");
    dcp_buf_add_fill(&text, ' ', growth_room(tensor));
    size_t used = SHORT_LENGTH_BYTES + text.size_bytes + 1;
    dcp_buf_add_fill(&text, ' ', ALIGN - used % ALIGN); /* a whole line when it fits */
    dcp_buf_add_u8(&text, '\n');
    dcp_buf_add(out, DCP_NPY_MAGIC "\1\0", DCP_NPY_MAGIC_BYTES + 2);
    dcp_buf_add_le16(out, (uint16_t)text.size_bytes);
    dcp_buf_add(out, text.data, text.size_bytes);
    out->failed |= text.failed;
    return dcp_buf_check(out, err);
}
