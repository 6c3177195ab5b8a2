/* Which numbers are finite, in every dtype; and that steps of a run that diverged do not
 * push out the last one that did not. */
#include "core/integrity/finite.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* Every pattern of bits of 8 and 16 wide types, judged by what a cast makes of it. */
static void small_types(void **state)
{
    (void)state;
    for (int d = 0; d < DCP_N_DTYPES; d++) {
        enum dcp_dtype dtype = (enum dcp_dtype)d;
        size_t width = dcp_dtype_size(dtype);
        if (!dcp_dtype_is_float(dtype) || width > 2)
            continue;
        for (unsigned bits = 0; bits < 1u << 8 * width; bits++) {
            unsigned char one[2] = { (unsigned char)bits, (unsigned char)(bits >> 8) };
            float value;
            assert_int_equal(dcp_cast(dtype, DCP_F32, one, &value, 1, NULL), 0);
            if (dcp_finite_all(dtype, one, width) != (isfinite(value) != 0))
                fail_msg("%s %x", dcp_dtype_name(dtype), bits);
        }
    }
}

static void large_types(void **state)
{
    (void)state;
    const float odd[] = { INFINITY, -INFINITY, NAN, -NAN };
    float f[1000];
    double g[1000];

    for (int i = 0; i < 1000; i++)
        g[i] = f[i] = (float)(i - 500) * 3e35f;
    assert_true(dcp_finite_all(DCP_F32, f, sizeof f));
    assert_true(dcp_finite_all(DCP_F64, g, sizeof g));
    assert_true(dcp_finite_all(DCP_F32, f, 0));
    for (int at = 0; at < 1000; at += 37)
        for (int k = 0; k < 4; k++) {
            float was = f[at];
            g[at] = f[at] = odd[k];
            assert_false(dcp_finite_all(DCP_F32, f, sizeof f));
            assert_false(dcp_finite_all(DCP_C64, f, sizeof f));
            assert_false(dcp_finite_all(DCP_F64, g, sizeof g));
            g[at] = f[at] = was;
        }
    memset(f, 0xff, sizeof f);
    assert_true(dcp_finite_all(DCP_I32, f, sizeof f));
}

struct save {
    int64_t step;
    float value;
    enum dcp_role role;
    bool diverged;
};

static bool save(const struct dcp_store *store, const struct save *save)
{
    float data[8] = { 1, 2, 3, 4, 5, 6, 7, save->value };
    const int64_t shape = 8;
    const struct dcp_local_tensor local = { .name = "x",
                                            .role = save->role,
                                            .dtype = DCP_F32,
                                            .ndim = 1,
                                            .shape = &shape,
                                            .data = data };
    const struct dcp_state whole = { .locals = &local, .n_locals = 1 };
    const struct dcp_context ctx = { .store = store, .threads = 1 };
    const struct dcp_save_options options = { .step = save->step,
                                              .keep = 2,
                                              .diverged = save->diverged };
    struct dcp_save_result result;

    assert_int_equal(dcp_save(&ctx, &options, &whole, &result, NULL), 0);
    return result.diverged;
}

static void the_last_finite_step_stays(void **state)
{
    (void)state;
    struct dcp_store store;
    struct dcp_step *steps;
    size_t n;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_false(save(&store, &(struct save){ .step = 1, .value = 1 }));
    assert_false(save(&store, &(struct save){ .step = 2, .value = 1 }));
    /* A mask may well be infinite, and a step number of the optimizer what it likes. */
    assert_false(
        save(&store,
             &(struct save){ .step = 3, .value = -INFINITY, .role = DCP_ROLE_BUFFER }));
    assert_true(save(&store, &(struct save){ .step = 4, .value = NAN }));
    assert_true(save(&store, &(struct save){ .step = 5, .value = 1, .diverged = true }));
    assert_true(save(
        &store,
        &(struct save){ .step = 6, .value = INFINITY, .role = DCP_ROLE_EXP_AVG_SQ }));
    assert_true(save(&store, &(struct save){ .step = 7, .value = NAN }));
    assert_int_equal(dcp_steps(&store, &steps, &n, NULL, NULL), 0);
    assert_int_equal(n, 4);
    assert_true(steps[0].step == 7 && steps[0].diverged);
    assert_true(steps[1].step == 6 && steps[1].diverged);
    assert_true(steps[2].step == 3 && !steps[2].diverged);
    assert_true(steps[3].step == 2 && !steps[3].diverged);
    free(steps);
    /* Once there is a newer one it goes as others do. */
    assert_false(save(&store, &(struct save){ .step = 8, .value = 2 }));
    assert_int_equal(dcp_steps(&store, &steps, &n, NULL, NULL), 0);
    assert_true(n == 2 && steps[0].step == 8 && steps[1].step == 7);
    free(steps);
    dcp_store_free(&store);
}

/* The mark goes with the state, and says nothing where all is well. */
static void the_mark(void **state)
{
    (void)state;
    struct dcp_store store;
    void *text;
    size_t n;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    save(&store, &(struct save){ .step = 1, .value = 1 });
    save(&store, &(struct save){ .step = 2, .value = NAN });
    assert_int_equal(dcp_store_read_file(&store, "step-00000001/manifest.json", 1 << 20,
                                         &text, &n, NULL),
                     0);
    assert_null(strstr(text, "finite"));
    free(text);
    assert_int_equal(dcp_store_read_file(&store, "step-00000002/manifest.json", 1 << 20,
                                         &text, &n, NULL),
                     0);
    assert_non_null(strstr(text, ",\n\"finite\":false,\n\"digest\""));
    free(text);
    dcp_store_free(&store);
}

static int n_told, n_below;
static void count(void *self, enum dcp_log_level level, const char *text)
{
    (void)self;
    (void)level;
    n_told += strstr(text, "was something else trained than saved?") != NULL;
    n_below += strstr(text, "which a load takes as the newest") != NULL;
}

/* Weights that are those of the save before, and moments that nobody touched, are told:
 * what is trained may not be what is saved. */
static void stale_states(void **state)
{
    (void)state;
    static const struct {
        float weight, moment;
        int told;
        bool idle;
    } saves[] = { { 1, 0, 1, false }, { 2, 3, 0, false },    { 2, 4, 1, false },
                  { 5, 4, 0, false }, { 6, -0.f, 0, false }, { 6, 0, 2, false },
                  { 7, 1, 0, false }, { 7, 0, 0, true } };
    const struct dcp_log log = { .write = count, .level = DCP_LOG_WARN };
    const int64_t shape = 4;
    struct dcp_store store;
    struct dcp_saver *saver;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    const struct dcp_context ctx = { .store = &store, .threads = 1, .log = &log };
    assert_int_equal(dcp_saver_new(&ctx, &saver, NULL), 0);
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++) {
        float w[4] = { 1, 1, 1, saves[i].weight }, m[4] = { 0, 0, 0, saves[i].moment };
        const struct dcp_local_tensor locals[] = {
            { .name = "w", .dtype = DCP_F32, .ndim = 1, .shape = &shape, .data = w },
            { .name = "m",
              .role = DCP_ROLE_EXP_AVG,
              .dtype = DCP_F32,
              .ndim = 1,
              .shape = &shape,
              .data = m },
        };
        const struct dcp_state whole = { .locals = locals, .n_locals = 2 };
        const struct dcp_save_options options = { .step = (int64_t)i + 1,
                                                  .idle = saves[i].idle };
        struct dcp_save_result result;
        n_told = 0;
        assert_int_equal(dcp_save_start(saver, &options, &whole, NULL), 0);
        assert_int_equal(dcp_save_wait(saver, &result, NULL), 0);
        assert_int_equal(n_told, saves[i].told);
        assert_int_equal(result.stale, saves[i].told > 0);
    }
    dcp_saver_free(saver);
    dcp_store_free(&store);
}

/* A saver of its own, as of training that was started again. */
static int told_of(const struct dcp_store *store, int64_t step, float weight)
{
    const struct dcp_log log = { .write = count, .level = DCP_LOG_WARN };
    const struct dcp_context ctx = { .store = store, .threads = 1, .log = &log };
    const int64_t shape = 4;
    float w[4] = { 1, 1, 1, weight };
    const struct dcp_local_tensor local = {
        .name = "w", .dtype = DCP_F32, .ndim = 1, .shape = &shape, .data = w
    };
    const struct dcp_state whole = { .locals = &local, .n_locals = 1 };
    struct dcp_save_result result;

    n_told = 0;
    assert_int_equal(
        dcp_save(&ctx, &(struct dcp_save_options){ .step = step }, &whole, &result, NULL),
        0);
    assert_int_equal(result.stale, n_told > 0);
    return n_told;
}

/* What was there before this saver began is the step before: the newest one below. */
static void stale_after_a_restart(void **state)
{
    struct dcp_store store;

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(told_of(&store, 10, 1), 0);
    assert_int_equal(told_of(&store, 20, 2), 0);
    assert_int_equal(told_of(&store, 30, 2), 1);
    assert_int_equal(told_of(&store, 40, 1), 0); /* of the newest alone */
    assert_int_equal(told_of(&store, 15, 1), 1); /* the newer ones are of no account */
    assert_int_equal(told_of(&store, 5, 1), 0);
    dcp_store_free(&store);
}

/* A step below others is not what a load takes: that is told as a course begins. */
static void below_the_newest(void **state)
{
    static const struct {
        int64_t step;
        int told;
    } saves[] = { { 10, 0 }, { 20, 0 }, { 13, 1 }, { 16, 0 }, { 30, 0 }, { 25, 1 } };
    const struct dcp_log log = { .write = count, .level = DCP_LOG_WARN };
    const struct dcp_state none = { 0 };
    struct dcp_store store;
    struct dcp_saver *saver;

    (void)state;
    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    const struct dcp_context ctx = { .store = &store, .threads = 1, .log = &log };
    assert_int_equal(dcp_saver_new(&ctx, &saver, NULL), 0);
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++) {
        const struct dcp_save_options options = { .step = saves[i].step };
        n_below = 0;
        assert_int_equal(dcp_save_start(saver, &options, &none, NULL), 0);
        assert_int_equal(dcp_save_wait(saver, NULL, NULL), 0);
        assert_int_equal(n_below, saves[i].told);
    }
    dcp_saver_free(saver);
    n_below = 0;
    told_of(&store, 17, 1); /* another one, too */
    assert_int_equal(n_below, 1);
    dcp_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_types),
        cmocka_unit_test(large_types),
        cmocka_unit_test(the_last_finite_step_stays),
        cmocka_unit_test(the_mark),
        cmocka_unit_test(stale_states),
        cmocka_unit_test(stale_after_a_restart),
        cmocka_unit_test(below_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
