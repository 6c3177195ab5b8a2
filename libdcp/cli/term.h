/* term: a stream that may be a terminal: its width, its colours, its characters. */
#ifndef DCP_CLI_TERM_H
#define DCP_CLI_TERM_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stdio.h>

/* The answer to "auto|always|never", in that order. */
enum dcp_when { DCP_WHEN_AUTO, DCP_WHEN_ALWAYS, DCP_WHEN_NEVER };

enum dcp_style {
    DCP_STYLE_OFF,
    DCP_STYLE_BOLD,
    DCP_STYLE_DIM,
    DCP_STYLE_GOOD,
    DCP_STYLE_BAD,
    DCP_STYLE_NOTE,
    DCP_STYLE_NAME,
    DCP_N_STYLES
};

struct dcp_term {
    FILE *file;
    bool tty;   /* a terminal that understands more than plain lines */
    bool color; /* styles are written */
    bool utf8;  /* else drawing characters are written as ASCII */
    int width;  /* columns; 0: no limit, it is no terminal */
};

void dcp_term_init(struct dcp_term *term, FILE *file, enum dcp_when color);
/* Writes text; in a locale that is not UTF-8 the signs that this project draws with are
 * replaced. Errors are kept by the stream (ferror). */
void dcp_term_put(const struct dcp_term *term, const char *text);
void dcp_term_printf(const struct dcp_term *term, const char *fmt, ...) DCP_PRINTF(2, 3);
/* The escape sequence that begins a style, or ends all; "" without colour. Static. */
const char *dcp_term_style(const struct dcp_term *term, enum dcp_style style);
/* Background colour of the i-th of several things; "" without colour. Static. */
const char *dcp_term_hue(const struct dcp_term *term, int i);

#endif
