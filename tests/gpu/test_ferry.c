/* Copies between the host and a GPU beside its kernels: what goes down after a kernel and
 * comes up before another is what was there, pinned or through buffers, whatever the
 * streams do. */
#include "lib/cuda.h"
#include "trainer/ops/cuda/cuda.h"
#include "trainer/shard/ferry.h"
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { MOST = 2 * FERRY_BUFFER + 4096 };

/* From one on they take more than a buffer. */
static const uint64_t sizes[] = { 0, 4, FERRY_BUFFER, FERRY_BUFFER + 4, MOST };
enum { N_SIZES = sizeof sizes / sizeof *sizes, N_SMALL = 2 };

struct place {
    struct kernels kernels;
    struct ferry *ferry;
    void *a, *b;       /* on the GPU */
    float *host, *out; /* what goes through, and what came */
    bool pinned;
};

static float value(uint64_t i, int turn)
{
    return (float)((i * 2654435761u + (uint64_t)turn * 97) % 65521);
}

static void *host_memory(struct place *p, bool pinned)
{
    void *memory = NULL;
    if (pinned)
        assert_int_equal(
            p->kernels.ops->pin(p->kernels.ctx, MOST, "a test", &memory, NULL), 0);
    else
        memory = malloc(MOST);
    assert_non_null(memory);
    return memory;
}

static void open_place(struct place *p, bool pinned)
{
    const struct ops *ops = ops_cuda();
    *p = (struct place){ .kernels = { .ops = ops }, .pinned = pinned };
    assert_int_equal(ops->open(&p->kernels.ctx, NULL), 0);
    assert_int_equal(ops->alloc(p->kernels.ctx, MOST, "a test", &p->a, NULL), 0);
    assert_int_equal(ops->alloc(p->kernels.ctx, MOST, "a test", &p->b, NULL), 0);
    assert_int_equal(ferry_new(&p->kernels, !pinned, &p->ferry, NULL), 0);
    assert_int_equal(ferry_bytes(p->ferry), pinned ? 0 : 4 * FERRY_BUFFER);
    p->host = host_memory(p, pinned);
    p->out = host_memory(p, false);
}

static void close_place(struct place *p)
{
    const struct ops *ops = p->kernels.ops;
    ferry_free(p->ferry);
    ops->free(p->kernels.ctx, p->a);
    ops->free(p->kernels.ctx, p->b);
    if (p->pinned)
        ops->unpin(p->kernels.ctx, p->host);
    else
        free(p->host);
    free(p->out);
    ops->close(p->kernels.ctx);
}

/* a goes to b by a kernel, down to the host, up again into a, and by a kernel to b. */
static void round_trip(struct place *p, uint64_t size_bytes, int turn)
{
    const struct ops *ops = p->kernels.ops;
    void *ctx = p->kernels.ctx;
    int64_t n = (int64_t)(size_bytes / sizeof(float));
    uint64_t down, up;
    for (int64_t i = 0; i < n; i++)
        p->out[i] = value((uint64_t)i, turn);
    assert_int_equal(ops->put(ctx, p->a, p->out, size_bytes, NULL), 0);
    ops->cast(ctx, DCP_F32, n, p->a, p->b);
    assert_int_equal(
        ferry_down(p->ferry, p->host, p->pinned, p->b, size_bytes, &down, NULL), 0);
    ops->carry_join(ctx, OPS_TO_HOST, down); /* b is written again */
    ops->zero(ctx, p->b, size_bytes);
    ops->zero(ctx, p->a, size_bytes);
    assert_int_equal(
        ferry_up(p->ferry, p->a, p->host, p->pinned, size_bytes, down, &up, NULL), 0);
    ops->carry_join(ctx, OPS_FROM_HOST, up);
    ops->cast(ctx, DCP_F32, n, p->a, p->b);
    assert_int_equal(ops->carry_wait(ctx, OPS_TO_HOST, down, NULL), 0);
    for (int64_t i = 0; i < n; i++)
        if (p->host[i] != value((uint64_t)i, turn))
            fail_msg("item %lld of %lld on the host", (long long)i, (long long)n);
    assert_int_equal(ops->get(ctx, p->out, p->b, size_bytes, NULL), 0);
    for (int64_t i = 0; i < n; i++)
        if (p->out[i] != value((uint64_t)i, turn))
            fail_msg("item %lld of %lld on the GPU", (long long)i, (long long)n);
}

static void sizes_come_and_go(const char *order, bool pinned, size_t n_sizes)
{
    struct place p;
    setenv("CUDA_FAKE", order, 1);
    open_place(&p, pinned);
    for (size_t i = 0; i < n_sizes; i++)
        round_trip(&p, sizes[i], (int)i);
    for (int turn = 0; turn < 80; turn++) /* more than are told apart */
        round_trip(&p, 400, turn);
    close_place(&p);
}

static void pinned(void **state)
{
    (void)state;
    sizes_come_and_go("late", true, N_SMALL);
    sizes_come_and_go("others", true, N_SMALL);
    sizes_come_and_go("eager", true, N_SMALL);
}

static void through_buffers(void **state)
{
    (void)state;
    sizes_come_and_go("late", false, N_SIZES);
    sizes_come_and_go("others", false, N_SMALL);
}

static void too_much(void **state)
{
    struct place p;
    struct dcp_error err = { 0 };
    void *memory;
    (void)state;
    open_place(&p, true);
    assert_int_equal(
        p.kernels.ops->pin(p.kernels.ctx, UINT64_MAX - 1, "a test", &memory, &err),
        DCP_E_MEMORY);
    assert_non_null(strstr(err.message, "can be pinned: a test need"));
    assert_null(memory);
    close_place(&p);
}

/* Who waits and does not want to know why takes nothing from who does. */
static void a_failure_is_kept_until_it_is_told(void **state)
{
    struct place p;
    struct dcp_error err = { 0 };
    (void)state;
    open_place(&p, true);
    const struct ops *ops = p.kernels.ops;
    void *ctx = p.kernels.ctx;
    ops_cuda_failed(ctx, cudaErrorInvalidValue, "be tested", __FILE__, __LINE__);
    assert_int_not_equal(ops->carry_wait(ctx, OPS_FROM_HOST, 0, NULL), 0);
    assert_int_not_equal(ops->sync(ctx, &err), 0);
    assert_non_null(strstr(err.message, "be tested"));
    assert_int_equal(ops->sync(ctx, &err), 0);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pinned),
        cmocka_unit_test(through_buffers),
        cmocka_unit_test(too_much),
        cmocka_unit_test(a_failure_is_kept_until_it_is_told),
    };
    cuda_need();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
