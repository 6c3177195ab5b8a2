/* labels: tsan */
/* A rank dies at every point of a save or a load: every other rank says which, soon, and
 * the steps that were promised are complete. */
#include "lib/acts.h"
#include "lib/slower.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

#define WORLD_SIZE 4
#define LONG_MS 120000 /* nobody waits as long as this: the dead are known at once */

/* All that live return COMM and name the dead rank. */
static void check_named(const struct acts *acts, int rc)
{
    assert_int_equal(rc, DCP_E_COMM);
    assert_true(acts->agreed);
    for (int r = 0; r < WORLD_SIZE; r++)
        if (r != acts->dies) {
            assert_int_equal(acts->errs[r].rank, acts->dies);
            assert_true(acts->errs[r].message[0]);
        }
}

static void check_newest(const struct dcp_store *store, int64_t least, int64_t most)
{
    struct acts acts = { .store = store,
                         .layout = "dim0",
                         .world_size = 1,
                         .step = -1,
                         .salt = 2,
                         .small = true };

    assert_int_equal(acts_load(&acts), 0);
    assert_in_range(acts.loaded_step, least, most);
    if (acts.loaded_step != 2) {
        acts.salt = (unsigned)acts.loaded_step;
        assert_int_equal(acts_load(&acts), 0);
    }
    assert_int_equal(acts.wrong, 0);
}

/* False when the rank outlived the save. */
static bool die_in_save(int rank, int at, const struct dcp_save_options *more)
{
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = "zero3",
                         .world_size = WORLD_SIZE,
                         .step = 1,
                         .salt = 1,
                         .small = true,
                         .more = more,
                         .timeout_ms = LONG_MS };

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(acts_save(&acts), 0);
    acts.step = acts.salt = 2;
    acts.dies = rank;
    acts.dies_at = at;
    int rc = acts_save(&acts);
    bool died = acts.n_calls >= at;
    if (died)
        check_named(&acts, rc);
    else
        assert_int_equal(rc, 0);
    check_newest(&store, died ? 1 : 2, 2);
    /* The next save, of those who are left, needs no help. */
    acts.dies_at = 0;
    acts.world_size = WORLD_SIZE - 1;
    acts.step = acts.salt = 3;
    assert_int_equal(acts_save(&acts), 0);
    check_newest(&store, 3, 3);
    dcp_store_free(&store);
    return died;
}

static void save_each(const struct dcp_save_options *more)
{
    for (int rank = 0; rank < WORLD_SIZE; rank++) {
        int at = SLOWER > 1 ? 1 + rank : 1;
        while (die_in_save(rank, at, more))
            at += SLOWER > 1 ? SLOWER : at < 12 || rank % 2 ? 1 : 3;
        assert_true(at > 8);
    }
}

static void saves(void **state)
{
    (void)state;
    save_each(NULL);
}

static void saves_with_parity(void **state)
{
    (void)state;
    save_each(&(struct dcp_save_options){ .parity = 1 });
}

static void loads(void **state)
{
    (void)state;
    struct dcp_store store;
    struct acts acts = { .store = &store,
                         .layout = "zero3",
                         .world_size = WORLD_SIZE,
                         .step = 1,
                         .salt = 1,
                         .small = true };

    assert_int_equal(dcp_store_mem(&store, NULL), 0);
    assert_int_equal(acts_save(&acts), 0);
    acts.timeout_ms = LONG_MS;
    acts.layout = "dim0";
    for (acts.dies = 0; acts.dies < WORLD_SIZE; acts.dies++) {
        acts.dies_at = 0;
        do {
            acts.dies_at++;
            int rc = acts_load(&acts);
            if (acts.n_calls >= acts.dies_at)
                check_named(&acts, rc);
            else
                assert_int_equal(rc, 0);
        } while (acts.n_calls >= acts.dies_at);
        assert_true(acts.dies_at > 4);
    }
    dcp_store_free(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves),
        cmocka_unit_test(saves_with_parity),
        cmocka_unit_test(loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
