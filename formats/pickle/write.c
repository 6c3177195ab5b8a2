/* write: opcodes, memo and batches of CPython's C pickler, protocol 2. */
#include "write.h"
#include "base/bytes.h"
#include "base/mem.h"
#include <string.h>

enum { BATCH = 1000 };

void dcp_pickle_out_fini(struct dcp_pickle_out *out)
{
    dcp_buf_fini(&out->buf);
    dcp_map_fini(&out->shared);
    dcp_arena_free(out->keys);
    *out = (struct dcp_pickle_out){ 0 };
}

void dcp_pickle_op(struct dcp_pickle_out *out, char op)
{
    dcp_buf_add_u8(&out->buf, (unsigned char)op);
}

void dcp_pickle_begin(struct dcp_pickle_out *out)
{
    dcp_buf_add(&out->buf, "\x80\x02", 2);
}

void dcp_pickle_end(struct dcp_pickle_out *out)
{
    dcp_pickle_op(out, '.');
}

static void add_index(struct dcp_pickle_out *out, char op, char long_op, uint32_t index)
{
    if (index < 256) {
        dcp_pickle_op(out, op);
        dcp_buf_add_u8(&out->buf, (uint8_t)index);
    } else {
        dcp_pickle_op(out, long_op);
        dcp_buf_add_le32(&out->buf, index);
    }
}

uint32_t dcp_pickle_put(struct dcp_pickle_out *out)
{
    add_index(out, 'q', 'r', out->n_memo);
    return out->n_memo++;
}

void dcp_pickle_fetch(struct dcp_pickle_out *out, uint32_t index)
{
    add_index(out, 'h', 'j', index);
}

void dcp_pickle_none(struct dcp_pickle_out *out)
{
    dcp_pickle_op(out, 'N');
}

void dcp_pickle_bool(struct dcp_pickle_out *out, bool truth)
{
    dcp_buf_add_u8(&out->buf, truth ? 0x88 : 0x89);
}

void dcp_pickle_int(struct dcp_pickle_out *out, int64_t number)
{
    unsigned char bytes[8];
    size_t n = sizeof bytes;

    if (number >= 0 && number <= UINT8_MAX) {
        dcp_pickle_op(out, 'K');
        dcp_buf_add_u8(&out->buf, (uint8_t)number);
    } else if (number >= 0 && number <= UINT16_MAX) {
        dcp_pickle_op(out, 'M');
        dcp_buf_add_le16(&out->buf, (uint16_t)number);
    } else if (number >= INT32_MIN && number <= INT32_MAX) {
        dcp_pickle_op(out, 'J');
        dcp_buf_add_le32(&out->buf, (uint32_t)number);
    } else {
        unsigned char fill = number < 0 ? 0xff : 0;
        dcp_put_le64(bytes, (uint64_t)number);
        while (bytes[n - 1] == fill && (bytes[n - 2] & 0x80) == (fill & 0x80))
            n--;
        dcp_pickle_long(out, bytes, n);
    }
}

void dcp_pickle_long(struct dcp_pickle_out *out, const unsigned char *bytes, size_t n)
{
    if (n < 256) {
        dcp_buf_add_u8(&out->buf, 0x8a);
        dcp_buf_add_u8(&out->buf, (uint8_t)n);
    } else {
        dcp_buf_add_u8(&out->buf, 0x8b);
        dcp_buf_add_le32(&out->buf, (uint32_t)n);
    }
    dcp_buf_add(&out->buf, bytes, n);
}

void dcp_pickle_float(struct dcp_pickle_out *out, double real)
{
    uint64_t bits;

    memcpy(&bits, &real, sizeof bits);
    dcp_pickle_op(out, 'G');
    dcp_buf_add_le64(&out->buf, __builtin_bswap64(bits)); /* big-endian */
}

uint32_t dcp_pickle_text(struct dcp_pickle_out *out, const char *text, size_t n)
{
    dcp_pickle_op(out, 'X');
    dcp_buf_add_le32(&out->buf, (uint32_t)n);
    dcp_buf_add(&out->buf, text, n);
    return dcp_pickle_put(out);
}

/* Writes bytes that make one object, with its PUT, or fetches it. */
static void add_shared(struct dcp_pickle_out *out, const struct dcp_buf *op)
{
    out->buf.failed |= op->failed;
    if (out->buf.failed)
        return;
    int64_t memo = dcp_map_find(&out->shared, op->data, op->size_bytes);
    if (memo >= 0) {
        dcp_pickle_fetch(out, (uint32_t)memo);
        return;
    }
    if (!out->keys)
        out->keys = dcp_arena_new();
    void *key = out->keys ? dcp_arena_copy(out->keys, op->data, op->size_bytes) : NULL;
    dcp_buf_add(&out->buf, op->data, op->size_bytes);
    memo = dcp_pickle_put(out);
    out->buf.failed |= !key || !dcp_map_set(&out->shared, key, op->size_bytes, memo);
}

void dcp_pickle_shared_text(struct dcp_pickle_out *out, const char *text)
{
    struct dcp_buf op = { 0 };
    size_t n = strlen(text);

    dcp_buf_add_u8(&op, 'X');
    dcp_buf_add_le32(&op, (uint32_t)n);
    dcp_buf_add(&op, text, n);
    add_shared(out, &op);
    dcp_buf_fini(&op);
}

void dcp_pickle_global(struct dcp_pickle_out *out, const char *module, const char *name)
{
    struct dcp_buf op = { 0 };

    dcp_buf_add_fmt(&op, "c%s\n%s\n", module, name);
    add_shared(out, &op);
    dcp_buf_fini(&op);
}

void dcp_pickle_bytes_call(struct dcp_pickle_out *out, const unsigned char *data,
                           size_t n)
{
    struct dcp_buf text = { 0 };

    dcp_pickle_global(out, "_codecs", "encode");
    for (size_t i = 0; i < n; i++) {
        if (data[i] >= 0x80)
            dcp_buf_add_u8(&text, (uint8_t)(0xc0 | data[i] >> 6));
        dcp_buf_add_u8(&text,
                       data[i] < 0x80 ? data[i] : (uint8_t)(0x80 | (data[i] & 0x3f)));
    }
    out->buf.failed |= text.failed;
    dcp_pickle_text(out, n ? (const char *)text.data : "", text.size_bytes);
    dcp_pickle_shared_text(out, "latin1");
    dcp_pickle_tuple_end(out, 2);
    dcp_buf_fini(&text);
    dcp_pickle_op(out, 'R');
    dcp_pickle_put(out);
}

void dcp_pickle_tuple_begin(struct dcp_pickle_out *out, size_t n)
{
    if (n > 3)
        dcp_pickle_op(out, '(');
}

void dcp_pickle_tuple_end(struct dcp_pickle_out *out, size_t n)
{
    static const char ops[] = { ')', '\x85', '\x86', '\x87' };

    dcp_pickle_op(out, n < sizeof ops ? ops[n] : 't');
    if (n) /* the empty tuple is a constant */
        dcp_pickle_put(out);
}

void dcp_pickle_numbers(struct dcp_pickle_out *out, const int64_t *numbers, size_t n)
{
    dcp_pickle_tuple_begin(out, n);
    for (size_t i = 0; i < n; i++)
        dcp_pickle_int(out, numbers[i]);
    dcp_pickle_tuple_end(out, n);
}

/* CPython writes items in batches of 1000 behind a mark, and a single one without. A
 * plain dict decides by its whole length, and closes a full last batch with an empty one;
 * other objects decide batch by batch. */
static void close_batch(struct dcp_pickle_out *out, enum dcp_pickle_fill fill,
                        bool single)
{
    if (fill == DCP_PICKLE_FILL_LIST)
        dcp_pickle_op(out, single ? 'a' : 'e');
    else
        dcp_pickle_op(out, single ? 's' : 'u');
}

void dcp_pickle_fill_next(struct dcp_pickle_out *out, enum dcp_pickle_fill fill, size_t i,
                          size_t n)
{
    bool single = fill == DCP_PICKLE_FILL_PAIRS ? i + 1 == n : n == 1;

    if (i % BATCH)
        return;
    if (i)
        close_batch(out, fill, false);
    if (!single)
        dcp_pickle_op(out, '(');
}

void dcp_pickle_fill_end(struct dcp_pickle_out *out, enum dcp_pickle_fill fill, size_t n)
{
    bool single = fill == DCP_PICKLE_FILL_PAIRS ? n % BATCH == 1 : n == 1;

    if (!n)
        return;
    close_batch(out, fill, single);
    if (fill == DCP_PICKLE_FILL_DICT && n % BATCH == 0) {
        dcp_pickle_op(out, '(');
        close_batch(out, fill, false);
    }
}
