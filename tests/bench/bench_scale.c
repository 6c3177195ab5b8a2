/* What a save costs its ranks beside the bytes, as worlds and lists of tensors grow: what
 * a rank tells, what rank 0 makes of what all tell, what a rank plans for itself, and the
 * manifest; and how many tables of pieces a rank reads that loads at half the world size.
 * The ranks are told of, not run: rank 0 does all that it would do. */
#include "base/mem.h"
#include "core/plan/deals.h"
#include "core/plan/holdings.h"
#include "core/plan/target.h"
#include "lib/bench.h"
#include <dcp/dcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROWS = 8192, COLUMNS = 8192 };

static void must(int rc)
{
    if (rc) {
        fprintf(stderr, "bench_scale: failed with %d\n", rc);
        exit(1);
    }
}

static struct dcp_catalog *list(int n_tensors, int world_size)
{
    const int64_t shape[] = { ROWS, COLUMNS };
    struct dcp_catalog *catalog;
    char name[64];

    must(dcp_catalog_new(&catalog, NULL));
    catalog->world_size = world_size;
    catalog->step = 1;
    for (int t = 0; t < n_tensors; t++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", t);
        struct dcp_tensor tensor = {
            .name = name, .dtype = DCP_BF16, .ndim = 2, .shape = shape
        };
        must(dcp_catalog_add_tensor(catalog, &tensor, NULL, NULL));
    }
    return catalog;
}

/* What a rank holds of every tensor: a flat range, rows, columns, or all. */
static struct dcp_region region_of(const char *layout, int rank, int world_size,
                                   int64_t dims[2][DCP_MAX_NDIM])
{
    int64_t elems = (int64_t)ROWS * COLUMNS;
    int d = !strcmp(layout, "columns");

    if (!strcmp(layout, "replicated"))
        return (struct dcp_region){ .kind = DCP_WHOLE };
    if (!strcmp(layout, "flat"))
        return (struct dcp_region){ .kind = DCP_FLAT,
                                    .begin = elems * rank / world_size,
                                    .end = elems * (rank + 1) / world_size };
    dims[0][!d] = 0;
    dims[1][!d] = ROWS;
    dims[0][d] = (int64_t)COLUMNS * rank / world_size;
    dims[1][d] = (int64_t)COLUMNS * (rank + 1) / world_size - dims[0][d];
    return (struct dcp_region){ .kind = DCP_BOX, .offset = dims[0], .size = dims[1] };
}

/* The catalog of a rank: the pieces of `mine` become its own. */
static void become(struct dcp_catalog *mine, const char *layout, int rank,
                   int64_t dims[2][DCP_MAX_NDIM])
{
    static char byte;

    for (size_t t = 0; t < mine->n_tensors; t++)
        mine->pieces[t] = (struct dcp_piece){
            .tensor = (int)t,
            .rank = rank,
            .region = region_of(layout, rank, mine->world_size, dims),
            .file = -1,
            .data = &byte,
        };
}

/* The manifest that names all shards. */
static double write_manifest(struct dcp_target *target, int world_size)
{
    static const char *const suffixes[] = { "safetensors", "pieces" };
    char name[64];

    for (int r = 0; r < world_size; r++)
        for (size_t s = 0; s < DCP_ARRAY_LEN(suffixes); s++) {
            snprintf(name, sizeof name, "shard-%05d-of-%05d.%s", r, world_size,
                     suffixes[s]);
            must(dcp_catalog_add_file(
                target->catalog,
                &(struct dcp_file){
                    .name = name, .rank = r, .size_bytes = 1 << 20, .has_crc = true },
                NULL, NULL));
        }
    double started = bench_now();
    must(dcp_target_finish(target, NULL));
    return bench_now() - started;
}

/* Each rank of a load at half the world size finds the tables that it needs. */
static void find_tables(const struct dcp_catalog *step, const char *layout, double *out_s,
                        double *out_mean, int *out_most)
{
    int readers = step->world_size / 2, most = 0;
    bool *needed = dcp_mem_calloc((size_t)step->world_size, sizeof *needed);
    int64_t dims[2][DCP_MAX_NDIM];
    size_t all = 0;
    double started = bench_now();

    must(needed ? 0 : DCP_E_MEMORY);
    for (int r = 0; r < readers; r++) {
        int n = 0;
        memset(needed, 0, (size_t)step->world_size * sizeof *needed);
        for (size_t t = 0; t < step->n_tensors; t++) {
            const struct dcp_tensor *tensor = &step->tensors[t];
            struct dcp_region region = region_of(layout, r, readers, dims);
            if (tensor->grid)
                dcp_grid_mark(tensor, tensor->grid, &region, needed);
            else
                memset(needed, 1, (size_t)step->world_size * sizeof *needed);
        }
        for (int s = 0; s < step->world_size; s++)
            n += needed[s];
        all += (size_t)n;
        most = n > most ? n : most;
    }
    *out_s = (bench_now() - started) / readers;
    *out_mean = (double)all / readers;
    *out_most = most;
    free(needed);
}

struct figures {
    double pack_s, deal_s, take_s, plan_s, manifest_s, find_s, tables;
    int most_tables;
    uint64_t message_bytes, told_bytes, header_bytes, manifest_bytes;
};

static uint64_t literal_bytes(const struct dcp_target *target, size_t from)
{
    uint64_t n = 0;

    for (size_t i = from; i < target->literals.n; i++)
        n += target->literals.items[i].size_bytes;
    return n;
}

/* Rank 0 of a save of that many. */
static struct figures measure(const char *layout, int world_size, int n_tensors)
{
    const struct dcp_target_options none = { 0 };
    struct figures f = { 0 };
    struct dcp_catalog *mine = list(n_tensors, world_size);
    struct dcp_catalog *deals = list(n_tensors, world_size);
    struct dcp_catalog *own = list(n_tensors, world_size);
    struct dcp_cursor *holdings = dcp_mem_calloc((size_t)world_size, sizeof *holdings);
    size_t *sizes = dcp_mem_calloc((size_t)world_size, sizeof *sizes);
    int64_t dims[2][DCP_MAX_NDIM];
    struct dcp_buf all = { 0 }, told = { 0 };
    struct dcp_device host;

    must(holdings && sizes ? 0 : DCP_E_MEMORY);
    dcp_device_host(&host);
    for (int t = 0; t < n_tensors; t++)
        must(dcp_catalog_add_piece(mine, &(struct dcp_piece){ .tensor = t, .file = -1 },
                                   NULL));
    double started = bench_now();
    for (int r = 0; r < world_size; r++) {
        size_t before = all.size_bytes;
        become(mine, layout, r, dims);
        must(dcp_holdings_pack(mine, &host, &all, NULL));
        sizes[r] = all.size_bytes - before;
    }
    f.pack_s = (bench_now() - started) / world_size;
    f.message_bytes = all.size_bytes;
    size_t at = 0;
    for (int r = 0; r < world_size; at += sizes[r++])
        holdings[r] = dcp_cursor_init(all.data + at, sizes[r]);

    started = bench_now();
    must(dcp_deals_make(deals, holdings, NULL));
    dcp_deals_pack(deals, &told);
    f.deal_s = bench_now() - started;
    f.told_bytes = told.size_bytes;

    become(mine, layout, 0, dims);
    started = bench_now();
    struct dcp_cursor in = dcp_cursor_init(told.data, told.size_bytes);
    must(dcp_deals_take(&in, mine, 0, own, NULL));
    must(dcp_catalog_sort(own, NULL));
    f.take_s = bench_now() - started;

    struct dcp_target target = {
        .format = dcp_format_of_steps(), .catalog = own, .options = &none, .n_ranks = 1
    };
    started = bench_now();
    must(dcp_target_open_cut(&target, NULL));
    f.plan_s = bench_now() - started;
    must(dcp_target_finalize(&target, 0, NULL));
    f.header_bytes = own->n_pieces ? literal_bytes(&target, 0) / own->n_pieces : 0;
    own->n_files = 0;
    for (size_t t = 0; t < own->n_tensors; t++)
        own->tensors[t].grid = deals->tensors[t].grid;
    size_t before = target.literals.n;
    f.manifest_s = write_manifest(&target, world_size);
    f.manifest_bytes = literal_bytes(&target, before);
    find_tables(own, layout, &f.find_s, &f.tables, &f.most_tables);
    dcp_target_close(&target);
    dcp_buf_fini(&all);
    dcp_buf_fini(&told);
    free(holdings);
    free(sizes);
    dcp_catalog_free(mine);
    dcp_catalog_free(deals);
    dcp_catalog_free(own);
    return f;
}

static void row(const char *layout, int world_size, int n_tensors)
{
    struct figures f = measure(layout, world_size, n_tensors);
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    double pieces = (double)world_size * n_tensors;
    printf("%-10s %6d %8d  %8.2f %8.3f %6.0f  %8.2f %8.2f %6.0f  %8.1f %8.2f %8.1f  "
           "%7.2f %6.1f %5d  %6ld\n",
           layout, world_size, n_tensors, f.pack_s * 1e3, f.deal_s,
           f.deal_s * 1e9 / pieces, f.take_s * 1e3, f.plan_s * 1e3,
           (double)f.header_bytes, f.manifest_s * 1e3, (double)f.manifest_bytes / 1e6,
           (double)f.message_bytes / 1e6, f.find_s * 1e3, f.tables, f.most_tables,
           usage.ru_maxrss / 1024);
    fflush(stdout);
}

int main(void)
{
    static const char *const layouts[] = { "flat", "dim0", "columns", "replicated" };
    static const int worlds[] = { 4, 64, 512, 4096 }, tensors[] = { 20, 200, 2000 };

    printf("%-10s %6s %8s  %8s %8s %6s  %8s %8s %6s  %8s %8s %8s  %7s %6s %5s  %6s\n",
           "layout", "ranks", "tensors", "tell/ms", "deal/s", "ns", "take/ms", "plan/ms",
           "B", "manif/ms", "manif/MB", "told/MB", "find/ms", "tables", "most", "MiB");
    for (size_t l = 0; l < DCP_ARRAY_LEN(layouts); l++) {
        for (size_t w = 0; w < DCP_ARRAY_LEN(worlds); w++)
            row(layouts[l], worlds[w], 200);
        for (size_t t = 0; t < DCP_ARRAY_LEN(tensors); t++)
            row(layouts[l], 512, tensors[t]);
        row(layouts[l], 4096, 2000);
    }
    return 0;
}
