/* map: a picture of who holds what. */
#include "map.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/shorten.h"
#include "cli/text.h"
#include "verbs.h"
#include <string.h>

#define NAME_MOST 40   /* columns of a name */
#define CELLS_LEAST 16 /* of a row */
#define PIPE_WIDTH 110 /* where there is no terminal */
#define RANKS_MOST 32  /* lines of ranks; more are taken together */
#define BAR_MOST 32    /* cells of the greatest rank */
#define BAR_BESIDE 44  /* columns beside the cells */

struct settings {
    struct inspect_selection selection;
    int64_t limit;
    bool each;
};

/* Ranks as one letter each: 0 to 9, a to z, A to Z, and around again. */
static char letter_of(int rank)
{
    static const char letters[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return rank == INSPECT_CELL_NOBODY    ? '.'
           : rank == INSPECT_CELL_SEVERAL ? '*'
                                          : letters[(size_t)rank % (sizeof letters - 1)];
}

/* The cells of a row. In colour a rank is a field of its colour with its letter at the
 * beginning; without, its letter again and again. */
static void add_cells(struct dcp_buf *line, const struct dcp_term *term, const int *cells,
                      int n)
{
    for (int c = 0; c < n; c++) {
        bool begins = c == 0 || cells[c] != cells[c - 1];
        if (!term->color || cells[c] < 0) {
            if (begins && c && term->color)
                dcp_buf_add_text(line, dcp_term_style(term, DCP_STYLE_OFF));
            dcp_buf_add_u8(line, (uint8_t)letter_of(cells[c]));
            continue;
        }
        if (begins)
            dcp_buf_add_text(line, dcp_term_hue(term, cells[c]));
        dcp_buf_add_u8(line, begins ? (uint8_t)letter_of(cells[c]) : ' ');
    }
    if (term->color)
        dcp_buf_add_text(line, dcp_term_style(term, DCP_STYLE_OFF));
}

/* "wMmv": which tensors of a parameter share the row; nothing for a weight alone. */
static void format_roles(const struct inspect_map_row *row, char out[DCP_N_ROLES + 1])
{
    static const char letters[DCP_N_ROLES] = {
        [DCP_ROLE_MODEL] = 'w',   [DCP_ROLE_BUFFER] = 'b',     [DCP_ROLE_MASTER] = 'M',
        [DCP_ROLE_EXP_AVG] = 'm', [DCP_ROLE_EXP_AVG_SQ] = 'v', [DCP_ROLE_OPTIM] = 'o',
        [DCP_ROLE_OTHER] = '-',
    };
    size_t n = 0;
    for (size_t role = 0; role < DCP_N_ROLES; role++)
        if (row->roles[role])
            out[n++] = letters[role];
    out[n] = '\0';
}

struct picture {
    struct dcp_shortener names;
    int name_width, n_cells;
    bool has_roles, has_holes, has_replicas;
};

static struct picture plan_picture(const struct dcp_main *m,
                                   const struct inspect_map_row *rows, size_t n)
{
    struct picture p = { .name_width = 8 };
    for (size_t i = 0; i < n; i++) {
        int width = dcp_text_width(rows[i].tensor->name);
        p.name_width = width > p.name_width ? width : p.name_width;
        for (size_t role = 1; role < DCP_N_ROLES; role++)
            p.has_roles = p.has_roles || rows[i].roles[role];
    }
    int width = m->out.width ? m->out.width : PIPE_WIDTH;
    int most = width / 3 > NAME_MOST ? NAME_MOST : width / 3;
    DCP_CLEANUP_FREE const char **names = dcp_mem_calloc(n, sizeof *names);
    for (size_t i = 0; names && i < n; i++)
        names[i] = rows[i].tensor->name;
    p.names = names && p.name_width > most ? dcp_shorten_choose(names, n, most)
                                           : (struct dcp_shortener){ p.name_width, 0 };
    p.name_width = p.names.width;
    /* two blanks, name, roles, the frame, size: what is left is cells */
    p.n_cells = width - 2 - p.name_width - (p.has_roles ? 6 : 1) - 2 - 10;
    p.n_cells = p.n_cells < CELLS_LEAST          ? CELLS_LEAST
                : p.n_cells > INSPECT_CELLS_MOST ? INSPECT_CELLS_MOST
                                                 : p.n_cells;
    return p;
}

static int put_row(struct dcp_main *m, const struct dcp_catalog *catalog,
                   const struct inspect_map_row *row, struct picture *p,
                   struct dcp_error *err)
{
    const struct dcp_term *out = &m->out;
    int cells[INSPECT_CELLS_MOST];
    char roles[DCP_N_ROLES + 1];
    DCP_CLEANUP_BUF struct dcp_buf name = { 0 }, line = { 0 };
    int dim = inspect_map_paint(catalog, row->tensor, p->n_cells, cells);
    bool is_empty = row->tensor->n_elems == 0;
    for (int c = 0; c < p->n_cells; c++) {
        p->has_holes = p->has_holes || (cells[c] == INSPECT_CELL_NOBODY && !is_empty);
        p->has_replicas = p->has_replicas || cells[c] == INSPECT_CELL_SEVERAL;
    }
    dcp_text_add_escaped(&name, row->tensor->name);
    dcp_buf_add_text(&line, "  ");
    if (!name.failed)
        dcp_shorten_add(&line, (const char *)name.data, &p->names);
    int taken = line.failed ? 0 : dcp_text_width((const char *)line.data) - 2;
    dcp_buf_add_fill(&line, ' ', (size_t)(p->name_width - taken) + 1);
    format_roles(row, roles);
    if (p->has_roles)
        dcp_buf_add_fmt(&line, "%-4s ", roles);
    dcp_buf_add_text(&line, "│");
    if (is_empty)
        dcp_buf_add_fmt(&line, "%-*s", p->n_cells, " no elements");
    else
        add_cells(&line, out, cells, p->n_cells);
    dcp_buf_add_fmt(&line, "│ %8s", dcp_human_size(row->size_bytes).text);
    if (dim > 0)
        dcp_buf_add_fmt(&line, "  along dimension %d", dim);
    dcp_buf_add_text(&line, "\n");
    int rc = dcp_buf_check(&line, err);
    if (rc == DCP_OK)
        dcp_term_put(out, (const char *)line.data);
    return rc;
}

static int put_legend(struct dcp_main *m, const struct picture *p, int world_size,
                      struct dcp_error *err)
{
    const struct dcp_term *out = &m->out;
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 }, wrapped = { 0 };
    dcp_buf_add_text(&text, "each cell shows the rank that holds most of it");
    if (world_size > 10)
        dcp_buf_add_text(&text, world_size > 62 ? "; 0-9, a-z, A-Z, and around again"
                                                : "; a is 10, A is 36");
    if (p->has_replicas)
        dcp_buf_add_text(&text, "; * several hold it");
    if (p->has_holes)
        dcp_buf_add_text(&text, "; . nobody does");
    if (p->has_roles)
        dcp_buf_add_text(&text, "\nw weight, b buffer, M master, m v Adam's moments, "
                                "o other optimizer state");
    if (!text.failed)
        dcp_text_add_wrapped(&wrapped, (const char *)text.data, 2, 2,
                             out->width ? out->width : PIPE_WIDTH);
    int rc = dcp_buf_check(&text, err);
    rc = rc ? rc : dcp_buf_check(&wrapped, err);
    if (rc == DCP_OK)
        dcp_term_printf(out, "\n  %s%s%s\n", dcp_term_style(out, DCP_STYLE_DIM),
                        (const char *)wrapped.data, dcp_term_style(out, DCP_STYLE_OFF));
    return rc;
}

/* A line for ranks first .. last: their mean as a bar, their share. */
static void put_ranks(struct dcp_main *m, const struct inspect_map_rank *ranks, int first,
                      int last, uint64_t most, uint64_t all)
{
    const struct dcp_term *out = &m->out;
    uint64_t sum = 0;
    char label[40], bar[BAR_MOST * 3 + 1];
    int most_cells = out->width && out->width - BAR_BESIDE < BAR_MOST
                         ? out->width - BAR_BESIDE
                         : BAR_MOST;
    if (most_cells < 1)
        most_cells = 1;
    for (int r = first; r <= last; r++)
        sum += ranks[r].size_bytes;
    double mean = (double)sum / (last - first + 1);
    int n = most ? (int)(mean / (double)most * most_cells + 0.5) : 0;
    bar[0] = '\0';
    for (int i = 0; i < n && i < BAR_MOST; i++)
        memcpy(bar + 3 * i, "█", 4);
    if (first == last)
        snprintf(label, sizeof label, "rank %d", first);
    else
        snprintf(label, sizeof label, "ranks %d-%d", first, last);
    dcp_term_printf(out, "  %s%-13s%s %s%s%s%*s %10s%s  %4.1f %%\n",
                    first == last ? dcp_term_hue(out, first) : "", label,
                    dcp_term_style(out, DCP_STYLE_OFF),
                    dcp_term_style(out, DCP_STYLE_NAME), bar,
                    dcp_term_style(out, DCP_STYLE_OFF), most_cells - n, "",
                    dcp_human_size((uint64_t)mean).text, first == last ? "" : " each",
                    all ? 100 * (double)sum / (double)all : 0.0);
}

static void put_balance(struct dcp_main *m, const struct inspect_map_rank *ranks,
                        int world_size)
{
    uint64_t most = 0, least = UINT64_MAX, all = 0;
    for (int r = 0; r < world_size; r++) {
        most = ranks[r].size_bytes > most ? ranks[r].size_bytes : most;
        least = ranks[r].size_bytes < least ? ranks[r].size_bytes : least;
        all += ranks[r].size_bytes;
    }
    int each = (world_size + RANKS_MOST - 1) / RANKS_MOST;
    dcp_term_put(&m->out, "\n");
    for (int first = 0; first < world_size; first += each) {
        int last = first + each <= world_size ? first + each - 1 : world_size - 1;
        put_ranks(m, ranks, first, last, most, all);
    }
    if (world_size > 1)
        dcp_term_printf(&m->out, "  spread %.1f %% (%s to %s a rank)\n",
                        all ? 100.0 * (double)(most - least) * world_size / (double)all
                            : 0.0,
                        dcp_human_size(least).text, dcp_human_size(most).text);
}

static int print_text(struct dcp_main *m, const struct inspect_checkpoint *checkpoint,
                      const struct inspect_map_row *rows, size_t n, int64_t limit,
                      const struct inspect_map_rank *ranks, int world_size,
                      struct dcp_error *err)
{
    const struct dcp_catalog *catalog = checkpoint->catalog;
    char path[512], layout[64];
    size_t n_shown = limit > 0 && (uint64_t)limit < n ? (size_t)limit : n;
    struct picture p = plan_picture(m, rows, n_shown);
    dcp_str_escape(path, sizeof path, checkpoint->location.path);
    dcp_str_escape(layout, sizeof layout, catalog->layout ? catalog->layout : "");
    dcp_term_printf(
        &m->out, "%s%s%s   %s%s%s\n\n", dcp_term_style(&m->out, DCP_STYLE_BOLD), path,
        dcp_term_style(&m->out, DCP_STYLE_OFF), layout, layout[0] ? " on " : "",
        dcp_human_items((uint64_t)world_size, "rank", "ranks").text);
    int rc = DCP_OK;
    for (size_t i = 0; i < n_shown && rc == DCP_OK && dcp_main_is_read(m); i++)
        rc = put_row(m, catalog, &rows[i], &p, err);
    if (rc)
        return rc;
    if (n_shown < n)
        dcp_term_printf(&m->out, "  %s more rows (--limit)\n",
                        dcp_human_count(n - n_shown).text);
    rc = put_legend(m, &p, world_size, err);
    if (rc == DCP_OK)
        put_balance(m, ranks, world_size);
    return rc;
}

static json_t *row_json(const struct dcp_catalog *catalog, const struct dcp_tensor *t)
{
    int cells[INSPECT_CELLS_MOST];
    const int n = 64;
    int dim = inspect_map_paint(catalog, t, n, cells);
    json_t *list = json_array();
    for (int c = 0; c < n && t->n_elems > 0; c++) {
        json_t *cell = cells[c] == INSPECT_CELL_NOBODY    ? json_null()
                       : cells[c] == INSPECT_CELL_SEVERAL ? json_string("several")
                                                          : json_integer(cells[c]);
        if (dcp_doc_add(list, cell)) {
            json_decref(list);
            list = NULL;
        }
    }
    return json_pack("{s:o, s:s, s:o, s:o, s:o, s:o}", "name", dcp_doc_text(t->name),
                     "role", dcp_role_name(t->role), "size_bytes",
                     dcp_doc_u64(dcp_tensor_bytes(t)), "n_pieces",
                     dcp_doc_u64(t->n_pieces), "dimension",
                     dim > 0 ? json_integer(dim) : json_null(), "cells", list);
}

static int print_json(struct dcp_main *m, const struct inspect_checkpoint *checkpoint,
                      const size_t *tensors, size_t n,
                      const struct inspect_map_rank *ranks, int world_size,
                      struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("map");
    DCP_CLEANUP_JSON json_t *head = inspect_checkpoint_json(checkpoint);
    json_t *rank_list = json_array(), *list = json_array();
    int rc = json_object_update(doc, head) ? DCP_E_MEMORY : DCP_OK;
    rc |= dcp_doc_set(doc, "ranks", rank_list);
    rc |= dcp_doc_set(doc, "tensors", list);
    for (int r = 0; r < world_size && !rc; r++)
        rc =
            dcp_doc_add(rank_list, json_pack("{s:i, s:o, s:o}", "rank", r, "size_bytes",
                                             dcp_doc_u64(ranks[r].size_bytes), "n_pieces",
                                             dcp_doc_u64(ranks[r].n_pieces)));
    for (size_t i = 0; i < n && !rc; i++)
        rc = dcp_doc_add(list, row_json(checkpoint->catalog,
                                        &checkpoint->catalog->tensors[tensors[i]]));
    return dcp_doc_print(m->out.file, rc ? NULL : doc, err);
}

static int show(struct dcp_main *m, const struct settings *settings,
                const struct inspect_checkpoint *checkpoint, const size_t *tensors,
                size_t n, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct inspect_map_rank *ranks = NULL;
    DCP_CLEANUP_FREE struct inspect_map_row *rows = NULL;
    size_t n_rows = 0;
    int world_size = 1;
    DCP_TRY(inspect_map_ranks(checkpoint->catalog, tensors, n, &ranks, &world_size, err));
    if (m->json)
        return print_json(m, checkpoint, tensors, n, ranks, world_size, err);
    DCP_TRY(inspect_map_rows(checkpoint->catalog, tensors, n, settings->each, &rows,
                             &n_rows, err));
    return print_text(m, checkpoint, rows, n_rows, settings->limit, ranks, world_size,
                      err);
}

static int run(struct dcp_main *m, const void *given, struct dcp_error *err)
{
    const struct settings *settings = given;
    struct inspect_checkpoint checkpoint;
    DCP_CLEANUP_FREE size_t *tensors = NULL;
    size_t n = 0;
    DCP_TRY(inspect_open(m, m->operands.items[0], &checkpoint, err));
    int rc = inspect_select(&checkpoint, &settings->selection, &tensors, &n, err);
    if (rc == DCP_OK)
        rc = show(m, settings, &checkpoint, tensors, n, err);
    inspect_close(&checkpoint);
    return rc;
}

#define AT(field) .at = offsetof(struct settings, field)
static const struct dcp_opt opts[] = {
    INSPECT_OPTS_SELECTION,
    { 'n', "limit", "N", "draw the first N rows; 0 draws all", "Output", DCP_OPT_INT,
      AT(limit), .max = INT64_MAX },
    { 'e', "each", NULL,
      "a row for each tensor, even where those of a parameter are placed alike", NULL,
      DCP_OPT_FLAG, AT(each) },
    { 0 },
};

static const struct dcp_example examples[] = {
    { "dcp-inspect map run", "which rank holds what, and how even it is" },
    { "dcp-inspect map run -t 'h.0.*' --each",
      "the first layer, weights and moments apart" },
    { 0 },
};

const struct dcp_command inspect_map = {
    .name = "map",
    .operands = "PATH",
    .min_operands = 1,
    .max_operands = 1,
    .purpose = "draw which rank holds what",
    .about =
        INSPECT_ABOUT_PATH "\nDraws each tensor as a bar over its elements, in the "
                           "colour and letter of the rank "
                           "that holds them, and below it what each rank holds in all.",
    .opts = opts,
    .settings_size_bytes = sizeof(struct settings),
    .examples = examples,
    .exits = inspect_exits,
    .run = run,
};
