/* Saves that become deltas, with every operation of the store failing, torn, or the last:
 * a save that was promised is there to its last bit, as a delta or in full, and the step
 * before it is never lost. */
#include "lib/acts.h"
#include "lib/fault.h"
#include "lib/sample.h"
#include <dcp/dcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t explored;

/* A store of deltas over what `inner` is, which stays the caller's. */
static void wrap(struct dcp_store *out, const struct dcp_store *inner,
                 struct fault *fault)
{
    struct dcp_store faulty;

    assert_int_equal(fault_store(&faulty, inner, fault, NULL), 0);
    assert_int_equal(dcp_store_delta(out, &faulty, NULL, NULL, NULL), 0);
}

static int save(struct dcp_saver *saver, int64_t step)
{
    const struct dcp_save_options options = {
        .step = step, .keep = 1, .delta = 2, .in_place = true
    };
    struct sample sample;

    sample_make_first(&sample, sample_n_tensors() - 1, "zero3", 1, 0, true,
                      (unsigned)step);
    int rc = dcp_save_start(saver, &options, &sample.state, NULL);
    if (!rc)
        rc = dcp_save_wait(saver, NULL, NULL);
    sample_free(&sample);
    return rc;
}

/* The newest step is one of two, and has all its bits. */
static void check_newest(const struct dcp_store *memory, int64_t least, int64_t most)
{
    struct fault none = { .kind = FAULT_NONE };
    struct dcp_step step;
    struct dcp_store store;

    wrap(&store, memory, &none);
    struct dcp_context ctx = { .store = &store };
    assert_int_equal(dcp_find(&ctx, -1, &step, NULL), 0);
    assert_in_range(step.step, least, most);
    assert_int_equal(
        dcp_verify(&(struct dcp_source){ &store, step.name, true }, NULL, NULL, NULL), 0);
    struct acts load = { .store = &store,
                         .layout = "flat",
                         .world_size = 1,
                         .step = -1,
                         .salt = (unsigned)step.step,
                         .small = true };
    assert_int_equal(acts_load(&load), 0);
    assert_int_equal(load.wrong, 0);
    dcp_store_free(&store);
}

/* Whether the fault struck; *out_delta: the second step became a delta. `resumed`: it is
 * saved by another saver. */
static bool one_fault(enum fault_kind kind, uint64_t at, bool resumed, bool *out_delta)
{
    struct fault fault = { .kind = FAULT_NONE };
    struct dcp_store memory, store;
    struct dcp_saver *saver;
    char *base;
    int chain;

    assert_int_equal(dcp_store_mem(&memory, NULL), 0);
    wrap(&store, &memory, &fault);
    const struct dcp_context ctx = { .store = &store, .threads = 1 };
    assert_int_equal(dcp_saver_new(&ctx, &saver, NULL), 0);
    assert_int_equal(save(saver, 1), 0);
    if (resumed) {
        dcp_saver_free(saver);
        assert_int_equal(dcp_saver_new(&ctx, &saver, NULL), 0);
    }
    fault = (struct fault){ .kind = kind, .at = at };
    explored++;
    int rc = save(saver, 2);
    bool struck = at && fault.count >= at;
    fault = (struct fault){ .kind = FAULT_NONE };
    check_newest(&memory, rc ? 1 : 2, 2);
    *out_delta = !dcp_delta_base(&memory, "step-00000002", &base, &chain, NULL);
    if (*out_delta)
        free(base);
    if (kind != FAULT_STOP) { /* it lives on */
        assert_int_equal(save(saver, 3), 0);
        check_newest(&memory, 3, 3);
    }
    dcp_saver_free(saver);
    dcp_store_free(&store);
    dcp_store_free(&memory);
    return struck;
}

static void every_fault(enum fault_kind kind, bool resumed)
{
    uint64_t full = 0, deltas = 0;
    bool delta;

    for (uint64_t at = 1; one_fault(kind, at, resumed, &delta); at++) {
        deltas += delta;
        full += !delta;
    }
    assert_true(delta); /* without a fault */
    assert_true(full > 20 && deltas > 5);
}

static void operations_that_fail(void **state)
{
    (void)state;
    every_fault(FAULT_TEAR, false);
}

static void operations_that_fail_after_a_resume(void **state)
{
    (void)state;
    every_fault(FAULT_TEAR, true);
}

static void an_end_at_any_operation(void **state)
{
    (void)state;
    every_fault(FAULT_STOP, false);
}

/* Deltas that nobody could read are not made. */
static void a_store_that_reads_none(void **state)
{
    struct dcp_store memory;
    struct dcp_saver *saver;
    struct dcp_store_entry *entries;
    size_t n;

    (void)state;
    assert_int_equal(dcp_store_mem(&memory, NULL), 0);
    const struct dcp_context ctx = { .store = &memory, .threads = 1 };
    assert_int_equal(dcp_saver_new(&ctx, &saver, NULL), 0);
    for (int64_t step = 1; step <= 2; step++)
        assert_int_equal(save(saver, step), 0);
    check_newest(&memory, 2, 2);
    assert_int_equal(memory.ops->list(memory.self, "step-00000002", &entries, &n, NULL),
                     0);
    assert_int_equal(n, 3); /* a shard, its manifest, and the manifest */
    dcp_store_list_free(entries, n);
    dcp_saver_free(saver);
    dcp_store_free(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_that_fail),
        cmocka_unit_test(operations_that_fail_after_a_resume),
        cmocka_unit_test(an_end_at_any_operation),
        cmocka_unit_test(a_store_that_reads_none),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    printf("explored=%llu violations=%d\n", (unsigned long long)explored, failed);
    return failed;
}
