/* plan: what a rank would hold, without holding it. A shard is made over kernels that
 * give no memory, and the model asks it for its units as in steps. */
#include "own.h"

#include "base/mem.h"

/* --- memory that is none --- */

static int alloc(void *ctx, uint64_t size_bytes, const char *what, void **out,
                 struct dcp_error *err)
{
    (void)size_bytes;
    (void)what;
    (void)err;
    *out = ctx; /* is there, and nobody looks into it */
    return DCP_OK;
}

static void forget(void *ctx, void *memory)
{
    (void)ctx;
    (void)memory;
}

static void zero(void *ctx, void *to, uint64_t size_bytes)
{
    (void)ctx;
    (void)to;
    (void)size_bytes;
}

static uint64_t carry(void *ctx, enum ops_way way, void *to, const void *from,
                      uint64_t size_bytes, uint64_t after)
{
    (void)ctx;
    (void)way;
    (void)to;
    (void)from;
    (void)size_bytes;
    (void)after;
    return 0;
}

static const struct ops nothing = { .alloc = alloc, .free = forget, .zero = zero },
                        on_gpu = { .alloc = alloc,
                                   .free = forget,
                                   .zero = zero,
                                   .pin = alloc,
                                   .unpin = forget,
                                   .carry = carry };

/* --- colls that move nothing --- */

static int wait_for_nothing(void *self, uint64_t call, struct dcp_error *err)
{
    (void)self;
    (void)call;
    (void)err;
    return DCP_OK;
}

static const struct coll_ops plain = { .wait = NULL },
                             beside = { .wait = wait_for_nothing };

/* --- a step's slots --- */

static int acquire(void *self, int unit, const void **out_weights, struct dcp_error *err)
{
    struct shard *s = self;
    (void)out_weights;
    if (!shard_gathers(s))
        return DCP_OK;
    struct shard_slot *slot = shard_slot_of(&s->gathered, unit);
    size_t size_bytes = (size_t)shard_unit_room(s, unit) * shard_weight_bytes(s);
    if (!slot)
        DCP_TRY(shard_slot_take(s, &s->gathered, unit, size_bytes,
                                shard_slots_wanted(s, unit), &slot, err));
    DCP_TRY(shard_slot_landing(s, slot, err));
    slot->users++;
    slot->used = ++s->gathered.calls;
    return DCP_OK;
}

static void release(void *self, int unit)
{
    struct shard_slot *slot = shard_slot_of(&((struct shard *)self)->gathered, unit);
    if (slot)
        slot->users--;
}

static int grad_begin(void *self, int unit, float **out_grads, struct dcp_error *err)
{
    struct shard *s = self;
    struct shard_slot *slot;
    (void)out_grads;
    DCP_TRY(shard_slot_take(s, &s->unit_grads, unit,
                            (size_t)shard_unit_room(s, unit) * sizeof(float), 1, &slot,
                            err));
    slot->users = 1;
    slot->used = ++s->unit_grads.calls;
    return DCP_OK;
}

static int grad_end(void *self, int unit, struct dcp_error *err)
{
    struct shard_slot *slot = shard_slot_of(&((struct shard *)self)->unit_grads, unit);
    (void)err;
    slot->users = 0;
    slot->unit = -1;
    return DCP_OK;
}

/* The second one finds the slots of the first. */
static int two_steps(struct shard *s, struct dcp_error *err)
{
    const struct model_hooks hooks = { s, acquire, release, grad_begin, grad_end };
    for (int i = 0; !s->options.weights_only && i < 2; i++) {
        DCP_TRY(model_idle(s->model, &hooks, err));
        shard_land(s);
    }
    return DCP_OK;
}

int shard_plan(const struct model *model, const struct shard_options *options,
               int world_size, bool gpu, bool overlaps, struct shard_bytes *out_bytes,
               struct dcp_error *err)
{
    const struct coll_ops *ops = overlaps ? &beside : &plain;
    struct coll all = { .ops = ops, .world_size = world_size },
                copy = { .ops = ops, .world_size = options->shard_size };
    int there;
    struct shard *s = dcp_mem_calloc(1, sizeof *s);
    if (!s)
        return dcp_error_memory(err, "a plan of the model state");
    s->options = *options;
    s->model = model;
    s->kernels = (struct kernels){ gpu ? &on_gpu : &nothing, &there };
    s->host = (struct kernels){ &nothing, &there };
    s->all = &all;
    s->inner = options->stage == 3 && options->shard_size ? &copy : &all;
    int rc = shard_check_groups(world_size, options->shard_size, err);
    if (!rc)
        rc = shard_place(s, err);
    if (!rc)
        rc = shard_allocate(s, err);
    if (!rc)
        rc = two_steps(s, err);
    if (!rc)
        shard_memory(s, out_bytes);
    shard_free(s);
    return rc;
}
