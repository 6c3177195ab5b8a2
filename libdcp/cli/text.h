/* text: how wide UTF-8 text is on a terminal; cut, padded and wrapped to a width. */
#ifndef DCP_CLI_TEXT_H
#define DCP_CLI_TEXT_H

#include "base/buf.h"

/* Columns that text takes: 0 for combining marks, 2 for wide letters; or its first n
 * bytes. */
int dcp_text_width(const char *text);
int dcp_text_width_of(const char *text, size_t n);
/* Adds text, cut to `width` columns by "…" where the last `tail` columns begin (both ends
 * of a tensor's name matter: width / 2 is a good tail). */
void dcp_text_add_cut(struct dcp_buf *out, const char *text, int width, int tail);
/* Adds text broken at blanks into lines that end before column `width`. The first begins
 * at column `at`, where the caller is; the others after `indent` blanks. '\n' in text
 * begins a new line. Ends without a line end. */
void dcp_text_add_wrapped(struct dcp_buf *out, const char *text, int at, int indent,
                          int width);
/* Adds text as dcp_str_escape makes it, whole. */
void dcp_text_add_escaped(struct dcp_buf *out, const char *text);

#endif
