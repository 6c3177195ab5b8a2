/* str: text from outside: checked, escaped, matched, compared. */
#ifndef DCP_BASE_STR_H
#define DCP_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Valid UTF-8 without surrogates; NUL bytes are not allowed. */
bool dcp_str_utf8_ok(const char *text, size_t n);
/* Writes text with control characters, DEL, C1 controls, bidi marks and invalid bytes as
 * \n, \xNN or \u{…}, cut to cap with "…"; always NUL-terminated. Returns out. */
char *dcp_str_escape(char *out, size_t cap, const char *text);
/* A name from a file as a sentence shows it: escaped, and not so long that it hides the
 * rest. It lives until the end of the enclosing block. */
#define DCP_SHOWN_BYTES 160
#define DCP_SHOWN(name) \
    dcp_str_escape((char[DCP_SHOWN_BYTES]){ 0 }, DCP_SHOWN_BYTES, name)
/* Shell glob on a whole tensor name: * (dots too) ? [a-z] [!a-z] {a,b} and \ before a
 * plain character. A glob longer than 4095 bytes matches nothing. */
bool dcp_str_glob(const char *glob, const char *text);
/* strcmp in which runs of digits compare as numbers: rank_2 < rank_10. */
int dcp_str_natural_cmp(const char *a, const char *b);
/* "256M", "1.5GiB", "64", "4k" to bytes (K, M, G, T are powers of 1024); false when it is
 * none. */
bool dcp_str_parse_size(const char *text, uint64_t *out_bytes);
/* A whole decimal number; false when it is none or out of range. */
bool dcp_str_parse_i64(const char *text, int64_t *out);
bool dcp_str_parse_f64(const char *text, double *out);
/* The shortest decimal form (of at least 6 digits) that reads back equal; returns out. */
#define DCP_STR_F64_CAP 32
char *dcp_str_format_f64(char out[DCP_STR_F64_CAP], double value);
/* The candidate (NULL-terminated list) nearest to text, or NULL when none is near. */
const char *dcp_str_nearest(const char *text, const char *const *candidates);
/* The one that text can hardly be but a slip of: an edit or few, or a long beginning of
 * it. NULL: another word. */
const char *dcp_str_slip(const char *text, const char *const *candidates);
/* One behind the other; caller frees. NULL: no memory. */
char *dcp_str_join(const char *a, const char *b, const char *c);
bool dcp_str_starts(const char *text, const char *prefix);
bool dcp_str_ends(const char *text, const char *suffix);
/* 16 hex digits. parse: exactly 16, lower case. */
void dcp_str_hex64(char out[17], uint64_t v);
bool dcp_str_parse_hex64(const char *text, uint64_t *out);
/* Bytes as hex digits; caller frees. NULL: no memory. */
char *dcp_str_hex(const void *data, size_t n);
/* Back: pairs of lower-case digits and nothing else, to strlen(text) / 2 bytes. */
bool dcp_str_parse_hex(const char *text, void *out);

#endif
