/* bytes: little-endian numbers in memory, and a cursor that cannot run past its end. */
#ifndef DCP_BASE_BYTES_H
#define DCP_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t dcp_le16(const void *p)
{
    const unsigned char *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}
static inline uint32_t dcp_le32(const void *p)
{
    const unsigned char *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
           (uint32_t)b[3] << 24;
}
static inline uint64_t dcp_le64(const void *p)
{
    return (uint64_t)dcp_le32(p) | (uint64_t)dcp_le32((const unsigned char *)p + 4) << 32;
}
static inline void dcp_put_le16(void *p, uint16_t v)
{
    unsigned char *b = p;
    b[0] = (unsigned char)v;
    b[1] = (unsigned char)(v >> 8);
}
static inline void dcp_put_le32(void *p, uint32_t v)
{
    dcp_put_le16(p, (uint16_t)v);
    dcp_put_le16((unsigned char *)p + 2, (uint16_t)(v >> 16));
}
static inline void dcp_put_le64(void *p, uint64_t v)
{
    dcp_put_le32(p, (uint32_t)v);
    dcp_put_le32((unsigned char *)p + 4, (uint32_t)(v >> 32));
}

/* Reading hostile bytes: once `bad` is set every read gives zeros, so check it once at
 * the end (and before trusting a count). */
struct dcp_cursor {
    const unsigned char *data;
    size_t size_bytes, at;
    bool bad;
};
static inline struct dcp_cursor dcp_cursor_init(const void *data, size_t size_bytes)
{
    return (struct dcp_cursor){ .data = data, .size_bytes = size_bytes };
}
static inline size_t dcp_cursor_left(const struct dcp_cursor *c)
{
    return c->bad ? 0 : c->size_bytes - c->at;
}
/* The next n bytes, or NULL and bad. */
static inline const void *dcp_cursor_take(struct dcp_cursor *c, size_t n)
{
    if (c->bad || n > c->size_bytes - c->at) {
        c->bad = true;
        return NULL;
    }
    const void *p = c->data + c->at;
    c->at += n;
    return p;
}
static inline uint8_t dcp_cursor_u8(struct dcp_cursor *c)
{
    const unsigned char *p = dcp_cursor_take(c, 1);
    return p ? p[0] : 0;
}
static inline uint16_t dcp_cursor_le16(struct dcp_cursor *c)
{
    const void *p = dcp_cursor_take(c, 2);
    return p ? dcp_le16(p) : 0;
}
static inline uint32_t dcp_cursor_le32(struct dcp_cursor *c)
{
    const void *p = dcp_cursor_take(c, 4);
    return p ? dcp_le32(p) : 0;
}
static inline uint64_t dcp_cursor_le64(struct dcp_cursor *c)
{
    const void *p = dcp_cursor_take(c, 8);
    return p ? dcp_le64(p) : 0;
}
/* A number of LEB128: seven bits a byte, the lowest first. */
static inline uint64_t dcp_cursor_varint(struct dcp_cursor *c)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = dcp_cursor_u8(c);
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (shift == 63 && byte > 1)
            c->bad = true; /* more than 64 bits */
        if (!(byte & 0x80))
            return v;
    }
    c->bad = true;
    return 0;
}

#endif
