/* formats: what can be read, written, sharded. */
#include "base/mem.h"
#include "cli/doc.h"
#include "cli/main.h"
#include "cli/table.h"
#include "verbs.h"
#include <dcp/format.h>

/* An archive is read as what is in it. */
static bool has(const struct dcp_format *format, unsigned flag)
{
    unsigned inside = format->packs ? format->packs->flags & DCP_FORMAT_READS : 0;
    return (format->flags | inside) & flag;
}

/* One column of the table, one key of the document. */
static const struct {
    const char *title, *key;
    unsigned flag;
} marks[] = {
    { "reads", "reads", DCP_FORMAT_READS },
    { "writes", "writes", DCP_FORMAT_WRITES },
    { "sharded", "sharded", DCP_FORMAT_SHARDED },
    { "optimizer", "optim", DCP_FORMAT_OPTIM },
    { "objects", "objects", DCP_FORMAT_OBJECTS },
    { "codecs", "codecs", DCP_FORMAT_CODECS },
};
#define N_MARKS DCP_ARRAY_LEN(marks)

static int print_text(struct dcp_main *m, struct dcp_error *err)
{
    const struct dcp_format *const *formats = dcp_formats();
    struct dcp_column columns[N_MARKS + 3] = { [0] = { .title = "format",
                                                       .style = DCP_STYLE_BOLD } };
    for (size_t i = 0; i < N_MARKS; i++)
        columns[i + 1].title = marks[i].title;
    columns[N_MARKS + 1].title = "target";
    columns[N_MARKS + 2] = (struct dcp_column){ .title = "what it is", .cut = true };
    struct dcp_table *table = dcp_table_new(columns, DCP_ARRAY_LEN(columns));
    if (!table)
        return dcp_error_memory(err, "the table");
    for (size_t i = 0; formats[i]; i++) {
        const struct dcp_format *f = formats[i];
        bool is_dir = f->flags & DCP_FORMAT_IS_DIR;
        dcp_table_cell(table, "%s", f->name);
        for (size_t k = 0; k < N_MARKS; k++)
            dcp_table_cell(table, "%s", has(f, marks[k].flag) ? "yes" : "-");
        dcp_table_cell(table, "%s%s%s", is_dir ? "a folder" : "",
                       is_dir && f->suffixes[0] ? " " : "", f->suffixes);
        dcp_table_cell(table, "%s", f->help);
    }
    int rc = dcp_table_print(table, &m->out, 0, err);
    dcp_table_free(table);
    return rc;
}

static int print_json(struct dcp_main *m, struct dcp_error *err)
{
    const struct dcp_format *const *formats = dcp_formats();
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("formats");
    json_t *list = json_array();
    int rc = dcp_doc_set(doc, "formats", list);
    for (size_t i = 0; formats[i] && !rc; i++) {
        json_t *item = json_pack("{s:s, s:s, s:s, s:b}", "name", formats[i]->name, "help",
                                 formats[i]->help, "suffixes", formats[i]->suffixes,
                                 "is_dir", (formats[i]->flags & DCP_FORMAT_IS_DIR) != 0);
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

static const struct dcp_exit exits[] = { { 0, "done" }, { 2, "used wrongly" }, { 0 } };

const struct dcp_command reshard_formats = {
    .name = "formats",
    .operands = "",
    .purpose = "what can be read, written, sharded",
    .settings_size_bytes = 1,
    .exits = exits,
    .run = run,
};
