/* muon: a step of Muon on hidden matrices. What a matrix's momentum becomes when it is
 * made orthogonal takes all of it, so ranks put a matrix together, one of them makes it
 * orthogonal, and all get the result: as many matrices at a time as ranks share a copy of
 * the state, each rank's its own. Which rank it is does not show in the bits. */
#include "own.h"

#include "base/mem.h"
#include <math.h>

struct muon {
    struct shard *s;
    const struct optim_params *params;
    float *own, *room; /* this rank's matrix; what it takes, where also others' pass */
};

/* The largest first, so that ranks that work side by side have alike ones. */
void shard_muon_place(struct shard *s)
{
    for (int p = 0; p < s->n_params; p++) {
        int at = s->n_matrices;
        if (s->at[p].type != OPTIM_MUON)
            continue;
        for (; at > 0; at--) {
            int before = s->matrices[at - 1];
            if (s->params[before].n_elems >= s->params[p].n_elems)
                break;
            s->matrices[at] = before;
        }
        s->matrices[at] = p;
        s->n_matrices++;
    }
}

static int64_t most_elems(const struct shard *s)
{
    return s->n_matrices ? shard_padded(s->params[s->matrices[0]].n_elems) : 0;
}

int64_t shard_muon_room(const struct shard *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->n_matrices; i++) {
        const int64_t *shape = s->params[s->matrices[i]].shape;
        int64_t room = newton_schulz_room(shape[0], shape[1]);
        most = room > most ? room : most;
    }
    return most_elems(s) + most;
}

/* A pass over what this rank owns of a matrix; `whole` is all of it. */
struct pass {
    struct optim_params params;
    const struct shard_param *at;
    float *whole;
};

static float *part_of(const struct pass *pass, const struct shard_run *run)
{
    return pass->whole + pass->at->begin + run->own_at - pass->at->own_at;
}

/* The new momentum, and what is to be made orthogonal. */
static int run_momentum(struct shard *s, const struct shard_run *run, const void *with,
                        struct dcp_error *err)
{
    const struct pass *pass = with;
    struct optim_range range = shard_optim_range(s, run);
    (void)err;
    range.master = part_of(pass, run);
    range.weights = NULL;
    s->kernels.ops->optim(s->kernels.ctx, &pass->params, &range);
    return DCP_OK;
}

static int run_step(struct shard *s, const struct shard_run *run, const void *with,
                    struct dcp_error *err)
{
    const struct pass *pass = with;
    struct optim_range range = shard_optim_range(s, run);
    (void)err;
    range.state[0] = part_of(pass, run);
    s->kernels.ops->optim(s->kernels.ctx, &pass->params, &range);
    return DCP_OK;
}

static int in_windows(const struct muon *m, int param, enum optim_type type,
                      double stride, float *whole, shard_work *work,
                      struct dcp_error *err)
{
    struct pass pass = { *m->params, &m->s->at[param], whole };
    const struct shard_run run =
        shard_run_of(m->s, param, 0, pass.at->end - pass.at->begin);
    pass.params.type = type;
    pass.params.stride = stride;
    return shard_in_windows(m->s, &run, false, work, &pass, err);
}

/* What is to be made orthogonal, whole on every rank that has a part of it. */
static int put_together(const struct muon *m, int param, float *whole,
                        struct dcp_error *err)
{
    struct shard *s = m->s;
    DCP_TRY(in_windows(m, param, OPTIM_MUON, 0, whole, run_momentum, err));
    if (!shard_is_cut(s))
        return DCP_OK;
    for (int r = 0; r < s->inner->world_size; r++) {
        int64_t begin, end;
        shard_part(s, param, r, &begin, &end);
        s->counts[r] = end - begin;
    }
    return coll_all_gather(s->inner, whole + s->at[param].begin, s->counts, sizeof *whole,
                           whole, err);
}

static int give_to_all(const struct muon *m, int rank, int64_t n, float *whole,
                       struct dcp_error *err)
{
    struct shard *s = m->s;
    for (int r = 0; r < s->inner->world_size; r++)
        s->counts[r] = r == rank ? n : 0;
    return s->inner->world_size > 1
               ? coll_all_gather(s->inner, whole, s->counts, sizeof *whole, whole, err)
               : DCP_OK;
}

/* The rate by the shape, as torch's _adjust_lr. */
static double stride_of(const struct optim_params *params, const int64_t *shape)
{
    double rows = (double)shape[0], columns = (double)shape[1];
    double ratio = params->match_rms ? 0.2 * sqrt(fmax(rows, columns))
                                     : sqrt(fmax(1, rows / columns));
    return params->lr * ratio;
}

/* Matrices first .. first + n, one for each rank. */
static int step_of(const struct muon *m, int first, int n, struct dcp_error *err)
{
    struct shard *s = m->s;
    const int *matrices = s->matrices + first;
    int rank = s->inner->rank;
    for (int i = 0; i < n; i++)
        DCP_TRY(put_together(m, matrices[i], i == rank ? m->own : m->room, err));
    if (rank < n) {
        const int64_t *shape = s->params[matrices[rank]].shape;
        DCP_TRY(newton_schulz(&s->kernels, &m->params->newton_schulz, shape[0], shape[1],
                              m->own, m->room, err));
    }
    for (int i = 0; i < n; i++) {
        const struct model_param *param = &s->params[matrices[i]];
        float *whole = i == rank ? m->own : m->room;
        DCP_TRY(give_to_all(m, i, param->n_elems, whole, err));
        DCP_TRY(in_windows(m, matrices[i], OPTIM_ALONG,
                           stride_of(m->params, param->shape), whole, run_step, err));
    }
    return DCP_OK;
}

int shard_muon(struct shard *s, const struct optim_params *params, struct dcp_error *err)
{
    const struct muon m = { s, params, s->whole, s->whole + most_elems(s) };
    int ranks = s->inner->world_size, left = s->n_matrices;
    for (int first = 0; left > 0; first += ranks, left -= ranks)
        DCP_TRY(step_of(&m, first, left < ranks ? left : ranks, err));
    return DCP_OK;
}
