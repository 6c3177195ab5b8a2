#include "buf.h"

#include "bytes.h"
#include "mem.h"
#include <stdio.h>
#include <string.h>

void dcp_buf_fini(struct dcp_buf *buf)
{
    free(buf->data);
    *buf = (struct dcp_buf){ 0 };
}

/* Room for n more bytes and the NUL; where they go, or NULL and failed. */
static unsigned char *reserve(struct dcp_buf *buf, size_t n)
{
    if (!buf->failed && n < buf->cap - buf->size_bytes) /* as a rule */
        return buf->data + buf->size_bytes;
    if (buf->failed || n >= SIZE_MAX - buf->size_bytes) {
        buf->failed = true;
        return NULL;
    }
    unsigned char *data = dcp_mem_grow(buf->data, &buf->cap, buf->size_bytes + n + 1, 1);
    if (!data) {
        buf->failed = true;
        return NULL;
    }
    buf->data = data;
    return data + buf->size_bytes;
}

static void added(struct dcp_buf *buf, size_t n)
{
    buf->size_bytes += n;
    buf->data[buf->size_bytes] = 0;
}

void dcp_buf_add(struct dcp_buf *buf, const void *data, size_t size_bytes)
{
    unsigned char *to = reserve(buf, size_bytes);
    if (!to)
        return;
    if (size_bytes)
        memcpy(to, data, size_bytes);
    added(buf, size_bytes);
}

void dcp_buf_add_text(struct dcp_buf *buf, const char *text)
{
    dcp_buf_add(buf, text, strlen(text));
}

void dcp_buf_add_fmt(struct dcp_buf *buf, const char *fmt, ...)
{
    enum { USUAL = 120 };
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    unsigned char *to = reserve(buf, USUAL);
    int n = to ? vsnprintf((char *)to, USUAL + 1, fmt, args) : 0;
    va_end(args);
    if (n > USUAL && (to = reserve(buf, (size_t)n)))
        vsnprintf((char *)to, (size_t)n + 1, fmt, again);
    va_end(again);
    if (to && n >= 0)
        added(buf, (size_t)n);
    buf->failed = buf->failed || n < 0;
}

void dcp_buf_add_i64(struct dcp_buf *buf, int64_t v)
{
    char digits[20];
    uint64_t left = v < 0 ? -(uint64_t)v : (uint64_t)v;
    size_t at = sizeof digits;

    do
        digits[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (v < 0)
        digits[--at] = '-';
    dcp_buf_add(buf, digits + at, sizeof digits - at);
}

void dcp_buf_add_hex64(struct dcp_buf *buf, uint64_t v)
{
    char digits[16];

    for (size_t i = sizeof digits; i-- > 0; v >>= 4)
        digits[i] = "0123456789abcdef"[v & 15];
    dcp_buf_add(buf, digits, sizeof digits);
}

void dcp_buf_add_fill(struct dcp_buf *buf, unsigned char byte, size_t n)
{
    unsigned char *to = reserve(buf, n);
    if (!to)
        return;
    memset(to, byte, n);
    added(buf, n);
}

void dcp_buf_add_u8(struct dcp_buf *buf, uint8_t v)
{
    dcp_buf_add(buf, &v, 1);
}

void dcp_buf_add_le16(struct dcp_buf *buf, uint16_t v)
{
    unsigned char b[2];
    dcp_put_le16(b, v);
    dcp_buf_add(buf, b, sizeof b);
}

void dcp_buf_add_le32(struct dcp_buf *buf, uint32_t v)
{
    unsigned char b[4];
    dcp_put_le32(b, v);
    dcp_buf_add(buf, b, sizeof b);
}

void dcp_buf_add_le64(struct dcp_buf *buf, uint64_t v)
{
    unsigned char b[8];
    dcp_put_le64(b, v);
    dcp_buf_add(buf, b, sizeof b);
}

void dcp_buf_add_varint(struct dcp_buf *buf, uint64_t v)
{
    unsigned char b[10];
    size_t n = 0;
    for (; v > 0x7f; v >>= 7)
        b[n++] = (unsigned char)(v | 0x80);
    b[n++] = (unsigned char)v;
    dcp_buf_add(buf, b, n);
}

int dcp_buf_check(const struct dcp_buf *buf, struct dcp_error *err)
{
    return buf->failed ? dcp_error_memory(err, "a text that grows") : DCP_OK;
}
