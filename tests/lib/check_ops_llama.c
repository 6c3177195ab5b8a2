/* cmocka wants these before it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "check_ops_own.h"

static void one_rms_norm(enum dcp_dtype dtype, int64_t rows, int64_t width)
{
    struct array x = array_normal(DCP_F32, rows * width, 3);
    struct array w = array_normal(dtype, width, 1);
    struct array dout = array_normal(DCP_F32, rows * width, 1);
    struct array out[2], rstd[2], dx[2], dw[2];
    dx[0] = array_normal(DCP_F32, rows * width, 1);
    dw[0] = array_normal(DCP_F32, width, 1);
    dx[1] = array_copy(&dx[0]), dw[1] = array_copy(&dw[0]);
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, rows * width);
        rstd[i] = array_poisoned(DCP_F32, rows);
        ops[i]->rms_norm(ctx[i], dtype, rows, width, 1e-5, x.f32, w.t, out[i].t,
                         rstd[i].f32);
        ops[i]->rms_norm_backward(ctx[i], dtype, rows, width, dout.f32, x.f32, w.t,
                                  rstd[i].f32, dx[i].f32, dw[i].f32);
    }
    double condition = norm_condition(rows, NULL, rstd[1].f32);
    assert_array("rms_norm", &out[0], &out[1], bound_of(dtype));
    assert_array("rstd", &rstd[0], &rstd[1], f32_bound);
    assert_array_sum("dx", &dx[0], &dx[1], f32_bound * condition, 2);
    assert_array_sum("dweight", &dw[0], &dw[1], f32_bound, 2);
    array_fini(&x), array_fini(&w), array_fini(&dout);
    for (int i = 0; i < 2; i++)
        array_fini(&out[i]), array_fini(&rstd[i]), array_fini(&dx[i]), array_fini(&dw[i]);
}

static void one_swiglu(enum dcp_dtype dtype, int64_t rows, int64_t width)
{
    struct array x = array_normal(DCP_F32, 2 * rows * width, 3);
    struct array dout = array_normal(DCP_F32, rows * width, 1);
    struct array out[2], dx[2];
    const struct ops *ops[] = { both.fast, both.oracle };
    void *ctx[] = { both.fast_ctx, both.oracle_ctx };
    for (int i = 0; i < 2; i++) {
        out[i] = array_poisoned(dtype, rows * width);
        dx[i] = array_poisoned(dtype, 2 * rows * width);
        ops[i]->swiglu(ctx[i], dtype, rows, width, x.f32, out[i].t);
        ops[i]->swiglu_backward(ctx[i], dtype, rows, width, x.f32, dout.f32, dx[i].t);
    }
    assert_array("swiglu", &out[0], &out[1], bound_of(dtype));
    assert_array("swiglu_backward", &dx[0], &dx[1], bound_of(dtype));
    array_fini(&x), array_fini(&dout);
    for (int i = 0; i < 2; i++)
        array_fini(&out[i]), array_fini(&dx[i]);
}

/* Of the keys in [rows,3,n_head,head_size]; and back again. */
static void one_rope(int64_t rows, int64_t seq_len, int64_t n_head, int64_t head_size,
                     int64_t begin)
{
    int64_t width = n_head * head_size;
    const struct ops_rope shape = { rows,      seq_len,   begin, n_head,
                                    head_size, 3 * width, 10000 };
    struct array before = array_normal(DCP_F32, rows * 3 * width, 1);
    struct array got = array_copy(&before), want = array_copy(&before);
    both.fast->rope(both.fast_ctx, &shape, false, got.f32 + width);
    both.oracle->rope(both.oracle_ctx, &shape, false, want.f32 + width);
    assert_array("rope", &got, &want, f32_bound);
    both.fast->rope(both.fast_ctx, &shape, true, got.f32 + width);
    assert_array("rope and back", &got, &before, f32_bound);
    array_fini(&before), array_fini(&got), array_fini(&want);
}

void check_ops_llama(void **state)
{
    (void)state;
    EACH_DTYPE(dtype)
    {
        one_rms_norm(dtype, 1, 3);
        one_rms_norm(dtype, 67, 129);
        one_rms_norm(dtype, 50, 768);
        one_swiglu(dtype, 1, 1);
        one_swiglu(dtype, 37, 171);
    }
    one_rope(1, 1, 1, 2, 0);
    one_rope(39, 13, 3, 10, 0);
    one_rope(6, 2, 2, 64, 100000);
}
