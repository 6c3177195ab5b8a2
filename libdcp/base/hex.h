/* hex: bytes as hexadecimal digits in lower case, two each. */
#ifndef DCP_BASE_HEX_H
#define DCP_BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>

/* 2 * n digits, and a NUL behind them. */
void dcp_hex(char *out, const void *data, size_t n);
/* n bytes of the 2 * n digits that a text begins with. False: there are fewer, or others
 * between. */
bool dcp_hex_parse(const char *text, void *out, size_t n);
/* The digits; caller frees. NULL: no memory. */
char *dcp_hex_new(const void *data, size_t n);
/* The bytes of a whole text of digits: strlen(text) / 2. */
bool dcp_hex_parse_all(const char *text, void *out);

#endif
