#include "runs.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "copy.h"
#include "core/collective/bcast.h"
#include "core/collective/gather.h"
#include "wants.h"
#include <stdatomic.h>
#include <string.h>

/* Runs are worth a round of all ranks and a call of the kernel each where blocks would
 * be more than 5/4 of what is wanted, by so many bytes of a tensor, and of a run. */
#define MIN_SAVED_BYTES (64u << 10)
#define MIN_SAVED_OF_RUN 1024

struct dcp_runs {
    const struct dcp_catalog *src, *dst;
    const int *from;         /* the tensor of src behind each of dst; -1: none */
    bool *by_runs;           /* of each tensor of src */
    _Atomic uint64_t *parts; /* of each piece of dst */
    _Atomic bool *failed;    /* so it is */
    struct dcp_wants wants;  /* rank 0's */
};

/* -- what a rank would gain --------------------------------------------------------- */

/* What a copy reads: bytes that are wanted, and those of the blocks they lie in. */
struct cost {
    uint64_t wanted, blocks, n_runs;
};

static void add_cost(const struct dcp_catalog *src, const struct dcp_copy *copy,
                     struct cost *cost)
{
    const struct dcp_piece *piece = &src->pieces[copy->src];
    uint64_t elem = dcp_dtype_size(src->tensors[piece->tensor].dtype);
    uint64_t raw = dcp_piece_span(src, piece), run = (uint64_t)copy->n * elem;
    uint64_t n_runs = (uint64_t)dcp_copy_runs(copy);
    int64_t first, last, at;

    dcp_copy_run(copy, 0, &first, &at);
    dcp_copy_run(copy, (int64_t)n_runs - 1, &last, &at);
    uint64_t from = (uint64_t)first * elem / DCP_BLOCK_BYTES * DCP_BLOCK_BYTES;
    uint64_t to = ((uint64_t)last * elem + run + DCP_BLOCK_BYTES - 1) / DCP_BLOCK_BYTES *
                  DCP_BLOCK_BYTES;
    uint64_t span = (to < raw ? to : raw) - from; /* no more than these, */
    uint64_t each = run / DCP_BLOCK_BYTES + 2;    /* nor so many a run */

    cost->wanted += n_runs * run;
    cost->n_runs += n_runs;
    cost->blocks +=
        span / DCP_BLOCK_BYTES / each < n_runs ? span : n_runs * each * DCP_BLOCK_BYTES;
}

static bool gains(const struct dcp_catalog *src, const struct dcp_plan *plan, size_t p)
{
    struct cost cost = { 0 };

    for (size_t c = plan->first[p]; c < plan->first[p + 1]; c++)
        add_cost(src, &plan->copies[c], &cost);
    uint64_t saved = cost.blocks > cost.wanted ? cost.blocks - cost.wanted : 0;
    return saved > cost.wanted / 4 && saved >= MIN_SAVED_BYTES &&
           saved / cost.n_runs >= MIN_SAVED_OF_RUN;
}

/* A piece that can be proved so, if all ranks want the whole tensor between them. */
static bool counts(const struct dcp_runs *runs, size_t p, int *out_source)
{
    const struct dcp_piece *piece = &runs->dst->pieces[p];
    int from = runs->from[piece->tensor];

    *out_source = from;
    return from >= 0 && runs->src->tensors[from].has_fingerprint &&
           dcp_piece_elems(runs->dst, piece) > 0;
}

static bool any_gains(const struct dcp_runs *runs, const struct dcp_plan *plan)
{
    int from;

    for (size_t p = 0; p < runs->dst->n_pieces; p++)
        if (counts(runs, p, &from) && dcp_copy_is_plain(plan, runs->src, runs->dst, p) &&
            gains(runs->src, plan, p))
            return true;
    return false;
}

/* -- which tensors ------------------------------------------------------------------ */

static void pack_wants(const struct dcp_runs *runs, const struct dcp_plan *plan,
                       struct dcp_buf *buf)
{
    for (size_t p = 0; p < runs->dst->n_pieces; p++) {
        struct dcp_want want = { .region = runs->dst->pieces[p].region };
        if (!counts(runs, p, &want.tensor))
            continue;
        want.fits = dcp_copy_is_plain(plan, runs->src, runs->dst, p);
        want.gains = gains(runs->src, plan, p);
        dcp_wants_pack(&runs->src->tensors[want.tensor], &want, buf);
    }
}

/* Rank 0's list of tensors, as all know them. */
static void take_list(struct dcp_runs *runs, const struct dcp_buf *list)
{
    memset(runs->by_runs, 0, runs->src->n_tensors * sizeof *runs->by_runs);
    for (size_t at = 0; at + 4 <= list->size_bytes; at += 4) {
        uint32_t t = dcp_le32(list->data + at);
        if (t < runs->src->n_tensors)
            runs->by_runs[t] = true;
    }
}

/* What rank 0 does with what all said: dcp_wants_choose or dcp_wants_prove. */
typedef int answer(struct dcp_wants *wants, const void *messages, const size_t *sizes,
                   int n, struct dcp_buf *list, struct dcp_error *err);

/* Collective. What each rank says goes to rank 0, which answers with a list of tensors.
 */
static int ask(struct dcp_comm *comm, struct dcp_runs *runs, const struct dcp_buf *said,
               answer *answers, bool *out_any, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf list = { 0 };
    DCP_CLEANUP_GATHERED struct dcp_gathered told = { 0 };
    int rc = dcp_gather_buf(comm, false, said, DCP_OK, &told, err);

    if (!rc && comm->rank == 0)
        rc = answers(&runs->wants, told.all, told.sizes, comm->world_size, &list, err);
    rc = dcp_bcast_buf(comm, &list, rc, err);
    if (!rc)
        take_list(runs, &list);
    *out_any = !rc && list.size_bytes > 0;
    return rc;
}

static int runs_new(const struct dcp_catalog *src, const struct dcp_catalog *dst,
                    const int *from, struct dcp_runs **out, struct dcp_error *err)
{
    struct dcp_runs *runs = calloc(1, sizeof *runs);

    *out = runs;
    if (runs) {
        runs->src = src;
        runs->dst = dst;
        runs->from = from;
        runs->wants.catalog = src;
        runs->by_runs = dcp_mem_calloc(src->n_tensors, sizeof *runs->by_runs);
        runs->parts = dcp_mem_calloc(dst->n_pieces, sizeof *runs->parts);
        runs->failed = dcp_mem_calloc(dst->n_pieces, sizeof *runs->failed);
    }
    if (runs && runs->by_runs && runs->parts && runs->failed)
        return DCP_OK;
    return dcp_error_memory(err, "a load");
}

void dcp_runs_free(struct dcp_runs *runs)
{
    if (!runs)
        return;
    free(runs->by_runs);
    free(runs->parts);
    free(runs->failed);
    dcp_wants_fini(&runs->wants);
    free(runs);
}

int dcp_runs_choose(struct dcp_comm *comm, const struct dcp_plan *plan,
                    const struct dcp_catalog *src, const struct dcp_catalog *dst,
                    const int *from, int rc, struct dcp_runs **out, struct dcp_error *err)
{
    enum { FAILED, RUNS, BLOCKS }; /* the least of all ranks is done */
    DCP_CLEANUP_BUF struct dcp_buf said = { 0 };
    struct dcp_runs *runs = NULL;
    int64_t least = 0;
    bool any = false;

    *out = NULL;
    if (!rc)
        rc = runs_new(src, dst, from, &runs, err);
    int64_t mine = rc ? FAILED : any_gains(runs, plan) ? RUNS : BLOCKS;
    struct dcp_error gone = { 0 };
    int failure = dcp_comm_least(comm, mine, &least, &gone);
    if (failure && !rc) {
        rc = failure;
        if (err)
            *err = gone;
    } else if (!failure && least == FAILED) {
        rc = dcp_agree(comm, rc, err);
    } else if (!failure && least == RUNS) {
        pack_wants(runs, plan, &said);
        rc = ask(comm, runs, &said, dcp_wants_choose, &any, err);
    }
    if (any) {
        *out = runs;
        return DCP_OK;
    }
    dcp_runs_free(runs);
    return rc;
}

/* -- what was read ------------------------------------------------------------------ */

bool dcp_runs_has(const struct dcp_runs *runs, int tensor)
{
    int from = runs ? runs->from[tensor] : -1;

    return from >= 0 && runs->by_runs[from];
}

void dcp_runs_note(struct dcp_runs *runs, size_t piece, uint64_t part, int rc)
{
    atomic_fetch_xor(&runs->parts[piece], part);
    if (rc)
        atomic_store(&runs->failed[piece], true);
}

/* In the order in which pack_wants told of them. */
static void pack_read(const struct dcp_runs *runs, struct dcp_buf *buf)
{
    for (size_t p = 0; p < runs->dst->n_pieces; p++) {
        int from;
        if (!counts(runs, p, &from) || !runs->by_runs[from])
            continue;
        dcp_wants_pack_read(runs->parts[p], !runs->failed[p], buf);
    }
}

int dcp_runs_prove(struct dcp_comm *comm, struct dcp_runs *runs, bool *out_again,
                   struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf said = { 0 };

    pack_read(runs, &said);
    return ask(comm, runs, &said, dcp_wants_prove, out_again, err);
}
