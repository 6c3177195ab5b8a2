/* buf: a growing byte buffer that remembers when memory ran out, so that a writer checks
 * once. */
#ifndef DCP_BASE_BUF_H
#define DCP_BASE_BUF_H

#include <dcp/error.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_buf {
    unsigned char *data; /* NUL-terminated once something was added; NULL when empty */
    size_t size_bytes, cap;
    bool failed; /* memory ran out; what was added since is lost */
};

void dcp_buf_fini(struct dcp_buf *buf);
void dcp_buf_add(struct dcp_buf *buf, const void *data, size_t size_bytes);
void dcp_buf_add_text(struct dcp_buf *buf, const char *text);
void dcp_buf_add_fmt(struct dcp_buf *buf, const char *fmt, ...) DCP_PRINTF(2, 3);
/* In decimals. */
void dcp_buf_add_i64(struct dcp_buf *buf, int64_t v);
/* 16 hex digits, lower case. */
void dcp_buf_add_hex64(struct dcp_buf *buf, uint64_t v);
void dcp_buf_add_fill(struct dcp_buf *buf, unsigned char byte, size_t n);
void dcp_buf_add_u8(struct dcp_buf *buf, uint8_t v);
void dcp_buf_add_le16(struct dcp_buf *buf, uint16_t v);
void dcp_buf_add_le32(struct dcp_buf *buf, uint32_t v);
void dcp_buf_add_le64(struct dcp_buf *buf, uint64_t v);
/* LEB128: seven bits a byte, the lowest first. */
void dcp_buf_add_varint(struct dcp_buf *buf, uint64_t v);
/* DCP_OK, or MEMORY when something was lost. */
int dcp_buf_check(const struct dcp_buf *buf, struct dcp_error *err);
#define DCP_CLEANUP_BUF __attribute__((cleanup(dcp_buf_fini)))

#endif
