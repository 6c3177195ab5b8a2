/* What saves and loads cost their ranks beside the bytes, as worlds and lists of tensors
 * grow. The ranks are told of, not run: one process does all that one of them would do.
 *
 *   bench_scale save LAYOUT WORLD TENSORS FILE   rank 0 of a save; what it tells all
 *                                                goes to the file
 *   bench_scale rank LAYOUT WORLD TENSORS FILE   another rank, which hears that
 *   bench_scale load LAYOUT WORLD FOLDER         all ranks of a load of a step of
 *                                                bench_wide, one after the other
 *
 * Prints numbers and their names; tests/bench/scale says what they mean. */
#include "base/mem.h"
#include "core/catalog/pack.h"
#include "core/plan/deals.h"
#include "core/plan/holdings.h"
#include "core/plan/plan.h"
#include "core/plan/target.h"
#include "lib/bench.h"
#include "lib/must.h"
#include "lib/wide_step.h"
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct wide_step step_of(char **argv)
{
    return (struct wide_step){ .layout = argv[2],
                               .world_size = (int)strtol(argv[3], NULL, 10),
                               .n_tensors = (int)strtol(argv[4], NULL, 10),
                               .rows = 8192,
                               .columns = 8192 };
}

/* Of this program alone: what getrusage says includes what forked it. */
static double peak_mib(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    double kib = 0;

    must(f != NULL);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "VmHWM:", 6))
            kib = strtod(line + 6, NULL);
    fclose(f);
    return kib / 1024;
}

static void tell(const char *name, double value)
{
    printf("%s %.9g\n", name, value);
}

/* The catalog of a rank: a piece of every tensor. */
static struct dcp_catalog *catalog_of(const struct wide_step *step, int rank,
                                      int64_t dims[2][DCP_MAX_NDIM])
{
    static char byte;
    struct dcp_catalog *mine = wide_step_list(step);

    for (int t = 0; t < step->n_tensors; t++)
        must(!dcp_catalog_add_piece(
            mine,
            &(struct dcp_piece){ .tensor = t,
                                 .rank = rank,
                                 .region = wide_step_region(step, rank, dims),
                                 .file = -1,
                                 .data = &byte },
            NULL));
    must(!dcp_catalog_sort(mine, NULL));
    return mine;
}

/* -- a save -------------------------------------------------------------------------- */

/* What all ranks tell: as that of one, but for the place of each region. */
static void pack_all(const struct wide_step *step, struct dcp_buf *all, size_t *sizes)
{
    int64_t dims[2][DCP_MAX_NDIM];
    struct dcp_catalog *mine = catalog_of(step, 0, dims);
    struct dcp_device host;

    dcp_device_host(&host);
    for (int r = 0; r < step->world_size; r++) {
        size_t before = all->size_bytes;
        for (size_t p = 0; p < mine->n_pieces; p++)
            mine->pieces[p].region = wide_step_region(step, r, dims);
        must(!dcp_holdings_pack(mine, &host, all, NULL));
        sizes[r] = all->size_bytes - before;
    }
    dcp_catalog_free(mine);
}

/* A rank's own share: it takes what falls to it, and makes its header. */
static struct dcp_target *plan_own(const struct wide_step *step, int rank,
                                   const void *told, size_t size_bytes)
{
    static const struct dcp_target_options none = { 0 };
    int64_t dims[2][DCP_MAX_NDIM];
    struct dcp_catalog *mine = catalog_of(step, rank, dims), *own = wide_step_list(step);
    struct dcp_target *target = dcp_mem_calloc(1, sizeof *target);

    must(target != NULL);
    double started = bench_now();
    struct dcp_cursor in = dcp_cursor_init(told, size_bytes);
    must(!dcp_deals_take(&in, mine->pieces, rank, own, NULL));
    must(!dcp_catalog_sort(own, NULL));
    *target = (struct dcp_target){ .format = dcp_format_of_steps(),
                                   .catalog = own,
                                   .options = &none,
                                   .first_rank = rank,
                                   .n_ranks = 1 };
    must(!dcp_target_open_cut(target, NULL));
    must(!dcp_target_finalize(target, rank, NULL));
    tell("own_s", bench_now() - started);
    tell("header_bytes", (double)target->literals.items[0].size_bytes /
                             (double)(own->n_pieces ? own->n_pieces : 1));
    dcp_catalog_free(mine);
    return target;
}

/* The manifest that names all shards. */
static void write_manifest(struct dcp_target *target, const struct dcp_catalog *deals)
{
    static const char *const suffixes[] = { "safetensors", "pieces" };
    struct dcp_catalog *own = target->catalog;
    char name[64];

    own->n_files = 0;
    for (size_t t = 0; t < own->n_tensors; t++)
        own->tensors[t].grid = deals->tensors[t].grid;
    double started = bench_now();
    for (int r = 0; r < own->world_size; r++)
        for (size_t s = 0; s < DCP_ARRAY_LEN(suffixes); s++) {
            snprintf(name, sizeof name, "shard-%05d-of-%05d.%s", r, own->world_size,
                     suffixes[s]);
            must(!dcp_catalog_add_file(
                own,
                &(struct dcp_file){
                    .name = name, .rank = r, .size_bytes = 1 << 20, .has_crc = true },
                NULL, NULL));
        }
    must(!dcp_target_finish(target, NULL));
    tell("manifest_s", bench_now() - started);
    tell("manifest_bytes",
         (double)target->literals.items[target->literals.n - 1].size_bytes);
}

static void free_target(struct dcp_target *target)
{
    struct dcp_catalog *catalog = target->catalog;

    dcp_target_close(target);
    dcp_catalog_free(catalog);
    free(target);
}

/* Rank 0. */
static void run_save(char **argv)
{
    const struct wide_step step = step_of(argv);
    size_t *sizes = dcp_mem_calloc((size_t)step.world_size, sizeof *sizes), at = 0;
    struct dcp_cursor *holdings =
        dcp_mem_calloc((size_t)step.world_size, sizeof *holdings);
    struct dcp_catalog *deals = wide_step_list(&step);
    struct dcp_buf all = { 0 }, told = { 0 };

    must(holdings && sizes);
    pack_all(&step, &all, sizes);
    tell("heard_bytes", (double)all.size_bytes);
    for (int r = 0; r < step.world_size; at += sizes[r++])
        holdings[r] = dcp_cursor_init(all.data + at, sizes[r]);
    double started = bench_now();
    must(!dcp_deals_make(deals, holdings, NULL));
    dcp_deals_pack(deals, &told);
    tell("deal_s", bench_now() - started);
    tell("told_bytes", (double)told.size_bytes);
    dcp_buf_fini(&all);
    struct dcp_target *target = plan_own(&step, 0, told.data, told.size_bytes);
    write_manifest(target, deals);
    FILE *f = fopen(argv[5], "wb");
    must(f && fwrite(told.data, 1, told.size_bytes, f) == told.size_bytes && !fclose(f));
    free_target(target);
    dcp_catalog_free(deals);
    dcp_buf_fini(&told);
    free(holdings);
    free(sizes);
}

/* The last rank. */
static void run_rank(char **argv)
{
    const struct wide_step step = step_of(argv);
    int rank = step.world_size - 1;
    int64_t dims[2][DCP_MAX_NDIM];
    struct dcp_buf told = { 0 }, said = { 0 };
    struct dcp_device host;
    FILE *f = fopen(argv[5], "rb");

    must(f != NULL);
    for (int c = fgetc(f); c != EOF; c = fgetc(f))
        dcp_buf_add_u8(&told, (uint8_t)c);
    fclose(f);
    dcp_device_host(&host);
    struct dcp_catalog *mine = catalog_of(&step, rank, dims);
    double started = bench_now();
    must(!dcp_holdings_pack(mine, &host, &said, NULL));
    tell("say_s", bench_now() - started);
    free_target(plan_own(&step, rank, told.data, told.size_bytes));
    dcp_catalog_free(mine);
    dcp_buf_fini(&told);
    dcp_buf_fini(&said);
}

/* -- a load -------------------------------------------------------------------------- */

struct reader {
    double seconds, table_bytes, tables, tensor_bytes;
};

/* What a rank does once rank 0's head has come. */
static struct reader read_as(const struct wide_step *by, int rank,
                             const struct dcp_source *source, const struct dcp_buf *head)
{
    int64_t dims[2][DCP_MAX_NDIM];
    struct reader reader = { 0 };
    struct dcp_catalog *wanted = catalog_of(by, rank, dims), *step;
    struct dcp_plan *plan;
    double started = bench_now();

    must(!dcp_unpack_catalog(head->data, head->size_bytes, &step, NULL));
    bool *ranks = dcp_mem_calloc((size_t)step->world_size, sizeof *ranks);
    must(ranks != NULL);
    for (size_t p = 0; p < wanted->n_pieces; p++) {
        const struct dcp_tensor *tensor = &step->tensors[wanted->pieces[p].tensor];
        must(tensor->grid != NULL);
        dcp_grid_mark(tensor, tensor->grid, &wanted->pieces[p].region, ranks);
    }
    must(!dcp_format_of_steps()->index_ranks(source, ranks, step, NULL));
    must(!dcp_catalog_sort(step, NULL));
    must(!dcp_plan_new(step, wanted, NULL, &plan, NULL));
    reader.seconds = bench_now() - started;
    for (int r = 0; r < step->world_size; r++) {
        reader.tables += ranks[r];
        reader.table_bytes += ranks[r] ? (double)step->files[2 * r + 1].size_bytes : 0;
    }
    for (size_t c = 0; c < plan->n_copies; c++)
        reader.tensor_bytes +=
            2 * (double)(dcp_copy_runs(&plan->copies[c]) * plan->copies[c].n);
    dcp_plan_free(plan);
    dcp_catalog_free(step);
    dcp_catalog_free(wanted);
    free(ranks);
    return reader;
}

static void run_load(char **argv)
{
    struct dcp_store store;
    struct dcp_catalog *catalog;
    struct dcp_buf head = { 0 };
    struct reader all = { 0 }, most = { 0 };

    must(!dcp_store_dir(&store, argv[4], false, NULL));
    const struct dcp_source source = { &store, "", true };
    must(!dcp_catalog_new(&catalog, NULL));
    double started = bench_now();
    must(!dcp_format_of_steps()->index_head(&source, catalog, NULL));
    must(!dcp_pack_catalog(catalog, &head, NULL));
    tell("head_s", bench_now() - started);
    tell("head_bytes", (double)head.size_bytes);
    const struct wide_step by = { .layout = argv[2],
                                  .world_size = (int)strtol(argv[3], NULL, 10),
                                  .n_tensors = (int)catalog->n_tensors,
                                  .rows = 8192,
                                  .columns = 8192 };
    dcp_catalog_free(catalog);
    for (int r = 0; r < by.world_size; r++) {
        struct reader one = read_as(&by, r, &source, &head);
        double *sums = &all.seconds, *tops = &most.seconds;
        for (size_t i = 0; i < sizeof one / sizeof(double); i++) {
            double v = (&one.seconds)[i];
            sums[i] += v / by.world_size;
            tops[i] = v > tops[i] ? v : tops[i];
        }
    }
    tell("read_s", all.seconds);
    tell("tables", all.tables);
    tell("tables_most", most.tables);
    tell("table_bytes", all.table_bytes);
    tell("table_bytes_most", most.table_bytes);
    tell("tensor_bytes", all.tensor_bytes);
    tell("tensor_bytes_most", most.tensor_bytes);
    dcp_buf_fini(&head);
    dcp_store_free(&store);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int argc;
        void (*run)(char **argv);
    } modes[] = { { "save", 6, run_save },
                  { "rank", 6, run_rank },
                  { "load", 5, run_load } };

    for (size_t i = 0; i < DCP_ARRAY_LEN(modes); i++)
        if (argc == modes[i].argc && !strcmp(argv[1], modes[i].name)) {
            modes[i].run(argv);
            tell("peak_mib", peak_mib());
            return 0;
        }
    fprintf(stderr, "usage: bench_scale save|rank LAYOUT WORLD TENSORS FILE\n"
                    "       bench_scale load LAYOUT WORLD FOLDER\n");
    return 2;
}
