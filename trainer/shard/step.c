/* step: its beginning and its end: gradients summed over ranks, and their norm. */
#include "apart.h"
#include "base/mem.h"

#include "trainer/ops/exact.h"
#include <math.h>
#include <string.h>

void shard_begin(struct shard *s)
{
    size_t size_bytes = (size_t)s->n_params * sizeof *s->peaks;
    s->micro = 0;
    s->references_given = s->again;
    s->again = false;
    s->last_ended = -1;
    for (int u = 0; u < s->n_units; u++)
        s->passages[u].ended = -1;
    s->kernels.ops->zero(s->kernels.ctx, s->peaks, size_bytes);
}

int shard_n_rounds(const struct shard *s)
{
    return s->n_rounds;
}

int shard_end_micro(struct shard *s, struct dcp_error *err)
{
    int rc = shard_settle_exchange(s, err);
    s->micro++;
    return rc;
}

/* Dealt out one by one, so that no rank has two more than another. */
int64_t shard_micro(const struct shard *s, int rank, int i)
{
    return (int64_t)i * s->all->world_size + rank;
}

int64_t shard_cut_evenly(struct shard *s, const struct coll *coll, int64_t n,
                         int64_t part)
{
    int64_t own = 0;
    for (int r = 0; r < coll->world_size; r++) {
        struct dcp_part mine = dcp_part_of(part, r, 0, n);
        s->counts[r] = mine.end - mine.begin;
        own += r < coll->rank ? s->counts[r] : 0;
    }
    return own;
}

/* --- what ranks have summed becomes one --- */

/* Stages 0 and 1: each rank gets its part of the sums of all. */
static int reduce_sums(struct shard *s, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int g = 0; !rc && g < SHARD_N_GROUPS; g++) {
        const struct shard_group *group = &s->groups[g];
        int64_t own = shard_cut_group(s, g);
        int64_t *sums = shard_sum_at(s, group->begin);
        if (group->n)
            rc = coll_reduce_scatter(s->all, sums, s->counts, sums + own, err);
    }
    return rc;
}

static int reduce_range(struct shard *s, int64_t *sums, int64_t n, struct dcp_error *err)
{
    struct coll *coll = &s->outer;
    int64_t own = shard_cut_evenly(s, coll, n, dcp_part_ceil(n, coll->world_size));
    int64_t *mine = sums + own;
    DCP_TRY(coll_reduce_scatter(coll, sums, s->counts, mine, err));
    return coll_all_gather(coll, mine, s->counts, sizeof *sums, sums, err);
}

/* Adds the sums that this rank holds to those of the other copies of the model, which are
 * at home in the same places. */
static int reduce_copies(struct shard *s, struct dcp_error *err)
{
    for (int h = 0; h < SHARD_N_HOMES; h++) {
        const struct shard_home *home = &s->homes[h];
        int64_t n = home->end - home->begin,
                most = home->apart ? (int64_t)(s->room_bytes / sizeof(int64_t)) : n;
        for (int64_t at = 0, size; at < n; at += size) {
            int64_t *sums = shard_sum_at(s, home->begin + at), *here = sums;
            size = n - at < most ? n - at : most;
            if (home->apart)
                DCP_TRY(shard_window_up(s, sums, size, &here, err));
            DCP_TRY(reduce_range(s, here, size, err));
            if (home->apart)
                DCP_TRY(shard_window_down(s, sums, size, err));
        }
    }
    return DCP_OK;
}

/* Stage 0: every rank gets the gradients of all. */
static int gather_gradients(struct shard *s, struct dcp_error *err)
{
    int rc = DCP_OK;
    for (int g = 0; !rc && g < SHARD_N_GROUPS; g++) {
        const struct shard_group *group = &s->groups[g];
        int64_t own = shard_cut_group(s, g);
        if (group->n)
            rc =
                coll_all_gather(s->all, shard_grad_at(s, group->begin + own), s->counts,
                                shard_grad_bytes(s), shard_grad_at(s, group->begin), err);
    }
    return rc;
}

static int complete_gradients(struct shard *s, struct dcp_error *err)
{
    bool several = s->all->world_size > 1;
    size_t n = (size_t)s->n_params;
    DCP_TRY(shard_rooms_settle(s, err));
    if (s->keeps_sums && s->homes[SHARD_AWAY].apart) /* where the host looks for them */
        DCP_TRY(s->kernels.ops->get(s->kernels.ctx, s->host_peaks + n, s->references,
                                    n * sizeof *s->references, err));
    if (s->outer.ops)
        DCP_TRY(reduce_copies(s, err));
    else if (several && shard_sums_here(s))
        DCP_TRY(reduce_sums(s, err));
    shard_settle_sums(s);
    return several && s->options.stage == 0 ? gather_gradients(s, err) : DCP_OK;
}

/* --- their size --- */

/* Passes over what this rank counts in the norm, at stage 0 an even share of all: finds
 * the peak, or adds to the digits. */
static void for_norm(struct shard *s, bool digits, float peak)
{
    enum dcp_dtype dtype = shard_grad_dtype(s);
    int64_t world_size = s->all->world_size, rank = s->all->rank;
    int64_t share = dcp_part_ceil(s->n_own, world_size);
    for (size_t i = 0; i < s->n_runs; i++) {
        const struct shard_run *run = &s->runs[i];
        struct dcp_part part = s->options.stage
                                   ? (struct dcp_part){ 0, run->n }
                                   : dcp_part_of(share, rank, run->own_at, run->n);
        const struct shard_home *home = shard_home_at(s, run->own_at);
        bool apart = home->apart && s->options.stage > 1;
        struct shard_measure *measure = apart ? &s->host_measure : s->measure;
        const struct kernels *kernels = apart ? &home->kernels : &s->kernels;
        int64_t most = shard_window(s, home), n;
        for (int64_t at = part.begin; at < part.end; at += n) {
            const void *grads = shard_grad_at(s, run->grad_at + at);
            n = part.end - at < most ? part.end - at : most;
            if (digits)
                kernels->ops->norm_add(kernels->ctx, dtype, n, grads, peak,
                                       measure->digits);
            else
                kernels->ops->norm_peak(kernels->ctx, dtype, n, grads, &measure->peak);
            swap_leave(s->optim_swap, grads, (uint64_t)n * shard_grad_bytes(s));
        }
    }
}

/* --- what ranks tell each other of their gradients --- */

enum verdict { FITS, TOO_LARGE, INFINITE, NOT_A_NUMBER };

/* Of this rank's micro-batches. */
static int judge(struct shard *s, enum verdict *out, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    size_t n = (size_t)s->n_params, size_bytes = n * sizeof *s->peaks;
    const float *peaks = s->host_peaks, *references = s->host_peaks + n;
    *out = FITS;
    DCP_TRY(ops->get(s->kernels.ctx, s->host_peaks, s->peaks, size_bytes, err));
    DCP_TRY(ops->get(s->kernels.ctx, s->host_peaks + n, s->references, size_bytes, err));
    for (size_t p = 0; p < n; p++) {
        enum verdict now = isnan(peaks[p])                            ? NOT_A_NUMBER
                           : isinf(peaks[p])                          ? INFINITE
                           : exact_overflows(references[p], peaks[p]) ? TOO_LARGE
                                                                      : FITS;
        *out = now > *out ? now : *out;
    }
    return DCP_OK;
}

/* The largest peak, and the worst verdict, of all ranks. */
static int share(struct shard *s, float *peak, enum verdict *verdict,
                 struct dcp_error *err)
{
    int n = s->all->world_size;
    memset(s->told, 0, 2 * (size_t)n * sizeof *s->told);
    s->told[s->all->rank] = (double)*peak;
    s->told[n + s->all->rank] = *verdict;
    DCP_TRY(coll_all_reduce(s->all, s->told, 2 * n, err));
    for (int r = 0; r < n; r++) {
        float theirs = (float)s->told[r];
        *peak = norm_peak(*peak, &theirs, 1);
        if (s->told[n + r] > (double)*verdict)
            *verdict = (enum verdict)(int)s->told[n + r];
    }
    return DCP_OK;
}

int shard_largest(struct shard *s, struct coll *coll, size_t n, const float *peaks,
                  float *out, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    if (!coll)
        return ops->get(s->kernels.ctx, out, peaks, n * sizeof *out, err);
    size_t world_size = (size_t)coll->world_size;
    size_t size_bytes = n * world_size * sizeof *out;
    DCP_CLEANUP_FREE float *host = dcp_mem_calloc(n * world_size, sizeof *host);
    void *all = NULL;
    int rc = host ? DCP_OK : dcp_error_memory(err, "the largest values of all ranks");
    if (!rc)
        rc = ops->alloc(s->kernels.ctx, size_bytes, "the largest values of all ranks",
                        &all, err);
    for (size_t r = 0; r < world_size; r++)
        s->counts[r] = (int64_t)n;
    if (!rc)
        rc = coll_all_gather(coll, peaks, s->counts, sizeof *host, all, err);
    if (!rc)
        rc = ops->get(s->kernels.ctx, host, all, size_bytes, err);
    for (size_t i = 0; !rc && i < n; i++) {
        out[i] = 0;
        for (size_t r = 0; r < world_size; r++)
            out[i] = norm_peak(out[i], &host[r * n + i], 1);
    }
    ops->free(s->kernels.ctx, all);
    return rc;
}

/* The step's references become the largest peaks of all ranks. */
static int share_peaks(struct shard *s, struct dcp_error *err)
{
    size_t n = (size_t)s->n_params;
    DCP_TRY(shard_largest(s, s->all, n, s->peaks, s->host_peaks, err));
    DCP_TRY(s->kernels.ops->put(s->kernels.ctx, s->references, s->host_peaks,
                                n * sizeof *s->host_peaks, err));
    s->again = true;
    return DCP_OK;
}

static void zero_measures(struct shard *s)
{
    s->kernels.ops->zero(s->kernels.ctx, s->measure, sizeof *s->measure);
    s->host_measure = (struct shard_measure){ .peak = 0 };
}

/* The norm of all gradients, none above peak, the same bits at every cut. Ranks of other
 * copies hold the same gradients, so they do not count. */
static int measure(struct shard *s, float peak, double *out_norm, struct dcp_error *err)
{
    struct norm norm, on_host;
    zero_measures(s);
    for_norm(s, true, peak);
    DCP_TRY(s->kernels.ops->get(s->kernels.ctx, norm.digits, s->measure->digits,
                                sizeof norm.digits, err));
    memcpy(on_host.digits, s->host_measure.digits, sizeof on_host.digits);
    norm_merge(&norm, &on_host);
    DCP_TRY(coll_all_reduce(s->inner, norm.digits, NORM_DIGITS, err));
    *out_norm = norm_value(&norm, peak);
    return DCP_OK;
}

int shard_reduce(struct shard *s, double *out_norm, bool *out_again,
                 struct dcp_error *err)
{
    enum verdict verdict;
    float peak;
    *out_again = false;
    DCP_TRY(complete_gradients(s, err));
    zero_measures(s);
    for_norm(s, false, 0);
    DCP_TRY(
        s->kernels.ops->get(s->kernels.ctx, &peak, &s->measure->peak, sizeof peak, err));
    peak = norm_peak(peak, &s->host_measure.peak, 1);
    DCP_TRY(judge(s, &verdict, err));
    DCP_TRY(share(s, &peak, &verdict, err));
    *out_norm = verdict == NOT_A_NUMBER ? (double)NAN : (double)INFINITY;
    if (verdict > TOO_LARGE)
        return DCP_OK;
    if (verdict == TOO_LARGE) {
        *out_again = true;
        return share_peaks(s, err);
    }
    *out_norm = (double)peak;
    return isfinite(peak) ? measure(s, peak, out_norm, err) : DCP_OK;
}
