/* What somebody does to a step while its weights are written has effect: it stays. */
#include "base/mem.h"
#include "core/run/pin.h"
#include "core/run/steps.h"
#include "core/run/thin.h"
#include "core/write/weights.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

struct run {
    char folder[256];
    struct dcp_store store;
};

static int save(const struct dcp_store *store, int64_t step, unsigned salt)
{
    struct acts acts = { .store = store,
                         .layout = "zero3",
                         .world_size = 2,
                         .step = step,
                         .salt = salt,
                         .small = true };

    return acts_save(&acts);
}

static int setup(void **state)
{
    struct run *run = calloc(1, sizeof *run);

    assert_non_null(run);
    acts_folder(run->folder);
    *state = run;
    assert_int_equal(dcp_store_delta_dir(&run->store, run->folder, false, NULL), 0);
    for (unsigned step = 1; step <= 2; step++)
        assert_int_equal(save(&run->store, step, step), 0);
    return 0;
}

static int teardown(void **state)
{
    struct run *run = *state;

    dcp_store_free(&run->store);
    acts_folder_remove(run->folder);
    free(run);
    return 0;
}

/* What happens while the files are made; and what ends afterwards. */
static int (*meanwhile)(const struct dcp_store *store, const char *step);
static struct dcp_store_file *held;

static int make(const struct dcp_store *store, const char *step, const char *prefix,
                struct dcp_error *err)
{
    int rc = dcp_write_weights(store, step, prefix, err);

    if (rc || !meanwhile || !meanwhile(store, step))
        return rc;
    return dcp_error_set(err, DCP_E_INTERRUPTED, "what happens meanwhile fails");
}

/* Of step 1. The folder has what it had before, but for what `meanwhile` put there. */
static enum dcp_stay thin(struct run *run,
                          int (*act)(const struct dcp_store *store, const char *step))
{
    struct dcp_step *steps;
    struct dcp_store_entry *entries;
    struct dcp_error err = { 0 };
    size_t n;

    assert_int_equal(dcp_steps(&run->store, &steps, &n, NULL, NULL), 0);
    assert_int_equal(n, 2);
    meanwhile = act;
    enum dcp_stay stay = dcp_thin(&run->store, &steps[1], make, &err);
    free(steps);
    dcp_unpin(&run->store, &held);
    assert_int_equal(stay == DCP_STAYS_STUCK, err.code != 0);
    assert_int_equal(dcp_steps(&run->store, &steps, &n, NULL, NULL), 0);
    assert_int_equal(n, 2);
    assert_true(steps[1].complete);
    assert_int_equal(steps[1].weights_only, stay == DCP_GOES);
    free(steps);
    assert_int_equal(run->store.ops->list(run->store.self, "", &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_not_equal(strncmp(entries[i].name, ".t", 2), 0);
    dcp_store_list_free(entries, n);
    return stay;
}

static int reads(const struct dcp_store *store, const char *step)
{
    return dcp_pin(store, step, &held, NULL);
}

static int holds(const struct dcp_store *store, const char *step)
{
    return dcp_marks_hold(store, step, &held, NULL);
}

static int set_pin(void *self, struct dcp_marks *marks, struct dcp_error *err)
{
    (void)self, (void)err;
    marks->pinned = !marks->pinned;
    return DCP_OK;
}

static int pins(const struct dcp_store *store, const char *step)
{
    struct dcp_marks marks;

    return dcp_marks_change(store, step, set_pin, NULL, &marks, NULL);
}

static int signs(const struct dcp_store *store, const char *step)
{
    char name[96];

    snprintf(name, sizeof name, "%s/manifest.json.sig", step);
    return dcp_store_write_file(store, name, "x", 1, NULL);
}

/* Another step of that number, as a reshard over it gives. */
static int replaces(const struct dcp_store *store, const char *step)
{
    DCP_TRY(store->ops->remove(store->self, step, NULL));
    return save(store, 1, 5);
}

static int fails(const struct dcp_store *store, const char *step)
{
    (void)store, (void)step;
    return DCP_E_INTERRUPTED;
}

static void who_comes_meanwhile_finds_the_step_as_it_was(void **state)
{
    struct run *run = *state;

    assert_int_equal(thin(run, reads), DCP_STAYS_READ);
    assert_int_equal(thin(run, holds), DCP_STAYS_READ);
    assert_int_equal(thin(run, pins), DCP_STAYS_MARKED);
    assert_int_equal(thin(run, NULL), DCP_STAYS_MARKED);
    assert_int_equal(pins(&run->store, "step-00000001"), 0);
    assert_int_equal(thin(run, signs), DCP_STAYS_SIGNED);
    assert_int_equal(thin(run, NULL), DCP_STAYS_SIGNED);
    assert_int_equal(
        run->store.ops->remove(run->store.self, "step-00000001/manifest.json.sig", NULL),
        0);
    assert_int_equal(thin(run, NULL), DCP_GOES);
}

static int makes_delta(const struct dcp_store *store, const char *step)
{
    struct dcp_location base, target;
    struct dcp_delta_result result;
    char path[400];

    snprintf(path, sizeof path, "%s/%s", store->root, step);
    DCP_TRY(dcp_location_open(path, &base, NULL));
    snprintf(path, sizeof path, "%s/step-00000002", store->root);
    int rc = dcp_location_open(path, &target, NULL);
    if (!rc) {
        snprintf(path, sizeof path, "%s/step-00000002.aside", store->root);
        rc = dcp_delta_make(&base, &target, path,
                            &(struct dcp_delta_options){ .threads = 1 }, &result, NULL);
        dcp_location_close(&target);
    }
    dcp_location_close(&base);
    return rc;
}

static void nor_does_the_base_of_a_delta_that_is_made_meanwhile_go(void **state)
{
    struct run *run = *state;

    assert_int_equal(thin(run, makes_delta), DCP_STAYS_BASE);
    assert_int_equal(thin(run, NULL), DCP_STAYS_BASE);
}

static void another_step_is_not_taken_for_it(void **state)
{
    struct run *run = *state;

    assert_int_equal(thin(run, replaces), DCP_STAYS_READ);
    assert_int_equal(thin(run, NULL), DCP_GOES);
}

static int no_exchange(void *self, const char *name, const char *other,
                       struct dcp_error *err)
{
    (void)self;
    return dcp_error_set(err, DCP_E_UNSUPPORTED, "no '%s' for '%s'", name, other);
}

static void without_an_exchange_of_names_nothing_is_tried(void **state)
{
    struct run *run = *state, other = *run;
    struct dcp_store_forward wrapper;

    dcp_store_forward(&other.store, &wrapper, &run->store);
    wrapper.ops.exchange = no_exchange;
    assert_int_equal(thin(&other, reads), DCP_STAYS_STUCK);
    assert_null(held); /* its weights were not written */
    wrapper.ops.exchange = NULL;
    assert_int_equal(thin(&other, NULL), DCP_STAYS_STUCK);
    assert_int_equal(thin(run, fails), DCP_STAYS_STUCK);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        EACH(who_comes_meanwhile_finds_the_step_as_it_was),
        EACH(nor_does_the_base_of_a_delta_that_is_made_meanwhile_go),
        EACH(another_step_is_not_taken_for_it),
        EACH(without_an_exchange_of_names_nothing_is_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
