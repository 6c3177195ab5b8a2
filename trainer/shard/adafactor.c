/* adafactor: a step of Adafactor as torch.optim.Adafactor makes it. The variance of an
 * element of a matrix is that of its row times that of its column: means over these,
 * which all ranks have. How long a step is depends on the sizes of the parameter and of
 * the direction. Sums are of integers (ops/factor.h, ops/norm.h), so that no cut shows.
 */
#include "own.h"

#include "base/mem.h"
#include "base/part.h"
#include "trainer/ops/optim_element.h"
#include <math.h>

static bool is_matrix(const struct shard *s, int param)
{
    return s->at[param].type == OPTIM_FACTORED;
}

void shard_adafactor_place(struct shard *s)
{
    for (int p = 0; p < s->n_params; p++) {
        int64_t n = s->params[p].shape[0] + s->params[p].shape[1];
        if (!is_matrix(s, p))
            continue;
        s->at[p].sums_at = s->factors.n;
        s->factors.n += n;
        s->factors.n_vars = n > s->factors.n_vars ? n : s->factors.n_vars;
    }
}

/* --- the variances of rows and columns --- */

static struct factor_units units_of(const struct shard *s, int param, float grad_scale)
{
    const int64_t *shape = s->params[param].shape;
    float peak = s->norms.host_peaks[param] * grad_scale;
    return factor_units(isfinite(peak) ? peak : 0,
                        shape[0] > shape[1] ? shape[0] : shape[1]);
}

/* The largest gradient of each matrix. */
static int find_peaks(struct shard *s, struct dcp_error *err)
{
    const struct kernels *k = &s->kernels;
    size_t n = (size_t)s->n_params;
    k->ops->zero(k->ctx, s->norms.peaks, n * sizeof *s->norms.peaks);
    for (int p = 0; p < s->n_params; p++)
        if (is_matrix(s, p) && shard_n_own(s, p)) {
            const struct shard_run run = shard_run_of(s, p, 0, shard_n_own(s, p));
            struct optim_range range = shard_optim_range(s, &run);
            k->ops->norm_peak(k->ctx, range.grad_dtype, range.n, range.grad,
                              &s->norms.peaks[p]);
            shard_leave(s, &run);
        }
    return shard_largest(s, shard_is_cut(s) ? s->inner : NULL, n, s->norms.peaks,
                         s->norms.host_peaks, err);
}

static void add_squares(struct shard *s, float grad_scale)
{
    const struct kernels *k = &s->kernels;
    struct factor_sum *sums = s->factors.sums;
    k->ops->zero(k->ctx, sums, (uint64_t)s->factors.n * sizeof *sums);
    for (int p = 0; p < s->n_params; p++) {
        if (!is_matrix(s, p) || !shard_n_own(s, p))
            continue;
        const int64_t *shape = s->params[p].shape;
        const struct factor_units units = units_of(s, p, grad_scale);
        const struct shard_run run = shard_run_of(s, p, 0, shard_n_own(s, p));
        struct optim_range range = shard_optim_range(s, &run);
        const struct ops_matrix_part part = { shape[1], s->at[p].begin, range.n };
        k->ops->factor_add(k->ctx, range.grad_dtype, &part, range.grad, grad_scale,
                           &units, sums + s->at[p].sums_at,
                           sums + s->at[p].sums_at + shape[0]);
        shard_leave(s, &run);
    }
}

/* Every rank gets the sums of all. */
static int share_sums(struct shard *s, struct dcp_error *err)
{
    const struct shard_factors *f = &s->factors;
    struct coll *coll = s->inner;
    int64_t *sums = (int64_t *)(void *)f->sums,
            n = f->n * (int64_t)(sizeof *f->sums / sizeof *sums);
    if (shard_is_cut(s)) {
        int64_t *own =
            sums + shard_cut_evenly(s, coll, n, dcp_part_ceil(n, coll->world_size));
        DCP_TRY(coll_reduce_scatter(coll, sums, s->counts, own, err));
        DCP_TRY(coll_all_gather(coll, own, s->counts, sizeof *sums, sums, err));
    }
    return s->kernels.ops->get(s->kernels.ctx, f->host_sums, f->sums,
                               (uint64_t)f->n * sizeof *f->sums, err);
}

/* Rows, or columns: means over n elements of squares join what is there. */
static void renew_vars(float *vars, const struct factor_sum *sums, int64_t n_vars,
                       int64_t n, struct factor_units units, float newest)
{
    for (int64_t i = 0; i < n_vars; i++) {
        float mean = (float)(factor_value(sums[i], units) / (double)n);
        vars[i] = optim_lerp(vars[i], mean, newest);
    }
}

/* On the host: there are few. */
static int renew_matrix(struct shard *s, int param, const struct optim_params *params,
                        struct dcp_error *err)
{
    const struct kernels *k = &s->kernels;
    const int64_t *shape = s->params[param].shape;
    const struct factor_sum *sums = s->factors.host_sums + s->at[param].sums_at;
    struct factor_units units = units_of(s, param, params->grad_scale);
    struct optim_factors factors = optim_factors(params);
    float *vars = s->factors.host_vars;
    double sum = 0;
    for (int i = 0; i < 2; i++, vars += shape[0], sums += shape[0]) {
        uint64_t size_bytes = (uint64_t)shape[i] * sizeof *vars;
        struct shard_range held;
        shard_state(s, i, param, &held);
        DCP_TRY(k->ops->get(k->ctx, vars, held.data, size_bytes, err));
        renew_vars(vars, sums, shape[i], shape[1 - i], units, factors.newest);
        DCP_TRY(k->ops->put(k->ctx, held.data, vars, size_bytes, err));
        for (int64_t r = 0; i == 0 && r < shape[0]; r++)
            sum += (double)vars[r];
    }
    s->factors.means[param] = fmaxf((float)(sum / (double)shape[0]), factors.eps);
    return DCP_OK;
}

static int renew_variances(struct shard *s, const struct optim_params *groups,
                           struct dcp_error *err)
{
    DCP_TRY(find_peaks(s, err));
    add_squares(s, groups[0].grad_scale);
    DCP_TRY(share_sums(s, err));
    for (int p = 0; p < s->n_params; p++) {
        struct optim_range range = shard_param_range(s, p, 0, shard_n_own(s, p));
        range.weights = NULL;
        if (is_matrix(s, p))
            DCP_TRY(renew_matrix(s, p, &groups[0], err));
        else if (range.n)
            s->kernels.ops->optim(s->kernels.ctx, &groups[0], &range);
    }
    return DCP_OK;
}

/* --- the step --- */

/* Of elements at .. at + n, in the second scratch. */
static void make_direction(struct shard *s, int param, int64_t at, int64_t n,
                           const struct optim_params *groups)
{
    const struct kernels *k = &s->kernels;
    struct optim_params params = groups[0];
    struct optim_range range = shard_param_range(s, param, at, n);
    const struct ops_matrix_part part = { s->params[param].shape[1],
                                          s->at[param].begin + at, n };
    struct shard_range rows, columns;
    params.type = OPTIM_ADAFACTOR_DIRECTION;
    range.master = s->norms.scratch[1];
    range.weights = NULL;
    if (is_matrix(s, param)) {
        shard_state(s, 0, param, &rows);
        shard_state(s, 1, param, &columns);
        range.state[0] = s->norms.scratch[0];
        k->ops->factored(k->ctx, &part, rows.data, columns.data, s->factors.means[param],
                         range.state[0]);
    }
    k->ops->optim(k->ctx, &params, &range);
}

/* Weights, and the direction that they go in. */
static void values(struct shard *s, int param, int64_t at, int64_t n, const void *groups,
                   const float *out[SHARD_N_NORMS])
{
    make_direction(s, param, at, n, groups);
    out[0] = shard_param_range(s, param, at, n).master;
    out[1] = s->norms.scratch[1];
}

/* How far a parameter goes. */
static double stride_of(const struct shard *s, int param, const struct optim_params *p)
{
    double root = sqrt((double)s->params[param].n_elems);
    double rate = p->relative_step ? fmin(p->lr, 1 / sqrt((double)p->step)) : p->lr;
    double size = shard_norm(s, param, 0) / root, step = shard_norm(s, param, 1) / root;
    if (p->scale_parameter)
        rate *= fmax(p->eps_scale, size);
    return rate / fmax(1, step / p->clip);
}

static void take_step(struct shard *s, int param, const struct optim_params *groups)
{
    int64_t all = shard_n_own(s, param), most = s->norms.n_scratch;
    struct optim_params params = groups[s->at[param].group];
    params.type = OPTIM_ALONG;
    params.stride = stride_of(s, param, &params);
    for (int64_t at = 0, n; at < all; at += n) {
        n = all - at < most ? all - at : most;
        struct shard_run run = shard_run_of(s, param, at, n);
        struct optim_range range = shard_optim_range(s, &run);
        make_direction(s, param, at, n, groups);
        range.state[0] = s->norms.scratch[1];
        s->kernels.ops->optim(s->kernels.ctx, &params, &range);
        shard_leave(s, &run);
    }
}

int shard_adafactor(struct shard *s, const struct optim_params *groups,
                    struct dcp_error *err)
{
    DCP_TRY(renew_variances(s, groups, err));
    DCP_TRY(shard_measure_norms(s, values, groups, err));
    for (int p = 0; p < s->n_params; p++)
        take_step(s, p, groups);
    return DCP_OK;
}
