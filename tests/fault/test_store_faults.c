/* Every operation of the store fails once, tears, or is the last: afterwards the newest
 * step that was promised is found, loads bit for bit, and the next save needs no help.
 * Then the power goes, too. */
#include "base/clock.h"
#include "lib/acts.h"
#include "lib/fault.h"
#include "lib/slower.h"
#include "port/store/mem.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

static const enum fault_kind kinds[] = { FAULT_FAIL, FAULT_TEAR, FAULT_STOP };
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static long explored; /* faults that were tried */

/* How a run of saves looks. */
struct how {
    const char *layout;
    int world_size;
    enum dcp_codec codec;
    const struct dcp_save_options *more;
};

static int save(const struct dcp_store *store, const struct how *how, int64_t step)
{
    struct acts acts = { .store = store,
                         .layout = how->layout,
                         .world_size = how->world_size,
                         .step = step,
                         .salt = (unsigned)step,
                         .codec = how->codec,
                         .more = how->more,
                         .small = true };

    int rc = acts_save(&acts);
    assert_true(acts.agreed);
    assert_int_equal(rc != 0, acts.err.message[0] != '\0');
    return rc;
}

/* The newest step is one of those, and every byte of it is right. */
static void check_newest(const struct dcp_store *store, const struct how *how,
                         int64_t least, int64_t most)
{
    struct dcp_context ctx = { .store = store };
    struct dcp_step step = { 0 };
    struct dcp_error err = { 0 };

    int rc = dcp_find(&ctx, -1, &step, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(rc, 0);
    assert_in_range(step.step, least, most);
    struct acts acts = { .store = store,
                         .layout = how->layout,
                         .world_size = 1,
                         .step = -1,
                         .salt = (unsigned)step.step,
                         .small = true };
    rc = acts_load(&acts);
    assert_string_equal(acts.err.message, "");
    assert_int_equal(rc, 0);
    assert_int_equal(acts.loaded_step, step.step);
    assert_int_equal(acts.wrong, 0);
}

static size_t count_unfinished(const struct dcp_store *store)
{
    struct dcp_step *steps;
    size_t n, unfinished;

    assert_int_equal(dcp_steps(store, &steps, &n, &unfinished, NULL), 0);
    free(steps);
    return unfinished;
}

/* Saves step 2 over a complete step 1 with operation `at` failing; false when the save
 * has fewer operations. */
static bool one_fault(const struct how *how, enum fault_kind kind, uint64_t at)
{
    struct fault fault = { .kind = kind, .at = at };
    struct dcp_store store, faulty;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(save(&store, how, 1), 0);
    assert_int_equal(fault_store(&faulty, &store, &fault, NULL), 0);
    explored++;
    int rc = save(&faulty, how, 2);
    bool struck = fault.count >= at;
    dcp_store_free(&faulty);
    assert_true(struck || rc == 0);

    check_newest(&store, how, rc ? 1 : 2, 2);
    if (kind != FAULT_STOP) /* who lives cleans up, unless that is what failed */
        assert_true(count_unfinished(&store) <= 1);
    assert_int_equal(dcp_store_mem_crash(&store, NULL), 0);
    check_newest(&store, how, rc ? 1 : 2, 2);
    assert_int_equal(save(&store, how, 3), 0);
    check_newest(&store, how, 3, 3);
    assert_int_equal(count_unfinished(&store), 0);
    dcp_store_free(&store);
    return struck;
}

static void every_fault(const struct how *how, uint64_t least)
{
    for (int k = 0; k < N_KINDS; k++) {
        uint64_t at = 1 + (uint64_t)k % SLOWER;
        while (one_fault(how, kinds[k], at))
            at += SLOWER;
        assert_true(at > least); /* the loop saw the whole save */
    }
}

static void one_rank(void **state)
{
    (void)state;
    every_fault(&(struct how){ .layout = "zero3", .world_size = 1 }, 20);
}

static void three_ranks(void **state)
{
    (void)state;
    every_fault(&(struct how){ .layout = "zero2", .world_size = 3 }, 40);
}

/* With everything a save can do: compress, make a second file and parity, remove the old
 * step. */
static void all_that_a_save_can_do(void **state)
{
    (void)state;
    const struct dcp_export consolidated = { "pytorch_model.bin", "torch", DCP_BF16 };
    const struct dcp_save_options more = { .keep = 1,
                                           .parity = 2,
                                           .consolidated = &consolidated };

    every_fault(
        &(struct how){
            .layout = "flat", .world_size = 2, .codec = DCP_CODEC_PLANES, .more = &more },
        40);
}

/* A disk that is full at any byte: the save says so, and the old step stays. */
static void full_disks(void **state)
{
    (void)state;
    const struct how how = { .layout = "zero3", .world_size = 2 };
    struct dcp_store store;
    int n_full = 0;

    for (uint64_t room = 0;; room += 997 * SLOWER) {
        assert_int_equal(dcp_store_mem(&store, NULL), 0);
        assert_int_equal(save(&store, &how, 1), 0);
        dcp_store_mem_limit(&store, UINT64_MAX - 1);
        uint64_t used = UINT64_MAX - 1 - store.ops->free_bytes(store.self);
        dcp_store_mem_limit(&store, used + room);
        explored++;
        int rc = save(&store, &how, 2);
        assert_true(rc == 0 || rc == DCP_E_NO_SPACE);
        check_newest(&store, &how, rc ? 1 : 2, rc ? 1 : 2);
        assert_int_equal(count_unfinished(&store), 0);
        dcp_store_free(&store);
        n_full += rc != 0;
        if (!rc)
            break;
    }
    assert_true(n_full > 10 / SLOWER);
}

/* --- prune --- */

static bool one_prune_fault(enum fault_kind kind, uint64_t at)
{
    const struct how how = { .layout = "zero3", .world_size = 1 };
    struct fault fault = { .kind = kind, .at = at };
    struct dcp_store store, faulty;
    struct dcp_step *steps;
    size_t n, unfinished, removed;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    for (int64_t step = 1; step <= 3; step++)
        assert_int_equal(save(&store, &how, step), 0);
    assert_int_equal(fault_store(&faulty, &store, &fault, NULL), 0);
    explored++;
    int rc = dcp_prune(&faulty, &(struct dcp_retention){ .keep = 1 }, &removed, NULL);
    bool struck = fault.count >= at;
    dcp_store_free(&faulty);
    assert_true(struck || (rc == 0 && removed == 2));
    for (int crash = 0; crash < 2; crash++) {
        check_newest(&store, &how, 3, 3);
        /* No step is there in part. */
        assert_int_equal(dcp_steps(&store, &steps, &n, &unfinished, NULL), 0);
        for (size_t i = 0; i < n; i++)
            assert_true(steps[i].complete);
        free(steps);
        if (!crash)
            assert_int_equal(dcp_store_mem_crash(&store, NULL), 0);
    }
    assert_int_equal(dcp_prune(&store, &(struct dcp_retention){ .keep = 1 }, NULL, NULL),
                     0);
    struct dcp_store_entry *entries;
    assert_int_equal(store.ops->list(store.self, "", &entries, &n, NULL), 0);
    assert_int_equal(n, 2); /* the step and the pointer */
    dcp_store_list_free(entries, n);
    dcp_store_free(&store);
    return struck;
}

static void prune(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        uint64_t at = 1;
        while (one_prune_fault(kinds[k], at))
            at++;
        assert_true(at > 10);
    }
}

/* --- optimizer state that goes --- */

static bool one_thin_fault(enum fault_kind kind, uint64_t at)
{
    const struct how how = { .layout = "zero3", .world_size = 1 };
    const struct dcp_retention retention = { .keep_optimizer = 1 };
    struct fault fault = { .kind = kind, .at = at };
    struct dcp_store store, faulty;
    struct dcp_step *steps;
    size_t n;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    for (int64_t step = 1; step <= 2; step++)
        assert_int_equal(save(&store, &how, step), 0);
    assert_int_equal(fault_store(&faulty, &store, &fault, NULL), 0);
    explored++;
    int rc = dcp_prune(&faulty, &retention, NULL, NULL);
    bool struck = fault.count >= at;
    dcp_store_free(&faulty);
    assert_true(struck || rc == 0);
    for (int crash = 0; crash < 2; crash++) {
        check_newest(&store, &how, 2, 2);
        assert_int_equal(dcp_steps(&store, &steps, &n, NULL, NULL), 0);
        assert_int_equal(n, 2);
        assert_true(steps[0].complete && !steps[0].weights_only && steps[1].complete);
        assert_true(struck || steps[1].weights_only);
        assert_int_equal(dcp_verify(&(struct dcp_source){ &store, steps[1].name, true },
                                    &(struct dcp_verify_options){ .threads = 1 }, NULL,
                                    NULL),
                         0);
        free(steps);
        if (!crash)
            assert_int_equal(dcp_store_mem_crash(&store, NULL), 0);
    }
    assert_int_equal(dcp_prune(&store, &retention, NULL, NULL), 0);
    struct dcp_store_entry *entries;
    assert_int_equal(store.ops->list(store.self, "", &entries, &n, NULL), 0);
    assert_int_equal(n, 3); /* the steps and the pointer */
    dcp_store_list_free(entries, n);
    dcp_store_free(&store);
    return struck;
}

static void thin(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        uint64_t at = 1;
        while (one_thin_fault(kinds[k], at))
            at++;
        assert_true(at > 40);
    }
}

/* --- load and find --- */

/* A read that fails is an error or a fall-back to the step before, never wrong bytes. */
static void load_all(const struct dcp_save_options *more)
{
    const struct how how = { .layout = "zero3", .world_size = 3, .more = more };
    struct dcp_store store, faulty;

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(save(&store, &how, 1), 0);
    assert_int_equal(save(&store, &how, 2), 0);
    for (int world_size = 1; world_size <= 2; world_size++)
        for (int k = 0; k < N_KINDS; k++) {
            bool struck = true;
            for (uint64_t at = 1; struck; at += SLOWER) {
                struct fault fault = { .kind = kinds[k], .at = at };
                assert_int_equal(fault_store(&faulty, &store, &fault, NULL), 0);
                struct acts acts = { .store = &faulty,
                                     .layout = "dim0",
                                     .world_size = world_size,
                                     .step = -1,
                                     .salt = 2,
                                     .small = true };
                explored++;
                int rc = acts_load(&acts);
                struck = fault.count >= at;
                dcp_store_free(&faulty);
                assert_true(acts.agreed);
                assert_true(rc == 0 || acts.err.message[0]);
                assert_true(rc == 0 || struck);
                if (rc == 0 && acts.loaded_step == 2)
                    assert_int_equal(acts.wrong, 0);
                assert_true(rc || acts.loaded_step == 2 || kinds[k] != FAULT_STOP);
            }
        }
    dcp_store_free(&store);
}

static void load(void **state)
{
    (void)state;
    load_all(NULL);
}

static void load_with_parity(void **state)
{
    (void)state;
    load_all(&(struct dcp_save_options){ .parity = 1 });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(three_ranks),
        cmocka_unit_test(all_that_a_save_can_do),
        cmocka_unit_test(full_disks),
        cmocka_unit_test(prune),
        cmocka_unit_test(thin),
        cmocka_unit_test(load),
        cmocka_unit_test(load_with_parity),
    };
    double started = dcp_clock_s();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("explored=%ld violations=%d seconds=%.1f\n", explored, failed,
           dcp_clock_s() - started);
    return failed;
}
