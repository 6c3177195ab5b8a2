/* labels: tsan */
#include "lib/check_coll.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* A call that others never join: aborted, it writes once more before it ends. */
struct lonely {
    atomic_bool begun, aborted;
};

static int lonely_all_gather(void *self, const void *in, const int64_t *counts,
                             size_t item_bytes, void *out, struct dcp_error *err)
{
    struct lonely *l = self;
    (void)in;
    l->begun = true;
    while (!l->aborted)
        usleep(100);
    usleep(2000);
    memset(out, 1, (size_t)counts[0] * item_bytes);
    return dcp_error_set(err, DCP_E_COMM, "nobody came");
}

static void lonely_abort(void *self)
{
    ((struct lonely *)self)->aborted = true;
}

/* Nothing is written any more when an abort returns: what follows frees arrays. */
static void abort_waits_for_the_thread(void **state)
{
    (void)state;
    static const struct coll_ops ops = { .all_gather = lonely_all_gather,
                                         .abort = lonely_abort };
    struct lonely lonely = { false };
    struct coll coll = { .ops = &ops, .self = &lonely, .world_size = 1 };
    const int64_t counts[] = { 8 };
    char in[8] = "", *out = calloc(8, 1);
    uint64_t call;
    assert_int_equal(coll_beside(&coll, NULL), 0);
    assert_int_equal(coll_all_gather_begin(&coll, in, counts, 1, out, &call, NULL), 0);
    while (!lonely.begun)
        usleep(100);
    coll_abort(&coll);
    assert_int_equal(out[7], 1);
    free(out);
    assert_int_equal(coll_wait(&coll, call, NULL), DCP_E_COMM);
    coll_free(&coll);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(ranks_as_threads),
        cmocka_unit_test(abort_waits_for_the_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
