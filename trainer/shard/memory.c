/* memory: what a shard takes of it, and of files where state is offloaded. */
#include "apart.h"

#include "base/mem.h"
#include "trainer/ops/ops.h"

/* What ranks give one another at once: little enough to be summed from the cache; more
 * where a message costs more than its bytes. */
#define LANDING ((size_t)4 << 20)
#define SCRATCH ((int64_t)1 << 20) /* elements of arrays that norms are taken of */
#define LANDING_BESIDE ((size_t)64 << 20)
/* Elements that the optimizer works on at a time where weights are elsewhere: enough for
 * PCIe, and for all threads. */
#define WINDOW ((int64_t)4 << 20)

static const char what[] = "parts of the model state";

static size_t total_of(int64_t n, size_t size_bytes)
{
    size_t total;
    return n >= 0 && dcp_mul_size((size_t)n, size_bytes, &total) ? total : SIZE_MAX / 2;
}

static int alloc(struct shard *s, void **out, int64_t n, size_t size_bytes,
                 struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops;
    size_t total = total_of(n, size_bytes);
    DCP_TRY(ops->alloc(s->kernels.ctx, total, what, out, err));
    s->taken.here += total;
    ops->zero(s->kernels.ctx, *out, total);
    return DCP_OK;
}

/* On the host, where that is not the kernels' memory. */
static int alloc_host(struct shard *s, bool pinned, void **out, int64_t n,
                      size_t size_bytes, struct dcp_error *err)
{
    const struct ops *ops = s->kernels.ops, *host = s->host.ops;
    size_t total = total_of(n, size_bytes);
    DCP_TRY(pinned ? ops->pin(s->kernels.ctx, total, what, out, err)
                   : host->alloc(s->host.ctx, total, what, out, err));
    s->taken.host += total;
    host->zero(s->host.ctx, *out, total);
    return DCP_OK;
}

/* In a file; a plan has none. */
static int alloc_swap(struct shard *s, struct swap *swap, void **out, int64_t n,
                      size_t size_bytes, struct dcp_error *err)
{
    size_t total = total_of(n, size_bytes);
    s->taken.swapped += total;
    return swap ? swap_alloc(swap, total, what, out, err) : DCP_OK;
}

/* An array of the optimizer's, where a home is. */
static int alloc_home(struct shard *s, struct shard_home *home, bool copied, void **out,
                      int64_t n, size_t size_bytes, struct dcp_error *err)
{
    const struct shard_offload *away = &s->options.offload_optimizer;
    if (!n)
        return DCP_OK;
    if (home == &s->homes[SHARD_HERE])
        return alloc(s, out, n, size_bytes, err);
    if (away->folder)
        return alloc_swap(s, s->optim_swap, out, n, size_bytes, err);
    return alloc_host(s, copied && !away->pageable, out, n, size_bytes, err);
}

enum whose { OF_KERNELS, PINNED, OF_HOST };

static void give_back(struct shard *s, void *array, enum whose whose)
{
    if (!array || swap_drop(s->optim_swap, array) || swap_drop(s->weight_swap, array))
        return;
    if (whose == OF_KERNELS)
        s->kernels.ops->free(s->kernels.ctx, array);
    else if (whose == PINNED)
        s->kernels.ops->unpin(s->kernels.ctx, array);
    else
        s->host.ops->free(s->host.ctx, array);
}

/* Whose memory an array is that is copied. */
static enum whose whose_of(bool apart, const struct shard_offload *away)
{
    return !apart ? OF_KERNELS : away->pageable ? OF_HOST : PINNED;
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
    if (!shard_gathers(s) || shard_from_host(s))
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

/* Of what this rank owns of one. */
static int64_t largest_own(const struct shard *s)
{
    int64_t most = 0;
    for (int u = 0; u < s->n_units; u++)
        most = shard_unit_own(s, u) > most ? shard_unit_own(s, u) : most;
    return most;
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

static int alloc_pair(struct shard *s, struct shard_room *rooms, size_t size_bytes,
                      struct dcp_error *err)
{
    for (int i = 0; i < 2; i++) {
        rooms[i] = (struct shard_room){ .unit = -1 };
        DCP_TRY(alloc(s, &rooms[i].data, (int64_t)size_bytes, 1, err));
    }
    return DCP_OK;
}

/* Below stage 2 they are here, for what ranks do together, and the optimizer has its part
 * of them. */
static int alloc_gradients(struct shard *s, struct dcp_error *err)
{
    struct shard_home *away = &s->homes[SHARD_AWAY];
    bool all = s->options.stage <= 1, in_file = s->optim_swapped && !away->apart;
    if (all && in_file)
        DCP_TRY(alloc_swap(s, s->optim_swap, &s->grads, s->n_grads, shard_kept_bytes(s),
                           err));
    else if (all)
        DCP_TRY(alloc(s, &s->grads, s->n_grads, shard_kept_bytes(s), err));
    if (all && away->apart)
        return alloc_home(s, away, true, &away->grads, s->n_own, shard_grad_bytes(s),
                          err);
    for (int h = 0; !all && h < SHARD_N_HOMES; h++)
        DCP_TRY(alloc_home(s, &s->homes[h], true, &s->homes[h].grads,
                           s->homes[h].end - s->homes[h].begin, shard_kept_bytes(s),
                           err));
    if (all || !away->apart || away->begin == away->end)
        return DCP_OK;
    s->room_bytes = (size_t)largest_own(s) * shard_kept_bytes(s);
    return alloc_pair(s, s->rooms, s->room_bytes, err);
}

static int alloc_sums(struct shard *s, struct dcp_error *err)
{
    int64_t widest = 0;
    for (int p = 0; p < s->n_params; p++)
        if (s->params[p].n_elems > widest)
            widest = s->params[p].n_elems;
    DCP_TRY(alloc_gradients(s, err));
    if (shard_rounds(s) && s->options.grad_bf16 && s->n_rounds > 1)
        DCP_TRY(alloc(s, (void **)&s->wide, widest, sizeof *s->wide, err));
    DCP_TRY(alloc(s, (void **)&s->peaks, s->n_params, sizeof *s->peaks, err));
    return alloc(s, (void **)&s->references, s->n_params, sizeof *s->references, err);
}

/* What a step needs, which depends on how many micro-batches it has. */
static int alloc_step(struct shard *s, struct dcp_error *err)
{
    struct shard_tally before = s->taken;
    s->staging_bytes = staging_bytes(s);
    s->landing_bytes = landing_bytes(s);
    for (int i = 0; i < (shard_overlaps(s) ? 2 : 1); i++) {
        if (s->staging_bytes)
            DCP_TRY(alloc(s, (void **)&s->staging[i], (int64_t)s->staging_bytes, 1, err));
        if (s->landing_bytes)
            DCP_TRY(alloc(s, (void **)&s->landing[i], (int64_t)s->landing_bytes, 1, err));
    }
    if (!s->options.weights_only)
        DCP_TRY(alloc_sums(s, err));
    s->step = (struct shard_tally){ .here = s->taken.here - before.here,
                                    .host = s->taken.host - before.host,
                                    .swapped = s->taken.swapped - before.swapped };
    return DCP_OK;
}

static void free_step(struct shard *s)
{
    struct shard_home *away = &s->homes[SHARD_AWAY];
    void *const memory[] = { s->grads,
                             s->peaks,
                             s->references,
                             s->wide,
                             s->staging[0],
                             s->staging[1],
                             s->landing[0],
                             s->landing[1],
                             s->rooms[0].data,
                             s->rooms[1].data,
                             s->homes[SHARD_HERE].grads };
    if (s->ferry) /* what still comes to them */
        shard_rooms_settle(s, NULL);
    for (size_t i = 0; i < DCP_ARRAY_LEN(memory); i++)
        give_back(s, memory[i], OF_KERNELS);
    give_back(s, away->grads, whose_of(away->apart, &s->options.offload_optimizer));
    s->grads = s->homes[SHARD_HERE].grads = away->grads = NULL;
    s->peaks = s->references = s->wide = NULL;
    s->staging[0] = s->staging[1] = s->landing[0] = s->landing[1] = NULL;
    s->rooms[0].data = s->rooms[1].data = NULL;
    s->packed = s->turn = 0;
    s->taken.here -= s->step.here;
    s->taken.host -= s->step.host;
    s->taken.swapped -= s->step.swapped;
    s->step = (struct shard_tally){ 0 };
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

static int alloc_weights(struct shard *s, struct dcp_error *err)
{
    const struct shard_offload *away = &s->options.offload_weights;
    size_t size_bytes = shard_weight_bytes(s);
    if (away->folder)
        return alloc_swap(s, s->weight_swap, &s->weights, s->n_weights, size_bytes, err);
    if (s->weights_apart)
        return alloc_host(s, !away->pageable, &s->weights, s->n_weights, size_bytes, err);
    return alloc(s, &s->weights, s->n_weights, size_bytes, err);
}

/* Masters also in fp32, where weights are elsewhere. */
static int alloc_optimizer(struct shard *s, struct dcp_error *err)
{
    for (int h = 0; h < SHARD_N_HOMES; h++) {
        struct shard_home *home = &s->homes[h];
        if (s->options.dtype != DCP_F32 || home->apart != s->weights_apart)
            DCP_TRY(alloc_home(s, home, false, (void **)&home->master,
                               home->end - home->begin, sizeof(float), err));
        for (int i = 0; i < OPTIM_MAX_STATES; i++)
            DCP_TRY(alloc_home(s, home, false, (void **)&home->state[i], home->n_state[i],
                               sizeof(float), err));
    }
    s->masters_stale = s->options.dtype == DCP_F32;
    return alloc_rooms(s, err);
}

int64_t shard_window(const struct shard *s, const struct shard_home *home)
{
    int64_t n = home->end - home->begin, most = n > 0 ? n : 1;
    bool away = home == &s->homes[SHARD_AWAY],
         elsewhere = home->apart != s->weights_apart;
    int64_t wanted = away && s->optim_swapped ? s->options.offload_optimizer.window
                     : s->options.offload_weights.folder
                         ? s->options.offload_weights.window
                         : most;
    if ((elsewhere || home->apart) && wanted > WINDOW)
        wanted = WINDOW;
    return wanted > 0 && wanted < most ? wanted : most;
}

/* Where new weights wait to go to where weights are. */
static int alloc_out(struct shard *s, struct dcp_error *err)
{
    for (int h = 0; h < SHARD_N_HOMES; h++) {
        const struct shard_home *home = &s->homes[h];
        if (home->begin == home->end || home->apart == s->weights_apart)
            continue;
        for (int i = 0; i < 2; i++)
            DCP_TRY(home->apart
                        ? alloc_host(s, true, &s->out[i].data, shard_window(s, home),
                                     shard_weight_bytes(s), err)
                        : alloc(s, &s->out[i].data, shard_window(s, home),
                                shard_weight_bytes(s), err));
    }
    return DCP_OK;
}

/* Whether something is copied that is not pinned. */
static bool needs_buffers(const struct shard *s)
{
    const struct shard_offload *optim = &s->options.offload_optimizer,
                               *weights = &s->options.offload_weights;
    return (s->homes[SHARD_AWAY].apart && (optim->folder || optim->pageable)) ||
           (s->weights_apart && (weights->folder || weights->pageable));
}

static int alloc_apart(struct shard *s, struct dcp_error *err)
{
    if (!s->homes[SHARD_AWAY].apart && !s->weights_apart)
        return DCP_OK;
    DCP_TRY(ferry_new(&s->kernels, needs_buffers(s), &s->ferry, err));
    s->taken.host += ferry_bytes(s->ferry);
    if (s->weights_apart && !shard_from_host(s))
        DCP_TRY(alloc_pair(s, s->fetched, (size_t)largest_own(s) * shard_weight_bytes(s),
                           err));
    return s->options.weights_only ? DCP_OK : alloc_out(s, err);
}

int shard_allocate(struct shard *s, struct dcp_error *err)
{
    DCP_TRY(alloc_weights(s, err));
    if (s->near_at[s->n_units])
        DCP_TRY(alloc(s, (void **)&s->near_weights, s->near_at[s->n_units],
                      shard_weight_item(s, 0).size_bytes, err));
    DCP_TRY(alloc(s, (void **)&s->measure, 1, sizeof *s->measure, err));
    if (!s->options.weights_only)
        DCP_TRY(alloc_optimizer(s, err));
    DCP_TRY(alloc_apart(s, err));
    return alloc_step(s, err);
}

void shard_release(struct shard *s)
{
    const struct shard_offload *weights = &s->options.offload_weights;
    void *const memory[] = { s->near_weights,     s->measure,     s->fetched[0].data,
                             s->fetched[1].data,  s->whole,       s->norms.scratch[0],
                             s->norms.scratch[1], s->norms.peaks, s->norms.digits,
                             s->factors.sums };
    free_step(s);
    if (s->ferry) /* what still comes to the host */
        shard_out_settle(s, NULL);
    for (size_t i = 0; i < DCP_ARRAY_LEN(memory); i++)
        give_back(s, memory[i], OF_KERNELS);
    give_back(s, s->weights, whose_of(s->weights_apart, weights));
    for (int i = 0; i < 2; i++)
        give_back(s, s->out[i].data, s->weights_apart ? OF_KERNELS : PINNED);
    for (int h = 0; h < SHARD_N_HOMES; h++) {
        const struct shard_home *home = &s->homes[h];
        void *const arrays[] = { home->master, home->state[0], home->state[1] };
        for (size_t i = 0; i < DCP_ARRAY_LEN(arrays); i++)
            give_back(s, arrays[i], home->apart ? OF_HOST : OF_KERNELS);
    }
    ferry_free(s->ferry);
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

/* `beside` what is done with. */
static uint64_t buffers_of(const struct shard_offload *offload, int64_t beside,
                           int64_t n_elems, size_t item_bytes)
{
    double elems = (double)offload->window * offload->buffers + (double)beside;
    if (!offload->folder)
        return 0;
    return (uint64_t)(elems < (double)n_elems ? elems : (double)n_elems) * item_bytes;
}

/* Elements of the masters and of the optimizer's states. */
static int64_t n_optimizer(const struct shard *s, const struct shard_home *home,
                           bool has_master)
{
    int64_t n = has_master ? home->end - home->begin : 0;
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        n += home->n_state[i];
    return s->options.weights_only ? 0 : n;
}

/* Elements of fp32: a unit's gradients, or the window that the optimizer works on and the
 * next one, of masters, states and gradients. It passes through all, or through
 * parameters. */
static int64_t at_work(const struct shard *s)
{
    int64_t unit = largest_own(s) * (int64_t)(shard_kept_bytes(s) / 2) / 2;
    const struct shard_home *away = &s->homes[SHARD_AWAY];
    int64_t most = shard_window(s, away), widest = 0, n_arrays = 1 + shard_has_master(s);
    for (int p = 0; p < s->n_params; p++) {
        int64_t n = shard_n_own(s, p);
        widest = n > widest ? n : widest;
    }
    for (int i = 0; i < OPTIM_MAX_STATES; i++)
        n_arrays += away->n_state[i] > 0;
    if (!shard_is_one_pass(s->options.optimizer) && most > widest)
        most = widest;
    return 2 * n_arrays * most > unit ? 2 * n_arrays * most : unit;
}

/* Of what is in files: what may be in memory at once. */
static uint64_t buffer_bytes(const struct shard *s)
{
    const struct shard_home *away = &s->homes[SHARD_AWAY];
    const struct shard_offload *weights = &s->options.offload_weights;
    int64_t n = n_optimizer(s, away, shard_has_master(s)) + away->end - away->begin;
    return buffers_of(&s->options.offload_optimizer, at_work(s), n, sizeof(float)) +
           buffers_of(weights, weights->kept, s->n_weights, shard_weight_bytes(s));
}

void shard_memory(const struct shard *s, struct shard_bytes *out_bytes)
{
    const struct shard_home *here = &s->homes[SHARD_HERE];
    uint64_t n_here = (uint64_t)(here->end - here->begin), buffers = buffer_bytes(s);
    bool offloaded = s->weights_apart || s->options.offload_weights.folder,
         in_file = s->optim_swapped && !s->homes[SHARD_AWAY].apart,
         apart = s->weights_apart || s->homes[SHARD_AWAY].apart;
    uint64_t n_grads = s->options.weights_only ? 0
                       : s->options.stage > 1  ? n_here
                       : in_file               ? 0
                                               : (uint64_t)s->n_grads;
    uint64_t near = (uint64_t)s->near_at[s->n_units] * shard_weight_item(s, 0).size_bytes,
             own = (uint64_t)s->n_weights * shard_weight_bytes(s);
    *out_bytes = (struct shard_bytes){
        .weights = near + (offloaded ? 0 : own),
        .gradients = n_grads * shard_kept_bytes(s),
        .optimizer = (uint64_t)n_optimizer(s, here, here->master) * sizeof(float),
        .transient = slots_bytes(&s->gathered) + slots_bytes(&s->unit_grads),
        .host = s->taken.host + (apart ? buffers : 0),
        .swapped = s->taken.swapped,
        .buffers = buffers,
    };
    out_bytes->transient +=
        s->taken.here - out_bytes->weights - out_bytes->gradients - out_bytes->optimizer;
    out_bytes->transient += apart ? 0 : buffers;
}
