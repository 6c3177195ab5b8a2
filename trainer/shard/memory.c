/* memory: what a shard takes of it, and of files where state is offloaded. */
#include "own.h"

#include "base/mem.h"
#include "trainer/ops/ops.h"

/* What ranks give one another at once: little enough to be summed from the cache; more
 * where a message costs more than its bytes. */
#define LANDING ((size_t)4 << 20)
#define SCRATCH ((int64_t)1 << 20) /* elements of arrays that norms are taken of */
#define LANDING_BESIDE ((size_t)64 << 20)

static int alloc(struct shard *s, void **out, int64_t n, size_t size_bytes,
                 struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    size_t total;
    if (n < 0 || !dcp_mul_size((size_t)n, size_bytes, &total))
        total = SIZE_MAX;
    DCP_TRY(ops->alloc(s->kernels.ctx, total, "parts of the model state", out, err));
    s->allocated_bytes += total;
    ops->zero(s->kernels.ctx, *out, total);
    return DCP_OK;
}

/* Where an array lies, of a kind that may be offloaded. */
static int alloc_offload(struct shard *s, const struct shard_offload *offload,
                         struct swap *swap, void **out, int64_t n, size_t size_bytes,
                         struct dcp_error *err)
{
    size_t total;
    if (!offload->folder)
        return alloc(s, out, n, size_bytes, err);
    if (n < 0 || !dcp_mul_size((size_t)n, size_bytes, &total))
        total = SIZE_MAX / 2;
    s->swapped_bytes += total;
    /* A plan has no files. */
    return swap ? swap_alloc(swap, total, "parts of the model state", out, err) : DCP_OK;
}

static void free_array(struct shard *s, void *array)
{
    if (!swap_drop(s->optim_swap, array) && !swap_drop(s->weight_swap, array))
        s->kernels.ops->free(s->kernels.ctx, array);
}

static size_t largest_unit(const struct shard *s)
{
    int64_t room = 0;
    for (int u = 0; u < s->n_units; u++)
        room = shard_unit_room(s, u) > room ? shard_unit_room(s, u) : room;
    return (size_t)room;
}

/* As it travels. */
static size_t largest_travel(const struct shard *s,
                             struct shard_item (*item_of)(const struct shard *s,
                                                          int param))
{
    size_t most = 0;
    for (int u = 0; u < s->n_units; u++) {
        size_t now = shard_travel_bytes(s, u, item_of);
        most = now > most ? now : most;
    }
    return most;
}

static size_t gathered_bytes(const struct shard *s)
{
    if (!shard_gathers(s))
        return 0;
    return shard_quantizes_weights(s) ? largest_travel(s, shard_weight_item)
                                      : largest_unit(s) * shard_weight_bytes(s);
}

static size_t given_bytes(const struct shard *s)
{
    if (s->options.weights_only)
        return 0;
    if (shard_quantizes_grads(s))
        return largest_travel(s, shard_grad_item);
    return shard_sums_here(s) && shard_grad_bytes(s) == sizeof(float)
               ? 0
               : largest_unit(s) * shard_grad_bytes(s);
}

/* Of the largest unit: its gradients, or its weights. */
static size_t staging_bytes(const struct shard *s)
{
    size_t gathered = gathered_bytes(s), given = given_bytes(s);
    return given > gathered ? given : gathered;
}

static size_t landing_bytes(const struct shard *s)
{
    struct shard_item item = shard_grad_item(s, 0);
    size_t world_size = (size_t)s->inner->world_size, all = given_bytes(s) * world_size,
           room = s->options.reduce_bucket
                      ? shard_item_bytes(item, s->options.reduce_bucket)
                  : shard_overlaps(s) ? LANDING_BESIDE
                                      : LANDING,
           least = world_size * item.size_bytes;
    if (s->options.weights_only || shard_sums_here(s) || s->inner->world_size == 1)
        return 0;
    room = room > least ? room : least;
    return all < room ? all : room;
}

/* Of the gradients, while they are summed. */
static uint64_t grads_bytes(const struct shard *s)
{
    if (s->options.weights_only)
        return 0;
    return (uint64_t)s->n_grads * (s->keeps_sums ? sizeof(int64_t) : shard_grad_bytes(s));
}

static int alloc_gradients(struct shard *s, struct dcp_error *err)
{
    int64_t widest = 0;
    for (int p = 0; p < s->n_params; p++)
        if (s->params[p].n_elems > widest)
            widest = s->params[p].n_elems;
    DCP_TRY(alloc_offload(s, &s->options.offload_optimizer, s->optim_swap, &s->grads,
                          (int64_t)grads_bytes(s), 1, err));
    if (shard_rounds(s) && s->options.grad_bf16 && s->n_rounds > 1)
        DCP_TRY(alloc(s, (void **)&s->wide, widest, sizeof *s->wide, err));
    DCP_TRY(alloc(s, (void **)&s->peaks, s->n_params, sizeof *s->peaks, err));
    return alloc(s, (void **)&s->references, s->n_params, sizeof *s->references, err);
}

/* What a step needs, which depends on how many micro-batches it has. */
static int alloc_step(struct shard *s, struct dcp_error *err)
{
    uint64_t before = s->allocated_bytes, swapped = s->swapped_bytes;
    s->staging_bytes = staging_bytes(s);
    s->landing_bytes = landing_bytes(s);
    for (int i = 0; i < (shard_overlaps(s) ? 2 : 1); i++) {
        if (s->staging_bytes)
            DCP_TRY(alloc(s, (void **)&s->staging[i], (int64_t)s->staging_bytes, 1, err));
        if (s->landing_bytes)
            DCP_TRY(alloc(s, (void **)&s->landing[i], (int64_t)s->landing_bytes, 1, err));
    }
    if (!s->options.weights_only)
        DCP_TRY(alloc_gradients(s, err));
    s->step_bytes = s->allocated_bytes - before;
    s->step_swapped_bytes = s->swapped_bytes - swapped;
    return DCP_OK;
}

static void free_step(struct shard *s)
{
    void *const memory[] = { s->grads,      s->peaks,      s->references, s->wide,
                             s->staging[0], s->staging[1], s->landing[0], s->landing[1] };
    for (size_t i = 0; i < DCP_ARRAY_LEN(memory); i++)
        free_array(s, memory[i]);
    s->grads = NULL;
    s->peaks = s->references = s->wide = NULL;
    s->staging[0] = s->staging[1] = s->landing[0] = s->landing[1] = NULL;
    s->packed = s->turn = 0;
    s->allocated_bytes -= s->step_bytes;
    s->swapped_bytes -= s->step_swapped_bytes;
    s->step_bytes = s->step_swapped_bytes = 0;
}

int shard_set_micros(struct shard *s, int n_micros, struct dcp_error *err)
{
    if (n_micros == s->options.n_micros)
        return DCP_OK;
    free_step(s);
    s->options.n_micros = n_micros;
    shard_count_rounds(s);
    return alloc_step(s, err);
}

/* Of norms over whole parameters. */
static int alloc_norms(struct shard *s, struct dcp_error *err)
{
    struct shard_norms *norms = &s->norms;
    int64_t n = (int64_t)SHARD_N_NORMS * s->n_params;
    for (int p = 0; p < s->n_params; p++)
        if (s->params[p].n_elems > norms->n_scratch)
            norms->n_scratch = s->params[p].n_elems;
    if (norms->n_scratch > SCRATCH)
        norms->n_scratch = SCRATCH;
    for (int i = 0; i < SHARD_N_NORMS; i++)
        DCP_TRY(
            alloc(s, (void **)&norms->scratch[i], norms->n_scratch, sizeof(float), err));
    DCP_TRY(alloc(s, (void **)&norms->peaks, n, sizeof *norms->peaks, err));
    DCP_TRY(
        alloc(s, (void **)&norms->digits, n * NORM_DIGITS, sizeof *norms->digits, err));
    norms->host_peaks = dcp_mem_calloc((size_t)n, sizeof *norms->host_peaks);
    norms->norms = dcp_mem_calloc((size_t)n, sizeof *norms->norms);
    return norms->host_peaks && norms->norms
               ? DCP_OK
               : dcp_error_memory(err, "norms of parameters");
}

static int alloc_factors(struct shard *s, struct dcp_error *err)
{
    struct shard_factors *f = &s->factors;
    DCP_TRY(alloc(s, (void **)&f->sums, f->n, sizeof *f->sums, err));
    f->host_sums = dcp_mem_calloc((size_t)f->n + 1, sizeof *f->host_sums);
    f->host_vars = dcp_mem_calloc((size_t)f->n_vars + 1, sizeof *f->host_vars);
    f->means = dcp_mem_calloc((size_t)s->n_params, sizeof *f->means);
    return f->host_sums && f->host_vars && f->means
               ? DCP_OK
               : dcp_error_memory(err, "sums of rows and columns");
}

/* What steps of some optimizers take. */
static int alloc_rooms(struct shard *s, struct dcp_error *err)
{
    enum optim_type optimizer = s->options.optimizer;
    if (shard_muon_room(s))
        DCP_TRY(alloc(s, (void **)&s->whole, shard_muon_room(s), sizeof *s->whole, err));
    if (optimizer == OPTIM_LAMB || optimizer == OPTIM_ADAFACTOR)
        DCP_TRY(alloc_norms(s, err));
    return optimizer == OPTIM_ADAFACTOR ? alloc_factors(s, err) : DCP_OK;
}

int shard_allocate(struct shard *s, struct dcp_error *err)
{
    const struct shard_offload *optim = &s->options.offload_optimizer;
    DCP_TRY(alloc_offload(s, &s->options.offload_weights, s->weight_swap, &s->weights,
                          s->n_weights, shard_weight_bytes(s), err));
    if (s->near_at[s->n_units])
        DCP_TRY(alloc(s, (void **)&s->near_weights, s->near_at[s->n_units],
                      shard_weight_item(s, 0).size_bytes, err));
    DCP_TRY(alloc(s, (void **)&s->measure, 1, sizeof *s->measure, err));
    if (!s->options.weights_only) {
        if (shard_has_master(s))
            DCP_TRY(alloc_offload(s, optim, s->optim_swap, (void **)&s->master, s->n_own,
                                  sizeof(float), err));
        for (int i = 0; i < OPTIM_MAX_STATES && s->n_state[i]; i++)
            DCP_TRY(alloc_offload(s, optim, s->optim_swap, (void **)&s->state[i],
                                  s->n_state[i], sizeof(float), err));
        DCP_TRY(alloc_rooms(s, err));
    }
    return alloc_step(s, err);
}

void shard_release(struct shard *s)
{
    void *const memory[] = { s->weights,     s->near_weights,     s->master,
                             s->state[0],    s->state[1],         s->measure,
                             s->whole,       s->norms.scratch[0], s->norms.scratch[1],
                             s->norms.peaks, s->norms.digits,     s->factors.sums };
    for (size_t i = 0; i < DCP_ARRAY_LEN(memory); i++)
        free_array(s, memory[i]);
    free_step(s);
    free(s->norms.host_peaks);
    free(s->norms.norms);
    free(s->factors.host_sums);
    free(s->factors.host_vars);
    free(s->factors.means);
    swap_free(s->optim_swap);
    swap_free(s->weight_swap);
    shard_slots_fini(s, &s->gathered);
    shard_slots_fini(s, &s->unit_grads);
}

static int open_swap(const struct shard_offload *offload, size_t item_bytes,
                     struct swap **out, struct dcp_error *err)
{
    uint64_t most = (uint64_t)offload->window * item_bytes;
    if (!offload->folder)
        return DCP_OK;
    if (!dcp_mul_u64(most, (uint64_t)offload->buffers, &most))
        most = UINT64_MAX;
    return swap_new(offload->folder, most, out, err);
}

int shard_open_swaps(struct shard *s, struct dcp_error *err)
{
    DCP_TRY(open_swap(&s->options.offload_optimizer, sizeof(float), &s->optim_swap, err));
    return open_swap(&s->options.offload_weights, shard_weight_bytes(s), &s->weight_swap,
                     err);
}

static uint64_t slots_bytes(const struct shard_slots *slots)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < slots->n; i++)
        bytes += slots->items[i].size_bytes + slots->items[i].landing_bytes;
    return bytes;
}

static uint64_t buffers_of(const struct shard_offload *offload, int64_t n_elems,
                           size_t item_bytes)
{
    double elems = (double)offload->window * offload->buffers + (double)offload->kept;
    if (!offload->folder)
        return 0;
    return (uint64_t)(elems < (double)n_elems ? elems : (double)n_elems) * item_bytes;
}

/* Elements of the masters and of the optimizer's states. */
static int64_t n_optimizer(const struct shard *s)
{
    int64_t n = shard_has_master(s) ? s->n_own : 0;
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        n += s->n_state[i];
    return n;
}

/* Of what is in files: what may be in memory at once. */
static uint64_t buffer_bytes(const struct shard *s)
{
    return buffers_of(&s->options.offload_optimizer, n_optimizer(s), sizeof(float)) +
           buffers_of(&s->options.offload_weights, s->n_weights, shard_weight_bytes(s));
}

void shard_memory(const struct shard *s, struct shard_bytes *out_bytes)
{
    uint64_t optim = (uint64_t)n_optimizer(s) * sizeof(float);
    bool held = !s->options.offload_optimizer.folder;
    uint64_t near = (uint64_t)s->near_at[s->n_units] * shard_weight_item(s, 0).size_bytes,
             own = (uint64_t)s->n_weights * shard_weight_bytes(s);
    *out_bytes = (struct shard_bytes){
        .weights = near + (s->options.offload_weights.folder ? 0 : own),
        .gradients = held ? grads_bytes(s) : 0,
        .optimizer = held && !s->options.weights_only ? optim : 0,
        .transient = slots_bytes(&s->gathered) + slots_bytes(&s->unit_grads),
        .swapped = s->swapped_bytes,
        .buffers = buffer_bytes(s),
    };
    out_bytes->transient += s->allocated_bytes - out_bytes->weights -
                            out_bytes->gradients - out_bytes->optimizer;
    out_bytes->transient += out_bytes->buffers;
}
