/* labels: tsan */
#include "base/pool.h"

#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct sum {
    struct dcp_group *group;
    int begun, done; /* atomic */
};

static int add_one(void *arg, struct dcp_error *err)
{
    (void)err;
    struct sum *sum = arg;
    __atomic_add_fetch(&sum->done, 1, __ATOMIC_RELAXED);
    return DCP_OK;
}

static int start_more(void *arg, struct dcp_error *err)
{
    (void)err;
    struct sum *sum = arg;
    for (int i = 0; i < 10; i++)
        dcp_group_start(sum->group, add_one, sum);
    return DCP_OK;
}

static void every_job_runs_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct dcp_pool *pool;
        struct sum sums[5] = { 0 };
        assert_int_equal(dcp_pool_new(threads, &pool, NULL), 0);
        assert_int_equal(dcp_pool_workers(pool), threads + 1);
        for (int g = 0; g < 5; g++)
            assert_int_equal(dcp_group_new(pool, &sums[g].group, NULL), 0);
        for (int i = 0; i < 200; i++)
            for (int g = 0; g < 5; g++)
                dcp_group_start(sums[g].group, i % 20 ? add_one : start_more, &sums[g]);
        for (int g = 4; g >= 0; g--) {
            assert_int_equal(dcp_group_wait(sums[g].group, NULL), 0);
            assert_true(dcp_group_done(sums[g].group));
            assert_int_equal(sums[g].done, 190 + 10 * 10);
            dcp_group_free(sums[g].group);
        }
        dcp_pool_free(pool);
    }
}

static void free_waits_for_jobs(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    struct sum sum = { 0 };
    assert_int_equal(dcp_pool_new(2, &pool, NULL), 0);
    assert_int_equal(dcp_group_new(pool, &sum.group, NULL), 0);
    for (int i = 0; i < 1000; i++)
        dcp_group_start(sum.group, add_one, &sum);
    dcp_group_free(sum.group);
    assert_int_equal(sum.done, 1000);
    dcp_pool_free(pool);
    dcp_pool_free(NULL);
    dcp_group_free(NULL);
}

static int fail_or_count(void *arg, struct dcp_error *err)
{
    struct sum *sum = arg;
    if (__atomic_add_fetch(&sum->begun, 1, __ATOMIC_RELAXED) == 5)
        return dcp_error_set(err, DCP_E_IO, "the fifth");
    return DCP_OK;
}

static void first_failure_is_told_and_the_rest_skipped(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    struct sum sum = { 0 };
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_pool_new(1, &pool, NULL), 0);
    assert_int_equal(dcp_group_new(pool, &sum.group, NULL), 0);
    for (int i = 0; i < 5; i++)
        dcp_group_start(sum.group, fail_or_count, &sum);
    while (!dcp_group_done(sum.group))
        dcp_clock_sleep_us(100);
    for (int i = 0; i < 1000; i++) /* the failure is known: none of them begins */
        dcp_group_start(sum.group, fail_or_count, &sum);
    assert_int_equal(dcp_group_wait(sum.group, &err), DCP_E_IO);
    assert_string_equal(err.message, "the fifth");
    assert_int_equal(sum.begun, 5);

    /* Ready for new jobs. */
    dcp_group_start(sum.group, add_one, &sum);
    assert_int_equal(dcp_group_wait(sum.group, NULL), 0);
    assert_int_equal(sum.done, 1);
    dcp_group_free(sum.group);
    dcp_pool_free(pool);
}

static int fail_without_words(void *arg, struct dcp_error *err)
{
    (void)arg;
    (void)err;
    return DCP_E_CORRUPT;
}

static void failure_always_has_words(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    struct dcp_group *group;
    struct dcp_error err = { 0 };
    assert_int_equal(dcp_pool_new(1, &pool, NULL), 0);
    assert_int_equal(dcp_group_new(pool, &group, NULL), 0);
    dcp_group_start(group, fail_without_words, NULL);
    assert_int_equal(dcp_group_wait(group, &err), DCP_E_CORRUPT);
    assert_int_equal(err.code, DCP_E_CORRUPT);
    assert_true(err.message[0] != '\0');
    dcp_group_free(group);
    dcp_pool_free(pool);
}

/* The waiting thread takes part: with the only thread of the pool held up, jobs of a
 * waited group still run. */
struct gate {
    bool open; /* atomic */
};

static int hold(void *arg, struct dcp_error *err)
{
    (void)err;
    struct gate *gate = arg;
    while (!__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE))
        dcp_clock_sleep_us(100);
    return DCP_OK;
}

static void waiting_helps(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    struct dcp_group *held;
    struct gate gate = { 0 };
    struct sum sum = { 0 };
    assert_int_equal(dcp_pool_new(1, &pool, NULL), 0);
    assert_int_equal(dcp_group_new(pool, &held, NULL), 0);
    assert_int_equal(dcp_group_new(pool, &sum.group, NULL), 0);
    dcp_group_start(held, hold, &gate);
    for (int i = 0; i < 100; i++)
        dcp_group_start(sum.group, add_one, &sum);
    assert_int_equal(dcp_group_wait(sum.group, NULL), 0);
    assert_int_equal(sum.done, 100);
    assert_false(dcp_group_done(held));
    __atomic_store_n(&gate.open, true, __ATOMIC_RELEASE);
    assert_int_equal(dcp_group_wait(held, NULL), 0);
    dcp_group_free(held);
    dcp_group_free(sum.group);
    dcp_pool_free(pool);
}

struct marks {
    unsigned char seen[1000];
    size_t fail_from; /* these indices fail */
    int n;            /* atomic */
};

static int mark(void *arg, int worker, size_t i, struct dcp_error *err)
{
    (void)worker;
    struct marks *marks = arg;
    marks->seen[i]++;
    __atomic_add_fetch(&marks->n, 1, __ATOMIC_RELAXED);
    if (i >= marks->fail_from)
        return dcp_error_set(err, DCP_E_CORRUPT, "index %zu", i);
    return DCP_OK;
}

static void loops(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    assert_int_equal(dcp_pool_new(3, &pool, NULL), 0);
    struct dcp_pool *const pools[] = { NULL, pool };
    for (int p = 0; p < 2; p++)
        for (size_t n = 0; n <= 1000; n += n < 5 ? 1 : 199) {
            struct marks marks = { .fail_from = SIZE_MAX };
            assert_int_equal(dcp_pool_for(pools[p], n, mark, &marks, NULL), 0);
            for (size_t i = 0; i < 1000; i++)
                assert_int_equal(marks.seen[i], i < n);
        }
    /* The lowest failure, however the threads ran, and not all of the rest. */
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < 50; i++) {
            struct marks marks = { .fail_from = 100 };
            struct dcp_error err = { 0 };
            assert_int_equal(dcp_pool_for(pools[p], 1000, mark, &marks, &err),
                             DCP_E_CORRUPT);
            assert_string_equal(err.message, "index 100");
            assert_true(marks.n < 1000);
        }
    dcp_pool_free(pool);
}

/* Each worker's number is its own while it works. */
struct desks {
    bool taken[4]; /* atomic */
    int n_wrong;   /* atomic */
};

static int sit_down(void *arg, int worker, size_t i, struct dcp_error *err)
{
    (void)err;
    struct desks *desks = arg;
    bool wrong = worker < 0 || worker >= 4 ||
                 __atomic_exchange_n(&desks->taken[worker], true, __ATOMIC_ACQ_REL);
    if (i % 8 == 0)
        dcp_clock_sleep_us(50);
    if (wrong)
        __atomic_add_fetch(&desks->n_wrong, 1, __ATOMIC_RELAXED);
    else
        __atomic_store_n(&desks->taken[worker], false, __ATOMIC_RELEASE);
    return DCP_OK;
}

static void workers_have_numbers(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    struct desks desks = { 0 };
    assert_int_equal(dcp_pool_new(3, &pool, NULL), 0);
    assert_int_equal(dcp_pool_workers(pool), 4);
    assert_int_equal(dcp_pool_workers(NULL), 1);
    assert_int_equal(dcp_pool_for(pool, 1000, sit_down, &desks, NULL), 0);
    assert_int_equal(dcp_pool_for(NULL, 10, sit_down, &desks, NULL), 0);
    assert_int_equal(desks.n_wrong, 0);
    dcp_pool_free(pool);
}

/* Two indices that fail, in an order that is forced. */
struct duel {
    size_t late;            /* fails last; both have begun before the first fails */
    bool begun[2], lost[2]; /* atomic */
};

static void await(const bool *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE))
        dcp_clock_sleep_us(100);
}

static int fight(void *arg, int worker, size_t i, struct dcp_error *err)
{
    (void)worker;
    struct duel *duel = arg;
    __atomic_store_n(&duel->begun[i], true, __ATOMIC_RELEASE);
    await(&duel->begun[1 - i]);
    if (i == duel->late) {
        await(&duel->lost[1 - i]);
        dcp_clock_sleep_us(2000); /* the other's failure is noted by now */
    }
    __atomic_store_n(&duel->lost[i], true, __ATOMIC_RELEASE);
    return dcp_error_set(err, DCP_E_IO, "index %zu", i);
}

static void lowest_failure_wins(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    assert_int_equal(dcp_pool_new(2, &pool, NULL), 0);
    for (size_t late = 0; late < 2; late++) {
        struct duel duel = { .late = late };
        struct dcp_error err = { 0 };
        assert_int_equal(dcp_pool_for(pool, 2, fight, &duel, &err), DCP_E_IO);
        assert_string_equal(err.message, "index 0");
    }
    dcp_pool_free(pool);
}

static int sleep_for(void *arg, struct dcp_error *err)
{
    (void)err;
    dcp_clock_sleep_us(*(const uint64_t *)arg);
    return DCP_OK;
}

static void waiting_ends_with_the_work(void **state)
{
    (void)state;
    struct dcp_pool *pool;
    struct dcp_group *group;
    uint64_t us = 20000, begin = dcp_clock_ns();
    assert_int_equal(dcp_pool_new(1, &pool, NULL), 0);
    assert_int_equal(dcp_group_new(pool, &group, NULL), 0);
    assert_true(dcp_group_done_within(group, UINT32_MAX)); /* there is none */
    dcp_group_start(group, sleep_for, &us);
    assert_false(dcp_group_done_within(group, 100));
    assert_true(dcp_group_done_within(group, UINT32_MAX)); /* more than an hour */
    assert_true(dcp_clock_ns() - begin >= us * 1000);
    dcp_group_free(group);
    dcp_pool_free(pool);
}

static void clock_goes_on(void **state)
{
    (void)state;
    uint64_t begin = dcp_clock_ns();
    dcp_clock_sleep_us(2000);
    assert_true(dcp_clock_ns() - begin >= 2000000);
    assert_true(dcp_clock_s() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_job_runs_once),
        cmocka_unit_test(free_waits_for_jobs),
        cmocka_unit_test(first_failure_is_told_and_the_rest_skipped),
        cmocka_unit_test(failure_always_has_words),
        cmocka_unit_test(waiting_helps),
        cmocka_unit_test(loops),
        cmocka_unit_test(workers_have_numbers),
        cmocka_unit_test(lowest_failure_wins),
        cmocka_unit_test(waiting_ends_with_the_work),
        cmocka_unit_test(clock_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
