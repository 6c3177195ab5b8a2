#include "table.h"

#include "base/buf.h"
#include "base/mem.h"
#include "shorten.h"
#include "text.h"
#include <stdarg.h>
#include <string.h>

#define GAP 2        /* blanks between columns */
#define CUT_LEAST 12 /* columns that the cut one keeps, however narrow the terminal */

struct dcp_table {
    const struct dcp_column *columns;
    size_t n_columns;
    struct dcp_buf text; /* all cells, each with its NUL, row by row */
    size_t n_cells;
    int *widths;                /* of the columns, so far */
    struct dcp_shortener names; /* of the cells that are cut */
};

struct dcp_table *dcp_table_new(const struct dcp_column *columns, size_t n)
{
    struct dcp_table *table = dcp_mem_calloc(1, sizeof *table);
    int *widths = dcp_mem_calloc(n, sizeof *widths);
    if (!table || !widths) {
        free(table);
        free(widths);
        return NULL;
    }
    *table = (struct dcp_table){ .columns = columns, .n_columns = n, .widths = widths };
    return table;
}

void dcp_table_free(struct dcp_table *table)
{
    if (!table)
        return;
    dcp_buf_fini(&table->text);
    free(table->widths);
    free(table);
}

/* Ends the cell whose text begins at `begin`. */
static void end_cell(struct dcp_table *table, size_t begin)
{
    dcp_buf_add_u8(&table->text, 0);
    if (table->text.failed)
        return;
    int width = dcp_text_width((const char *)table->text.data + begin);
    int *widest = &table->widths[table->n_cells++ % table->n_columns];
    if (width > *widest)
        *widest = width;
}

void dcp_table_cell(struct dcp_table *table, const char *fmt, ...)
{
    size_t begin = table->text.size_bytes;
    char text[512]; /* names, which may be longer, go the other way */
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(text, sizeof text, fmt, args) < 0)
        text[0] = '\0';
    va_end(args);
    dcp_buf_add_text(&table->text, text);
    end_cell(table, begin);
}

void dcp_table_name(struct dcp_table *table, const char *name)
{
    size_t begin = table->text.size_bytes;
    dcp_text_add_escaped(&table->text, name);
    end_cell(table, begin);
}

/* Shortens the cells of a column. */
static void cut_column(struct dcp_table *table, size_t column, int width)
{
    size_t n = table->n_cells / table->n_columns;
    DCP_CLEANUP_FREE const char **cells = dcp_mem_calloc(n, sizeof *cells);
    const char *cell = (const char *)table->text.data;
    for (size_t i = 0; cells && i < table->n_cells; i++, cell += strlen(cell) + 1)
        if (i % table->n_columns == column)
            cells[i / table->n_columns] = cell;
    if (!cells)
        return;
    table->names = dcp_shorten_choose(cells, n, width);
    if (table->names.width > width && table->names.width > table->widths[column])
        return;
    table->widths[column] = table->names.width > width ? table->names.width : width;
}

/* Takes columns from the one that may give way until the row fits. */
static void fit_widths(struct dcp_table *table, int room)
{
    int all = GAP * ((int)table->n_columns - 1);
    for (size_t i = 0; i < table->n_columns; i++)
        all += table->widths[i];
    for (size_t i = 0; i < table->n_columns && all > room; i++) {
        int least = table->widths[i] < CUT_LEAST ? table->widths[i] : CUT_LEAST;
        int width = table->widths[i] - (all - room);
        width = width > least ? width : least;
        if (table->columns[i].cut)
            cut_column(table, i, width);
        else if (table->columns[i].wrap)
            table->widths[i] = width;
    }
}

static void add_cell(struct dcp_buf *line, const struct dcp_table *table, size_t i,
                     int at, const char *whole, const struct dcp_term *term,
                     enum dcp_style style)
{
    DCP_CLEANUP_BUF struct dcp_buf cell = { 0 };
    if (table->columns[i].cut && table->names.width)
        dcp_shorten_add(&cell, whole, &table->names);
    const char *text = cell.size_bytes ? (const char *)cell.data : whole;
    int width = table->widths[i], taken = dcp_text_width(text);
    size_t pad = taken < width ? (size_t)(width - taken) : 0;
    bool right = table->columns[i].right, last = i + 1 == table->n_columns;
    if (right)
        dcp_buf_add_fill(line, ' ', pad);
    bool styled = style && *text;
    dcp_buf_add_text(line, styled ? dcp_term_style(term, style) : "");
    if (table->columns[i].wrap)
        dcp_text_add_wrapped(line, text, at, at, at + width + 1);
    else
        dcp_buf_add_text(line, text);
    dcp_buf_add_text(line, styled ? dcp_term_style(term, DCP_STYLE_OFF) : "");
    if (!last)
        dcp_buf_add_fill(line, ' ', (right ? 0 : pad) + GAP);
}

static void trim(struct dcp_buf *line)
{
    while (line->size_bytes && line->data[line->size_bytes - 1] == ' ')
        line->data[--line->size_bytes] = '\0';
}

static int put_line(struct dcp_buf *line, const struct dcp_term *term,
                    struct dcp_error *err)
{
    trim(line);
    dcp_buf_add_text(line, "\n");
    int rc = dcp_buf_check(line, err);
    if (rc == DCP_OK)
        dcp_term_put(term, (const char *)line->data);
    return rc;
}

static int print_rows(const struct dcp_table *table, const struct dcp_term *term,
                      int indent, struct dcp_error *err)
{
    const char *cell = (const char *)table->text.data;
    DCP_CLEANUP(dcp_buf_fini) struct dcp_buf line = { 0 };
    for (size_t row = 0; row < table->n_cells / table->n_columns; row++) {
        line.size_bytes = 0;
        dcp_buf_add_fill(&line, ' ', (size_t)indent);
        for (size_t i = 0, at = (size_t)indent; i < table->n_columns; i++) {
            add_cell(&line, table, i, (int)at, cell, term, table->columns[i].style);
            at += (size_t)table->widths[i] + GAP;
            cell += strlen(cell) + 1;
        }
        DCP_TRY(put_line(&line, term, err));
    }
    return DCP_OK;
}

int dcp_table_print(struct dcp_table *table, const struct dcp_term *term, int indent,
                    struct dcp_error *err)
{
    int rc = dcp_buf_check(&table->text, err);
    if (rc)
        return rc;
    bool titles = table->columns[0].title != NULL;
    for (size_t i = 0; titles && i < table->n_columns; i++) {
        int width = dcp_text_width(table->columns[i].title);
        if (width > table->widths[i])
            table->widths[i] = width;
    }
    if (term->width)
        fit_widths(table, term->width - indent);
    if (titles) {
        DCP_CLEANUP(dcp_buf_fini) struct dcp_buf line = { 0 };
        dcp_buf_add_fill(&line, ' ', (size_t)indent);
        for (size_t i = 0; i < table->n_columns; i++)
            add_cell(&line, table, i, 0, table->columns[i].title, term, DCP_STYLE_DIM);
        rc = put_line(&line, term, err);
    }
    if (rc == DCP_OK && table->n_cells)
        rc = print_rows(table, term, indent, err);
    table->text.size_bytes = 0;
    table->n_cells = 0;
    table->names = (struct dcp_shortener){ 0 };
    memset(table->widths, 0, table->n_columns * sizeof *table->widths);
    return rc;
}
