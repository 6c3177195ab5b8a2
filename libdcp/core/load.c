/* load: each rank gets the part of the step's catalog that it needs, and fills its own
 * pieces; then all agree. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/catalog/index.h"
#include "core/catalog/order.h"
#include "core/collective/await.h"
#include "core/parity/reconstruction.h"
#include "core/plan/local.h"
#include "core/read/fill.h"
#include "core/read/metadata.h"
#include "core/read/prove.h"
#include "core/read/runs.h"
#include "core/run/pin.h"
#include "core/run/steps.h"
#include <stdlib.h>
#include <string.h>

struct load {
    const struct dcp_context *ctx;
    struct dcp_catalog *src;
    const struct dcp_catalog *dst;
    int *from; /* the tensor of src behind each of dst; -1: none */
    struct dcp_plan *plan;
    struct dcp_runs *runs; /* tensors that are read without blocks; NULL: none */
    struct dcp_device host;
    struct dcp_fill *fill; /* of this rank's memory */
};

static void load_fini(struct load *load)
{
    dcp_fill_free(load->fill);
    dcp_runs_free(load->runs);
    dcp_plan_free(load->plan);
    free(load->from);
}

static int check_dtypes(const struct load *load, bool allow_cast, struct dcp_error *err)
{
    for (size_t t = 0; t < load->dst->n_tensors; t++) {
        const struct dcp_tensor *to = &load->dst->tensors[t];
        if (load->from[t] < 0)
            continue; /* the planner says so */
        const struct dcp_tensor *from = &load->src->tensors[load->from[t]];
        bool floats = dcp_dtype_is_float(from->dtype) && dcp_dtype_is_float(to->dtype);
        if (from->dtype == to->dtype || (allow_cast && floats))
            continue;
        return dcp_error_of_tensor(err, DCP_E_MISMATCH, to->name,
                                   "tensor '%s' is %s in the checkpoint and %s here",
                                   DCP_SHOWN(to->name), dcp_dtype_name(from->dtype),
                                   dcp_dtype_name(to->dtype));
    }
    return DCP_OK;
}

/* What each rank does for itself: nothing in here is collective. */
struct filling {
    struct load *load;
    const struct dcp_fill_setup *setup;
};

static int fill_here(void *arg, struct dcp_error *err)
{
    struct filling *filling = arg;
    struct load *load = filling->load;

    if (!load->fill)
        DCP_TRY(dcp_fill_new(filling->setup, &load->fill, err));
    return dcp_fill_run(load->fill, err);
}

/* Collective. Each rank plans its part and reads it. What a store reconstructs it reads
 * whole in any case. */
static int fill_all(struct load *load, struct dcp_comm *comm,
                    const struct dcp_source *source,
                    const struct dcp_load_options *options, struct dcp_error *err)
{
    struct dcp_fill_setup setup = {
        .source = source,
        .src = load->src,
        .dst = load->dst,
        .device = load->ctx->device ? load->ctx->device : &load->host,
        .threads = load->ctx->threads > 0 ? load->ctx->threads : 2,
        .verify = !options->no_verify,
    };
    struct filling filling = { load, &setup };
    bool again = false;
    int rc = DCP_OK;

    dcp_device_host(&load->host);
    load->from = dcp_catalog_same(load->src, load->dst);
    if (!load->from)
        rc = dcp_error_memory(err, "a load");
    if (!rc)
        rc = check_dtypes(load, options->allow_cast, err);
    if (!rc)
        rc = dcp_plan_new(load->src, load->dst, load->from, &load->plan, err);
    if (options->no_verify || source->store != load->ctx->store)
        rc = dcp_agree(comm, rc, err);
    else
        rc = dcp_runs_choose(comm, load->plan, load->src, load->dst, load->from, rc,
                             &load->runs, err);
    setup.from = load->from;
    setup.plan = load->plan;
    setup.runs = load->runs;
    if (!rc)
        rc = dcp_await(comm, fill_here, &filling, err);
    if (!rc && load->runs)
        rc = dcp_runs_prove(comm, load->runs, &again, err);
    if (!rc && again) {
        dcp_fill_again(load->fill);
        rc = dcp_await(comm, fill_here, &filling, err);
    }
    return rc;
}

/* Tensors that nothing but their place in the file vouches for. */
static size_t count_unproved(const struct load *load)
{
    const struct dcp_proof *proof = dcp_fill_proof(load->fill);
    size_t n = 0;

    for (size_t t = 0; proof && t < load->dst->n_tensors; t++) {
        int from = load->from[t];
        n += from >= 0 && !dcp_proof_covers(proof, &load->src->tensors[from]);
    }
    return n;
}

static int prove_records(const struct load *load, struct dcp_comm *comm,
                         struct dcp_error *err)
{
    int n;
    struct dcp_blocks *const *blocks = dcp_fill_blocks(load->fill, &n);

    return dcp_prove(comm, dcp_fill_proof(load->fill), load->src->n_records, blocks, n,
                     err);
}

static bool is_weight(const struct dcp_tensor *tensor)
{
    return tensor->role == DCP_ROLE_MODEL;
}

/* Whether it is asked for neither by this name nor, as a weight that is tied, by another
 * one. */
static bool is_left(const struct load *load, size_t s, const bool *taken)
{
    const struct dcp_tensor *left = &load->src->tensors[s];

    if (taken[s] || left->tied_to)
        return false;
    if (!is_weight(left) || !left->has_fingerprint)
        return true;
    for (size_t t = 0; t < load->src->n_tensors; t++) {
        const struct dcp_tensor *other = &load->src->tensors[t];
        if (taken[t] && is_weight(other) && other->has_fingerprint &&
            other->fingerprint == left->fingerprint && other->n_elems == left->n_elems)
            return false;
    }
    return true;
}

/* Those of dimension 0 are counts of updates, which settings may have instead. */
static bool is_of_optimizer(const struct dcp_tensor *tensor)
{
    return dcp_role_is_optim(tensor->role) && tensor->ndim > 0;
}

/* Warns of those of one kind that the step has and `owner` lacks. */
static void tell_left(const struct load *load, bool is_told(const struct dcp_tensor *),
                      const bool *taken, const char *what, const char *owner)
{
    size_t n_left = 0;
    const char *first = NULL;

    for (size_t s = 0; s < load->src->n_tensors; s++)
        if (is_told(&load->src->tensors[s]) && is_left(load, s, taken)) {
            first = first ? first : load->src->tensors[s].name;
            n_left++;
        }
    if (n_left)
        dcp_log_write(load->ctx->log, DCP_LOG_WARN,
                      "the step has %zu %s%s that the %s has not, '%s'%s", n_left, what,
                      n_left == 1 ? "" : "s", owner, DCP_SHOWN(first),
                      n_left == 1 ? "" : " the first of them");
}

/* A model may ask for masters as its weights: then it has these. */
static void take_weights_of_masters(const struct load *load, bool *taken)
{
    const struct dcp_catalog *src = load->src;
    struct dcp_identity *identity = NULL;

    if (dcp_identity_new(src, &identity, NULL))
        return;
    for (size_t t = 0; t < load->dst->n_tensors; t++) {
        const struct dcp_tensor *from =
            load->from[t] < 0 ? NULL : &src->tensors[load->from[t]];
        if (!from || !is_weight(&load->dst->tensors[t]) || from->role != DCP_ROLE_MASTER)
            continue;
        int weight = dcp_identity_find(identity, DCP_ROLE_MODEL, from->param);
        if (weight >= 0)
            taken[weight] = true;
    }
    dcp_identity_free(identity);
}

/* A model that lacks weights of the step may be another one, and so may an optimizer. */
static void tell_all_left(const struct load *load, bool with_optimizer)
{
    DCP_CLEANUP_FREE bool *taken = dcp_mem_calloc(load->src->n_tensors, sizeof *taken);
    size_t n_weights = 0;

    if (!taken)
        return;
    for (size_t t = 0; t < load->dst->n_tensors; t++) {
        n_weights += is_weight(&load->dst->tensors[t]);
        if (load->from[t] >= 0)
            taken[load->from[t]] = true;
    }
    take_weights_of_masters(load, taken);
    if (n_weights)
        tell_left(load, is_weight, taken, "weight", "model");
    if (with_optimizer)
        tell_left(load, is_of_optimizer, taken, "tensor", "optimizer");
}

/* What is asked for, by all ranks. */
struct request {
    const struct dcp_context *ctx;
    struct dcp_comm *comm;
    const struct dcp_load_options *options;
    const struct dcp_catalog *into; /* what this rank has, sorted */
};

/* One step, from the store as it is or through `store` that reconstructs it. *head: what
 * rank 0 read of it, which is taken. */
static int load_from(const struct request *request, const struct dcp_store *store,
                     const char *name, struct dcp_catalog **head,
                     struct dcp_load_result *out, struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    const struct dcp_load_options *options = request->options;
    struct dcp_comm *comm = request->comm;
    struct load load = { .ctx = ctx, .dst = request->into };
    struct dcp_source source = { store, name, true };
    bool is_dir;
    uint64_t size;

    if (name[0] && !store->ops->stat(store->self, name, &is_dir, &size, NULL))
        source.is_dir = is_dir;
    int rc =
        dcp_metadata_read(comm, &source, options->format, load.dst, head, &load.src, err);
    if (rc)
        return rc;
    rc = fill_all(&load, comm, &source, options, err);
    if (!rc && !options->no_verify && load.src->n_records)
        rc = prove_records(&load, comm, err);
    if (!rc && comm->rank == 0)
        tell_all_left(&load, options->with_optimizer);
    out->n_tensors = load.dst->n_tensors;
    out->n_unproved = rc ? 0 : count_unproved(&load);
    out->size_bytes = dcp_fill_bytes(load.fill);
    load_fini(&load);

    if (rc) {
        dcp_catalog_free(load.src);
        return rc;
    }
    out->step = load.src->step;
    out->world_size = load.src->world_size;
    out->catalog = load.src;
    return DCP_OK;
}

/* A corrupt step is read once more, slower, with what parity gives for what is not as it
 * was written. Every rank opens its own way to it. */
static int load_reconstructed(const struct request *request, const char *name,
                              struct dcp_load_result *out, const char *why,
                              struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    struct dcp_reconstruction *rebuilt = NULL;
    struct dcp_error failure = { 0 };
    int rc = dcp_reconstruction_open(ctx->store, name, &rebuilt, &failure);

    rc = dcp_agree(request->comm, rc, &failure);
    if (!rc)
        rc = load_from(request, dcp_reconstruction_store(rebuilt), name, NULL, out,
                       &failure);
    if (!rc && request->comm->rank == 0)
        dcp_log_write(ctx->log, DCP_LOG_WARN,
                      "%s is corrupt and was reconstructed from its parity while it was "
                      "read (%s); 'dcp-reshard repair %s/%s' repairs it",
                      name, why, ctx->store->root, name);
    dcp_reconstruction_free(rebuilt);
    if (rc && err)
        *err = failure;
    return rc;
}

/* Whether a step that could not be read went meanwhile; all ranks learn it. */
static bool is_gone(const struct request *request, const char *name)
{
    struct dcp_comm *comm = request->comm;
    bool gone = comm->rank == 0 && dcp_is_gone(request->ctx->store, name);

    return !dcp_comm_bcast(comm, &gone, sizeof gone, 0, NULL) && gone;
}

static int load_pinned(const struct request *request, const char *name,
                       struct dcp_catalog **head, struct dcp_load_result *out,
                       struct dcp_error *err)
{
    const char *format = request->options->format;
    struct dcp_error failure = { 0 };
    bool step = !format || !strcmp(format, "auto") ||
                dcp_format_find(format) == dcp_format_of_steps();
    int rc =
        load_from(request, request->ctx->store, name, step ? head : NULL, out, &failure);

    if (dcp_is_broken(rc) && step) {
        struct dcp_error why = { 0 };
        int reconstructed = load_reconstructed(request, name, out, failure.message, &why);
        if (reconstructed &&
            !dcp_is_broken(reconstructed)) /* it says nothing of the step */
            failure = why;
        rc = reconstructed && dcp_is_broken(reconstructed) ? rc : reconstructed;
    }
    if (rc && err)
        *err = failure;
    return rc;
}

/* A step that rank 0 has pinned for all. *out_gone: it was removed before or meanwhile.
 */
static int load_step(const struct request *request, const char *name,
                     struct dcp_reading *reading, struct dcp_load_result *out,
                     bool *out_gone, struct dcp_error *err)
{
    const struct dcp_store *store = request->ctx->store;
    struct dcp_error why = { 0 };
    int rc = load_pinned(request, name, &reading->head, out, &why);

    dcp_reading_end(store, reading);
    *out_gone = dcp_is_broken(rc) && is_gone(request, name);
    if (*out_gone) {
        why = (struct dcp_error){ 0 };
        rc = dcp_error_set(&why, DCP_E_NOT_FOUND, "'%s/%s' was removed while it was read",
                           store->root, name);
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* The step that the caller names. */
static int load_named(const struct request *request, struct dcp_load_result *out,
                      struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    const char *name = request->options->name;
    struct dcp_reading reading = { 0 };
    bool gone;

    if (request->comm->rank == 0)
        dcp_pin(ctx->store, name, &reading.pin, NULL);
    return load_step(request, name, &reading, out, &gone, err);
}

/* The newest one that can be read, or that of a number. */
static int load_newest(const struct request *request, struct dcp_load_result *out,
                       struct dcp_error *err)
{
    const struct dcp_context *ctx = request->ctx;
    int64_t below = INT64_MAX, wanted = request->options->step;
    struct dcp_reading reading = { 0 };
    struct dcp_error first = { 0 };
    int n_gone = 0, rc;

    for (;;) {
        struct dcp_error failure = { 0 };
        struct dcp_step step = { .step = -1 };
        bool gone = false;
        rc = dcp_find_to_read(ctx, wanted, below, &step, &reading, &failure);
        if (!rc)
            rc = load_step(request, step.name, &reading, out, &gone, &failure);
        if (rc && gone && wanted < 0 && n_gone++ < DCP_MOST_LOOKS)
            continue; /* there is a newer one now */
        if (rc && !first.code)
            first = failure;
        if (!dcp_is_broken(rc) || wanted >= 0 || step.step < 0)
            break;
        /* Corrupt, or it cannot be read: the one before it, and that is told. */
        dcp_log_write(ctx->log, DCP_LOG_WARN, "%s was skipped: %s", step.name,
                      failure.message);
        below = step.step;
    }
    if (rc && err)
        *err = first;
    return rc ? first.code : rc;
}

int dcp_load(const struct dcp_context *ctx, const struct dcp_load_options *options,
             const struct dcp_state *into, struct dcp_load_result *out_result,
             struct dcp_error *err)
{
    struct dcp_load_result result = { 0 };
    struct dcp_comm self, *comm = ctx->comm;
    struct dcp_catalog *mine = NULL;
    double started = dcp_clock_s();

    if (!comm) {
        dcp_comm_self(&self);
        comm = &self;
    }
    int rc = dcp_local_catalog(into, comm->rank, options->only_model, &mine, err);
    if (!rc)
        rc = dcp_catalog_sort(mine, err);
    rc = dcp_agree(comm, rc, err);
    const struct request request = { ctx, comm, options, mine };
    if (!rc)
        rc = options->name ? load_named(&request, &result, err)
                           : load_newest(&request, &result, err);
    dcp_catalog_free(mine);
    if (rc)
        return rc;
    result.read_s = dcp_clock_s() - started;
    if (out_result)
        *out_result = result;
    else
        dcp_catalog_free(result.catalog);
    return DCP_OK;
}
