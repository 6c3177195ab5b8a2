/* table: rows of text in aligned columns, cut to the width of the terminal. */
#ifndef DCP_CLI_TABLE_H
#define DCP_CLI_TABLE_H

#include "term.h"
#include <stddef.h>

struct dcp_column {
    const char *title; /* NULL in all columns: no line of titles */
    bool right;        /* numbers */
    bool cut;  /* gives way when the table is too wide, as long as cells that differ do
                * so still; at most one column gives way */
    bool wrap; /* gives way by going on in further lines; the last column */
    enum dcp_style style;
};

struct dcp_table;

/* Caller owns. The columns are borrowed. NULL: out of memory. */
struct dcp_table *dcp_table_new(const struct dcp_column *columns, size_t n);
void dcp_table_free(struct dcp_table *table);
/* Fills the next cell, row by row. Names from files go through dcp_table_name, which
 * escapes them. Memory that runs out is told by dcp_table_print. */
void dcp_table_cell(struct dcp_table *table, const char *fmt, ...) DCP_PRINTF(2, 3);
void dcp_table_name(struct dcp_table *table, const char *name);
/* Prints and forgets the rows. `indent` blanks before each. Errors: MEMORY. */
int dcp_table_print(struct dcp_table *table, const struct dcp_term *term, int indent,
                    struct dcp_error *err);

#endif
