#include "clones.h"
#include "base/mem.h"
#include "core/catalog/order.h"

/* Of many runs, as where columns are cut, each is an extent of its own in the end: short
 * ones would cost reading more than they save. */
enum { LEAST_BLOCKS = 16 };

/* Bytes that lie side by side in a file of the source and in one of the target. */
struct run {
    int src_file, dst_file; /* src_file -1: none yet */
    uint64_t from, to, n;
};

struct making {
    struct dcp_clones *clones;
    const struct dcp_catalog *src, *dst;
    uint64_t block_bytes;
    struct run run;
};

/* Keeps the whole blocks of the run. */
static int end_run(struct making *m, struct dcp_error *err)
{
    const struct run run = m->run;
    uint64_t block = m->block_bytes, skip = (block - run.to % block) % block;

    m->run.src_file = -1;
    if (run.src_file < 0 || run.from % block != run.to % block || run.n < skip + block)
        return DCP_OK;
    struct dcp_clones *clones = m->clones;
    struct dcp_clone *grown =
        dcp_mem_grow(clones->items, &clones->cap, clones->n + 1, sizeof *grown);
    if (!grown)
        return dcp_error_memory(err, "the blocks that files share");
    clones->items = grown;
    grown[clones->n++] = (struct dcp_clone){ run.src_file, run.from + skip, run.to + skip,
                                             (run.n - skip) / block * block };
    clones->first[run.dst_file + 1] = clones->n;
    return DCP_OK;
}

/* Small tensors that are neighbours on both sides are one run. */
static int add_run(struct making *m, const struct run *next, struct dcp_error *err)
{
    struct run *run = &m->run;

    if (run->src_file == next->src_file && run->dst_file == next->dst_file &&
        run->from + run->n == next->from && run->to + run->n == next->to) {
        run->n += next->n;
        return DCP_OK;
    }
    DCP_TRY(end_run(m, err));
    *run = *next;
    return DCP_OK;
}

/* Whether the bytes of a copy are in both files as they are. */
static bool is_plain(const struct making *m, const struct dcp_copy *copy)
{
    const struct dcp_piece *from = &m->src->pieces[copy->src];
    const struct dcp_piece *to = &m->dst->pieces[copy->dst];

    return from->file >= 0 && to->file >= 0 && from->codec == DCP_CODEC_NONE &&
           to->codec == DCP_CODEC_NONE && !from->swap_bytes &&
           m->src->tensors[from->tensor].dtype == m->dst->tensors[to->tensor].dtype;
}

static int add_copy(struct making *m, const struct dcp_copy *copy, struct dcp_error *err)
{
    const struct dcp_piece *from = &m->src->pieces[copy->src];
    const struct dcp_piece *to = &m->dst->pieces[copy->dst];
    uint64_t elem = dcp_dtype_size(m->src->tensors[from->tensor].dtype);
    uint64_t bytes = (uint64_t)copy->n * elem;
    int64_t n_runs = dcp_copy_runs(copy);

    if (!is_plain(m, copy) || (n_runs > 1 && bytes < LEAST_BLOCKS * m->block_bytes))
        return end_run(m, err);
    for (int64_t r = 0; r < n_runs; r++) {
        int64_t src, dst;
        dcp_copy_run(copy, r, &src, &dst);
        const struct run run = { from->file, to->file,
                                 from->offset + (uint64_t)src * elem,
                                 to->offset + (uint64_t)dst * elem, bytes };
        DCP_TRY(add_run(m, &run, err));
    }
    return DCP_OK;
}

static int by_place(const void *p, const void *q)
{
    const struct dcp_clone *a = p, *b = q;

    return (a->to > b->to) - (a->to < b->to);
}

/* Runs of several copies take turns where columns of one row come from several files. */
static void sort_files(struct dcp_clones *clones)
{
    for (size_t f = 0; f < clones->n_files; f++) {
        if (clones->first[f + 1] < clones->first[f]) /* a file without any */
            clones->first[f + 1] = clones->first[f];
        size_t n = clones->first[f + 1] - clones->first[f];
        if (n)
            qsort(clones->items + clones->first[f], n, sizeof *clones->items, by_place);
    }
}

int dcp_clones_init(struct dcp_clones *clones, const struct dcp_plan *plan,
                    const struct dcp_catalog *src, const struct dcp_catalog *dst,
                    uint64_t block_bytes, struct dcp_error *err)
{
    struct making m = { clones, src, dst, block_bytes, { .src_file = -1 } };
    DCP_CLEANUP_FREE size_t *order = dcp_file_order(dst);

    *clones = (struct dcp_clones){ .n_files = dst->n_files };
    clones->first = dcp_mem_calloc(dst->n_files + 1, sizeof *clones->first);
    if (!order || !clones->first)
        return dcp_error_memory(err, "the blocks that files share");
    for (size_t i = 0; i < dst->n_pieces; i++)
        for (size_t c = plan->first[order[i]]; c < plan->first[order[i] + 1]; c++)
            DCP_TRY(add_copy(&m, &plan->copies[c], err));
    DCP_TRY(end_run(&m, err));
    sort_files(clones);
    return DCP_OK;
}

void dcp_clones_fini(struct dcp_clones *clones)
{
    free(clones->items);
    free(clones->first);
    *clones = (struct dcp_clones){ 0 };
}

uint64_t dcp_clones_bytes(const struct dcp_clones *clones, size_t file)
{
    uint64_t bytes = 0;

    if (file >= clones->n_files)
        return 0;
    for (size_t c = clones->first[file]; c < clones->first[file + 1]; c++)
        bytes += clones->items[c].n;
    return bytes;
}
