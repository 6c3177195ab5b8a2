/* The cache of blocks: what was used last is there, in no more memory than was given;
 * and what one thread reads others need not. */
#include "core/read/cache.h"
#include "lib/acts.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

/* Takes a block of n bytes, which are all alike. Returns whether it was there. */
static bool take(struct dcp_cache *cache, size_t unit, uint64_t block, size_t n)
{
    bool fill;
    struct dcp_cached *cached = dcp_cache_take(cache, unit, block, n, &fill);

    assert_non_null(cached);
    if (fill)
        memset(dcp_cached_data(cached), (int)(unit + block), n);
    for (size_t i = 0; i < n; i += n - 1 ? n - 1 : 1)
        assert_int_equal(dcp_cached_data(cached)[i], (unsigned char)(unit + block));
    dcp_cache_give(cache, cached, true);
    return !fill;
}

/* Whether it is there; if not it is not afterwards. */
static bool holds(struct dcp_cache *cache, size_t unit, uint64_t block)
{
    bool fill;
    struct dcp_cached *cached = dcp_cache_take(cache, unit, block, 1, &fill);

    assert_non_null(cached);
    dcp_cache_give(cache, cached, !fill);
    return !fill;
}

static void what_was_used_last_stays(void **state)
{
    (void)state;
    struct dcp_cache *cache = dcp_cache_new(10 * 1100);

    assert_non_null(cache);
    for (size_t i = 0; i < 10; i++)
        assert_false(take(cache, i, 7, 1000));
    assert_true(take(cache, 0, 7, 1000));
    assert_false(take(cache, 10, 7, 1000)); /* for which the second goes */
    assert_true(holds(cache, 0, 7));
    assert_true(holds(cache, 2, 7));
    assert_false(take(cache, 1, 7, 1000));
    assert_false(take(cache, 0, 8, 1000));
    assert_false(take(cache, 11, 7, 10 * 1000)); /* for which all go */
    assert_true(holds(cache, 11, 7));
    assert_false(take(cache, 10, 7, 1000));
    dcp_cache_free(cache);
    dcp_cache_free(NULL);
}

static void what_was_not_read_is_not_there(void **state)
{
    (void)state;
    struct dcp_cache *cache = dcp_cache_new(5000);

    assert_non_null(cache);
    assert_false(take(cache, 1, 1, 1000));
    assert_false(holds(cache, 2, 2)); /* it could not be read: once, and again */
    assert_false(holds(cache, 2, 2));
    assert_false(take(cache, 2, 2, 1000));
    assert_true(holds(cache, 1, 1));
    assert_true(holds(cache, 2, 2));
    dcp_cache_free(cache);
}

/* However much more is asked for meanwhile. */
static void what_is_held_stays(void **state)
{
    (void)state;
    struct dcp_cache *cache = dcp_cache_new(3000);
    bool fill;

    assert_non_null(cache);
    struct dcp_cached *held = dcp_cache_take(cache, 0, 0, 1000, &fill);
    assert_non_null(held);
    memset(dcp_cached_data(held), 'x', 1000);
    for (size_t i = 1; i < 9; i++)
        assert_false(take(cache, i, 0, 1000));
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(dcp_cached_data(held)[i], 'x');
    dcp_cache_give(cache, held, true);
    assert_true(holds(cache, 0, 0));
    dcp_cache_free(cache);
}

/* So many that a head for each comes as they do; and more once there is more memory. */
static void small_ones_are_many(void **state)
{
    (void)state;
    enum { N = 5000 };
    const uint64_t half = (uint64_t)N / 2 * 100; /* one costs less than 100 bytes */
    struct dcp_cache *cache = dcp_cache_new(half);
    size_t there = 0;

    assert_non_null(cache);
    for (size_t i = 0; i < N; i++) {
        assert_false(take(cache, i, i % 7, 16));
        assert_true(holds(cache, i, i % 7));
    }
    dcp_cache_grow(cache, half);
    for (size_t i = 0; i < N; i++) {
        bool is = holds(cache, i, i % 7);
        assert_true(is || !there); /* the oldest ones went */
        there += is;
    }
    assert_in_range(there, N / 2, N - 1);
    for (size_t i = 0; i < N; i++)
        take(cache, i, i % 7, 16);
    for (size_t i = 0; i < N; i++)
        assert_true(holds(cache, i, i % 7));
    dcp_cache_free(cache);
}

/* Against a list: of any sizes, in bounded memory. */
static void any_order(void **state)
{
    (void)state;
    enum { MOST = 20000, UNITS = 50, BLOCKS = 3 };
    struct dcp_cache *cache = dcp_cache_new(MOST);
    uint64_t seed = 5, clock = 0, used[UNITS][BLOCKS] = { { 0 } };
    size_t sizes[UNITS];

    assert_non_null(cache);
    for (int u = 0; u < UNITS; u++)
        sizes[u] = 1 + (size_t)acts_pick(&seed, 3000);
    for (int i = 0; i < 20000; i++) {
        size_t unit = (size_t)acts_pick(&seed, UNITS), newer = 0;
        uint64_t block = (uint64_t)acts_pick(&seed, BLOCKS);
        for (size_t u = 0; u < UNITS; u++)
            for (size_t b = 0; b < BLOCKS; b++)
                newer += used[u][b] > used[unit][block] ? sizes[u] + 100 : 0;
        bool there = take(cache, unit, block, sizes[unit]);
        if (used[unit][block] && newer + sizes[unit] + 100 <= MOST)
            assert_true(there);
        if (!used[unit][block] || newer + sizes[unit] > 2 * MOST)
            assert_false(there);
        used[unit][block] = ++clock;
    }
    dcp_cache_free(cache);
}

enum { THREADS = 4, ROUNDS = 3000, SHARED = 64, BYTES = 500 };

struct crowd {
    struct dcp_cache *cache;
    int64_t fails_of; /* one of so many fillings fails; 0: none */
    _Atomic int n_filled[SHARED], n_wrong, n_begun;
};

/* Reads blocks as others do, and looks whether they are what was filled. */
static void *read_many(void *arg)
{
    struct crowd *crowd = arg;
    uint64_t seed = (uint64_t)atomic_fetch_add(&crowd->n_begun, 1) + 1;

    for (int i = 0; i < ROUNDS; i++) {
        size_t unit = (size_t)acts_pick(&seed, SHARED);
        bool fill, good = true;
        struct dcp_cached *cached = dcp_cache_take(crowd->cache, unit, 0, BYTES, &fill);
        if (fill) {
            good = !crowd->fails_of || acts_pick(&seed, crowd->fails_of);
            memset(dcp_cached_data(cached), good ? (int)unit : 255, BYTES);
            if (!acts_pick(&seed, 16))
                sched_yield();
            crowd->n_filled[unit]++;
        }
        int wrong = 0;
        for (size_t b = 0; b < BYTES && good; b++)
            wrong += dcp_cached_data(cached)[b] != unit;
        crowd->n_wrong += wrong;
        dcp_cache_give(crowd->cache, cached, good);
    }
    return NULL;
}

static void run_crowd(struct crowd *crowd, uint64_t most_bytes)
{
    pthread_t threads[THREADS];

    crowd->cache = dcp_cache_new(most_bytes);
    assert_non_null(crowd->cache);
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, read_many, crowd), 0);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    dcp_cache_free(crowd->cache);
    assert_int_equal(crowd->n_wrong, 0);
}

/* Each block is read by one of them; in little memory, or when reading fails, again. */
static void many_threads_read_a_block_once(void **state)
{
    (void)state;
    struct crowd all = { 0 }, some = { 0 }, unlucky = { .fails_of = 3 };

    run_crowd(&all, 1 << 20);
    for (size_t i = 0; i < SHARED; i++)
        assert_int_equal(all.n_filled[i], 1);
    run_crowd(&some, 8 * 600);
    run_crowd(&unlucky, 8 * 600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_used_last_stays),
        cmocka_unit_test(what_was_not_read_is_not_there),
        cmocka_unit_test(what_is_held_stays),
        cmocka_unit_test(small_ones_are_many),
        cmocka_unit_test(any_order),
        cmocka_unit_test(many_threads_read_a_block_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
