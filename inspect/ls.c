/* ls: the tensors, one a line. */
#include "verbs.h"

#include "base/mem.h"
#include "base/str.h"
#include "checkpoint.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/table.h"
#include <string.h>

enum order { ORDER_FILE, ORDER_SIZE, ORDER_NAME };

struct settings {
    struct inspect_selection selection;
    int order;
    int64_t limit;
    bool pieces;
};

/* A tensor in the order it is shown in. */
struct row {
    const struct dcp_tensor *tensor;
    size_t place; /* in the catalog: keeps the order of equals */
};

static int by_size(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    uint64_t p = dcp_tensor_bytes(x->tensor), q = dcp_tensor_bytes(y->tensor);
    if (p != q)
        return p > q ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static int by_name(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return dcp_str_natural_cmp(x->tensor->name, y->tensor->name);
}

static struct row *make_rows(const struct dcp_catalog *catalog, const size_t *indices,
                             size_t n, int order)
{
    struct row *rows = dcp_mem_calloc(n, sizeof *rows);
    for (size_t i = 0; rows && i < n; i++)
        rows[i] = (struct row){ &catalog->tensors[indices[i]], indices[i] };
    if (rows && order != ORDER_FILE)
        qsort(rows, n, sizeof *rows, order == ORDER_SIZE ? by_size : by_name);
    return rows;
}

/* "elements 0:96" of the flattened tensor, "[0:4, :]", "all". */
static void format_region(const struct dcp_tensor *tensor,
                          const struct dcp_region *region, char *out, size_t cap)
{
    size_t used = 0;
    if (region->kind == DCP_WHOLE)
        snprintf(out, cap, "all");
    else if (region->kind == DCP_FLAT)
        snprintf(out, cap, "elements %lld:%lld", (long long)region->begin,
                 (long long)region->end);
    for (int d = 0; region->kind == DCP_BOX && d < tensor->ndim && used < cap; d++)
        used += (size_t)snprintf(out + used, cap - used, "%s%lld:%lld%s", d ? ", " : "[",
                                 (long long)region->offset[d],
                                 (long long)(region->offset[d] + region->size[d]),
                                 d + 1 == tensor->ndim ? "]" : "");
}

static int print_pieces(struct dcp_main *m, const struct dcp_catalog *catalog,
                        const struct dcp_tensor *tensor, struct dcp_error *err)
{
    static const struct dcp_column columns[] = {
        { .style = DCP_STYLE_DIM }, { .style = DCP_STYLE_DIM, .cut = true },
        { .style = DCP_STYLE_DIM }, { .style = DCP_STYLE_DIM, .right = true },
        { .style = DCP_STYLE_DIM },
    };
    struct dcp_table *table = dcp_table_new(columns, DCP_ARRAY_LEN(columns));
    if (!table)
        return dcp_error_memory(err, "the table");
    for (size_t i = 0; i < tensor->n_pieces; i++) {
        const struct dcp_piece *p = &catalog->pieces[tensor->first_piece + i];
        char region[256];
        format_region(tensor, &p->region, region, sizeof region);
        dcp_table_cell(table, "rank %d", p->rank);
        dcp_table_name(table, p->file >= 0 ? catalog->files[p->file].name : "");
        dcp_table_cell(table, "%s", region);
        dcp_table_cell(table, "at %s", dcp_human_count(p->offset).text);
        dcp_table_cell(table, "%s%s%s", dcp_human_size(p->stored_size).text,
                       p->codec ? " " : "", p->codec ? dcp_codec_name(p->codec) : "");
    }
    int rc = dcp_table_print(table, &m->out, 4, err);
    dcp_table_free(table);
    return rc;
}

/* A dtype, or the type of quantized blocks. */
static const char *type_of(const struct dcp_tensor *t)
{
    return t->quantized ? t->quantized : dcp_dtype_name(t->dtype);
}

static void add_row(struct dcp_table *table, const struct dcp_tensor *t)
{
    dcp_table_name(table, t->name);
    dcp_table_cell(table, "%s", type_of(t));
    dcp_table_cell(table, "%s", dcp_human_shape(t->ndim, t->shape).text);
    dcp_table_cell(table, "%s", dcp_human_size(dcp_tensor_bytes(t)).text);
    dcp_table_cell(table, "%s", dcp_human_count(t->n_pieces).text);
    dcp_table_cell(table, "%s", dcp_role_name(t->role));
}

static int print_text(struct dcp_main *m, const struct dcp_catalog *catalog,
                      const struct row *rows, size_t n, size_t n_shown, bool pieces,
                      struct dcp_error *err)
{
    static const struct dcp_column columns[] = {
        { .title = "name", .cut = true },
        { .title = "dtype" },
        { .title = "shape" },
        { .title = "size", .right = true },
        { .title = "pieces", .right = true },
        { .title = "role" },
    };
    static const struct dcp_column alone[DCP_ARRAY_LEN(columns)] = {
        { .style = DCP_STYLE_BOLD },
    };
    struct dcp_table *table =
        dcp_table_new(pieces ? alone : columns, DCP_ARRAY_LEN(columns));
    if (!table)
        return dcp_error_memory(err, "the table");
    uint64_t size_bytes = 0;
    int rc = DCP_OK;
    for (size_t i = 0; i < n; i++)
        size_bytes += dcp_tensor_bytes(rows[i].tensor);
    for (size_t i = 0; i < n_shown && rc == DCP_OK && dcp_main_is_read(m); i++) {
        add_row(table, rows[i].tensor);
        if (pieces) { /* each tensor with its pieces below it */
            rc = dcp_table_print(table, &m->out, 0, err);
            rc = rc ? rc : print_pieces(m, catalog, rows[i].tensor, err);
        }
    }
    if (rc == DCP_OK && !pieces)
        rc = dcp_table_print(table, &m->out, 0, err);
    dcp_table_free(table);
    dcp_term_printf(&m->out, "%s%s, %s", dcp_term_style(&m->out, DCP_STYLE_DIM),
                    dcp_human_items(n, "tensor", "tensors").text,
                    dcp_human_size(size_bytes).text);
    if (n_shown < n)
        dcp_term_printf(&m->out, "; %s not shown (--limit)",
                        dcp_human_count(n - n_shown).text);
    dcp_term_printf(&m->out, "%s\n", dcp_term_style(&m->out, DCP_STYLE_OFF));
    return rc;
}

static json_t *region_json(const struct dcp_tensor *t, const struct dcp_region *region)
{
    if (region->kind == DCP_FLAT)
        return json_pack("{s:s, s:I, s:I}", "kind", "flat", "begin",
                         (json_int_t)region->begin, "end", (json_int_t)region->end);
    if (region->kind == DCP_BOX)
        return json_pack("{s:s, s:o, s:o}", "kind", "box", "offset",
                         dcp_doc_shape(t->ndim, region->offset), "size",
                         dcp_doc_shape(t->ndim, region->size));
    return json_pack("{s:s}", "kind", "whole");
}

static json_t *pieces_json(const struct dcp_catalog *catalog, const struct dcp_tensor *t)
{
    json_t *list = json_array();
    for (size_t i = 0; i < t->n_pieces; i++) {
        const struct dcp_piece *p = &catalog->pieces[t->first_piece + i];
        const char *file = p->file >= 0 ? catalog->files[p->file].name : NULL;
        json_t *piece =
            json_pack("{s:i, s:o, s:o, s:o, s:o, s:s}", "rank", p->rank, "region",
                      region_json(t, &p->region), "file", dcp_doc_text(file), "offset",
                      dcp_doc_u64(p->offset), "stored_bytes", dcp_doc_u64(p->stored_size),
                      "codec", dcp_codec_name(p->codec));
        if (dcp_doc_add(list, piece)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *tensor_json(const struct dcp_catalog *catalog, const struct dcp_tensor *t,
                           bool pieces)
{
    json_t *item = json_pack(
        "{s:o, s:o, s:s, s:s, s:o, s:I, s:o, s:o, s:o}", "name", dcp_doc_text(t->name),
        "param", dcp_doc_text(t->param), "role", dcp_role_name(t->role), "dtype",
        type_of(t), "shape", dcp_doc_shape(t->ndim, t->shape), "n_elems",
        (json_int_t)t->n_elems, "size_bytes", dcp_doc_u64(dcp_tensor_bytes(t)),
        "n_pieces", dcp_doc_u64(t->n_pieces), "fingerprint",
        t->has_fingerprint ? dcp_doc_hex(t->fingerprint) : json_null());
    if (item && pieces && dcp_doc_set(item, "pieces", pieces_json(catalog, t))) {
        json_decref(item);
        return NULL;
    }
    return item;
}

static int print_json(struct dcp_main *m, const struct inspect_checkpoint *checkpoint,
                      const struct row *rows, size_t n, size_t n_shown, bool pieces,
                      struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("ls");
    DCP_CLEANUP_JSON json_t *head = inspect_checkpoint_json(checkpoint);
    json_t *list = json_array();
    int rc = json_object_update(doc, head) ? DCP_E_MEMORY : DCP_OK;
    rc |= dcp_doc_set(doc, "n_selected", dcp_doc_u64(n));
    rc |= dcp_doc_set(doc, "tensors", list);
    for (size_t i = 0; i < n_shown && !rc; i++)
        rc = dcp_doc_add(list, tensor_json(checkpoint->catalog, rows[i].tensor, pieces));
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    const struct settings *settings = given;
    struct inspect_checkpoint checkpoint;
    DCP_CLEANUP_FREE size_t *indices = NULL;
    size_t n = 0;
    DCP_TRY(inspect_open(m, m->operands.items[0], &checkpoint, err));
    int rc = inspect_select(&checkpoint, &settings->selection, &indices, &n, err);
    if (rc == DCP_OK) {
        DCP_CLEANUP_FREE struct row *rows =
            make_rows(checkpoint.catalog, indices, n, settings->order);
        bool limited = settings->limit > 0 && (uint64_t)settings->limit < n;
        size_t n_shown = limited ? (size_t)settings->limit : n;
        if (!rows)
            rc = dcp_error_memory(err, "the list of tensors");
        else if (m->json)
            rc = print_json(m, &checkpoint, rows, n, n_shown, settings->pieces, err);
        else
            rc = print_text(m, checkpoint.catalog, rows, n, n_shown, settings->pieces,
                            err);
    }
    inspect_close(&checkpoint);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    INSPECT_OPTS_SELECTION,
    { 's', "sort", "file|size|name", "largest first, by name, or as they lie in the file",
      "Output", DCP_OPT_CHOICE, AT(order) },
    { 'n', "limit", "N", "show the first N; 0 shows all", NULL, DCP_OPT_INT, AT(limit),
      .max = INT64_MAX },
    { 'p', "pieces", NULL,
      "also list the pieces of each: rank, file, region, offset, size", NULL,
      DCP_OPT_FLAG, AT(pieces) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-inspect ls run --sort size --limit 10", "the ten largest tensors" },
    { "dcp-inspect ls model.bin -t '*.attn.*' -t 'ln_f.*'", "some of them, by name" },
    { "dcp-inspect ls run -t wte.weight --pieces",
      "which rank holds what, in which file" },
    { 0 },
};

const struct dcp_exit inspect_exits[] = { { 0, "done" }, INSPECT_EXITS_FAILED };

const struct dcp_command inspect_ls = {
    .name = "ls",
    .operands = "PATH",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "list the tensors: dtype, shape, size, pieces",
    .about = INSPECT_ABOUT_PATH "\nIn a GLOB, * stands for any text (dots too), ? for "
                                "one character, [a-z] for one of "
                                "a range, {a,b} for either.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = inspect_exits,
    .run = run,
};
