/* labels: tsan */
#include "lib/check_coll.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>

static void one_rank(void **state)
{
    (void)state;
    struct coll coll;
    coll_self(&coll);
    assert_int_equal(check_coll(&coll, 1000), 0);
    coll_free(&coll);
}

struct rank {
    struct coll *coll;
    int failed;
};

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    rank->failed = check_coll(rank->coll, 3001);
    if (coll_beside(rank->coll, NULL))
        rank->failed++;
    rank->failed += check_coll(rank->coll, 3001);
    coll_free(rank->coll);
    return NULL;
}

static void ranks_as_threads(void **state)
{
    (void)state;
    static const int world_sizes[] = { 1, 2, 3, 5, 7, 8, 16 };
    for (size_t w = 0; w < sizeof world_sizes / sizeof *world_sizes; w++) {
        struct coll colls[16];
        struct rank ranks[16];
        pthread_t threads[16];
        assert_int_equal(coll_threads(colls, world_sizes[w], NULL), 0);
        for (int r = 0; r < world_sizes[w]; r++) {
            ranks[r] = (struct rank){ .coll = &colls[r] };
            assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
        }
        for (int r = 0; r < world_sizes[w]; r++) {
            pthread_join(threads[r], NULL);
            assert_int_equal(ranks[r].failed, 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(ranks_as_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
