/* formats: list the formats that can be read, written, sharded. */
#include "base/buf.h"
#include "base/mem.h"
#include "cli/doc.h"
#include "cli/main.h"
#include "cli/table.h"
#include "cli/text.h"
#include "verbs.h"
#include <dcp/format.h>

/* An archive is read as what is in it. */
static bool has(const struct dcp_format *format, unsigned flag)
{
    unsigned inside = format->packs ? format->packs->flags & DCP_FORMAT_READS : 0;
    return (format->flags | inside) & flag;
}

/* One letter of the table, one key of the document. */
static const struct {
    char letter;
    const char *what, *key;
    unsigned flag;
} marks[] = {
    { 'r', "reads", "reads", DCP_FORMAT_READS },
    { 'w', "writes", "writes", DCP_FORMAT_WRITES },
    { 'd', "a folder", "is_dir", DCP_FORMAT_IS_DIR },
    { 's', "sharded: any ranks", "sharded", DCP_FORMAT_SHARDED },
    { 'o', "optimizer", "optim", DCP_FORMAT_OPTIM },
    { 'j', "objects, such as schedulers", "objects", DCP_FORMAT_OBJECTS },
    { 'c', "codecs", "codecs", DCP_FORMAT_CODECS },
};
#define N_MARKS DCP_ARRAY_LEN(marks)

/* "PyTorch file: .bin .pt": the suffixes by which `export` chooses it; older names. */
static void add_row(struct dcp_table *table, const struct dcp_format *f)
{
    char letters[N_MARKS + 1] = "";
    bool suffixed = has(f, DCP_FORMAT_WRITES) && f->suffixes[0];
    for (size_t k = 0; k < N_MARKS; k++)
        letters[k] = has(f, marks[k].flag) ? marks[k].letter : '-';
    dcp_table_cell(table, "%s", f->name);
    dcp_table_cell(table, "%s", letters);
    dcp_table_cell(table, "%s%s%s%s%s", f->help, suffixed ? ": " : "",
                   suffixed ? f->suffixes : "", f->alias ? "; also called " : "",
                   f->alias ? f->alias : "");
}

/* What the letters mean. */
static int put_legend(struct dcp_main *m, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 }, line = { 0 };
    for (size_t k = 0; k < N_MARKS; k++)
        dcp_buf_add_fmt(&text, "%s%c %s", k ? "; " : "", marks[k].letter, marks[k].what);
    if (!text.failed)
        dcp_text_add_wrapped(&line, (const char *)text.data, 0, 0,
                             m->out.width ? m->out.width : 80);
    int rc = text.failed ? dcp_buf_check(&text, err) : dcp_buf_check(&line, err);
    if (rc == DCP_OK)
        dcp_term_printf(&m->out, "%s%s%s\n", dcp_term_style(&m->out, DCP_STYLE_DIM),
                        (const char *)line.data, dcp_term_style(&m->out, DCP_STYLE_OFF));
    return rc;
}

static int print_text(struct dcp_main *m, struct dcp_error *err)
{
    static const struct dcp_column columns[] = {
        { .title = "format", .style = DCP_STYLE_BOLD },
        { .title = "can" },
        { .title = "what it is", .wrap = true },
    };
    const struct dcp_format *const *formats = dcp_formats();
    struct dcp_table *table = dcp_table_new(columns, DCP_ARRAY_LEN(columns));
    if (!table)
        return dcp_error_memory(err, "the table");
    for (size_t i = 0; formats[i]; i++)
        add_row(table, formats[i]);
    int rc = dcp_table_print(table, &m->out, 0, err);
    dcp_table_free(table);
    return rc ? rc : put_legend(m, err);
}

static int print_json(struct dcp_main *m, struct dcp_error *err)
{
    const struct dcp_format *const *formats = dcp_formats();
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("formats");
    json_t *list = json_array();
    int rc = dcp_doc_set(doc, "formats", list);
    for (size_t i = 0; formats[i] && !rc; i++) {
        json_t *item = json_pack("{s:s, s:s?, s:s, s:s}", "name", formats[i]->name,
                                 "alias", formats[i]->alias, "help", formats[i]->help,
                                 "suffixes", formats[i]->suffixes);
        for (size_t k = 0; k < N_MARKS; k++)
            rc |= dcp_doc_set(item, marks[k].key,
                              json_boolean(has(formats[i], marks[k].flag)));
        rc |= dcp_doc_add(list, item);
    }
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}

static int run(struct dcp_main *m, const void *settings, struct dcp_error *err)
{
    (void)settings;
    return m->json ? print_json(m, err) : print_text(m, err);
}

static const struct dcp_exit exits[] = {
    { 0, "done" }, { 2, "wrong usage" }, { 6, "output failed" }, { 9, "out of memory" },
    { 0 },
};

const struct dcp_command reshard_formats = {
    .name = "formats",
    .operands = "",
    .purpose = "list the formats that can be read, written, sharded",
    .settings_size_bytes = 1,
    .checks_no_signature = true,
    .exits = exits,
    .run = run,
};
