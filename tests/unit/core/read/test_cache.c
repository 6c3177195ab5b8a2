/* The cache of blocks: what was used last is there, in no more memory than was given. */
#include "core/read/cache.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void keep(struct dcp_cache *cache, size_t unit, uint64_t block, size_t n)
{
    unsigned char *room = dcp_cache_room(cache, n);

    assert_non_null(room);
    memset(room, (int)(unit + block), n);
    dcp_cache_keep(cache, unit, block);
}

static bool holds(struct dcp_cache *cache, size_t unit, uint64_t block)
{
    const unsigned char *data = dcp_cache_find(cache, unit, block);

    if (data)
        assert_int_equal(*data, (unsigned char)(unit + block));
    return data;
}

static void what_was_used_last_stays(void **state)
{
    (void)state;
    struct dcp_cache *cache = dcp_cache_new(10 * 1100);

    assert_non_null(cache);
    for (size_t i = 0; i < 10; i++)
        keep(cache, i, 7, 1000);
    assert_true(holds(cache, 0, 7));
    keep(cache, 10, 7, 1000); /* for which the second goes */
    assert_true(holds(cache, 0, 7));
    assert_false(holds(cache, 1, 7));
    assert_false(holds(cache, 0, 8));
    keep(cache, 11, 7, 10 * 1000); /* all but that */
    for (size_t i = 0; i < 11; i++)
        assert_false(holds(cache, i, 7));
    assert_true(holds(cache, 11, 7));
    dcp_cache_free(cache);
}

static void what_was_not_read_is_not_there(void **state)
{
    (void)state;
    struct dcp_cache *cache = dcp_cache_new(5000);

    assert_non_null(cache);
    assert_non_null(dcp_cache_room(cache, 1000)); /* which could not be read */
    keep(cache, 1, 1, 1000);
    assert_non_null(dcp_cache_room(cache, 4000)); /* and took the other's place */
    assert_false(holds(cache, 1, 1));
    dcp_cache_free(cache);
    dcp_cache_free(NULL);
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
        bool there = holds(cache, unit, block);
        if (used[unit][block] && newer + sizes[unit] + 100 <= MOST)
            assert_true(there);
        if (!used[unit][block] || newer + sizes[unit] > 2 * MOST)
            assert_false(there);
        if (!there)
            keep(cache, unit, block, sizes[unit]);
        used[unit][block] = ++clock;
    }
    dcp_cache_free(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_used_last_stays),
        cmocka_unit_test(what_was_not_read_is_not_there),
        cmocka_unit_test(any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
