/* What cannot be removed is in nobody's way: saves, replacements and retention go on
 * beside it. */
#include "core/leftover.h"
#include "core/publish.h"
#include "core/steps.h"
#include "lib/acts.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* A store in memory that cannot remove some names: a file system on which others hold
 * them. */
struct stubborn {
    struct dcp_store store;
    struct dcp_store_ops ops;
    const struct dcp_store_ops *real;
    const char *held; /* no name with this in it goes */
    int refused;
};

static struct stubborn held;

static int refuse(void *self, const char *name, struct dcp_error *err)
{
    bool is_dir;
    uint64_t size;

    if (!strstr(name, held.held) || held.real->stat(self, name, &is_dir, &size, NULL))
        return held.real->remove(self, name, err);
    held.refused++;
    return dcp_error_set(err, DCP_E_IO, "cannot remove '%s': it is held", name);
}

static int setup(void **state)
{
    if (dcp_store_mem(&held.store, NULL))
        return -1;
    held.real = held.store.ops;
    held.ops = *held.real;
    held.ops.remove = refuse;
    held.held = "none";
    held.refused = 0;
    held.store.ops = &held.ops;
    *state = &held.store;
    return 0;
}

static int teardown(void **state)
{
    dcp_store_free(*state);
    return 0;
}

static bool exists(const struct dcp_store *store, const char *name)
{
    bool is_dir;
    uint64_t size;

    return store->ops->stat(store->self, name, &is_dir, &size, NULL) == 0;
}

static void make(const struct dcp_store *store, const char *folder)
{
    assert_int_equal(store->ops->make_dir(store->self, folder, NULL), 0);
}

static void names(void **state)
{
    struct dcp_store *store = *state;
    char *name;

    make(store, ".tmp-x");
    assert_int_equal(dcp_leftover_clear(store, ".tmp-", "x", &name, NULL), 0);
    assert_string_equal(name, ".tmp-x");
    assert_false(exists(store, name));
    free(name);

    held.held = ".tmp-x";
    make(store, ".tmp-x");
    make(store, ".tmp-x~2");
    assert_int_equal(dcp_leftover_clear(store, ".tmp-", "x", &name, NULL), 0);
    assert_string_equal(name, ".tmp-x~3");
    free(name);
    held.held = ".tmp-x~3"; /* those before it can be removed again */
    assert_int_equal(dcp_leftover_clear(store, ".tmp-", "x", &name, NULL), 0);
    assert_string_equal(name, ".tmp-x");
    free(name);
}

static void saves_go_on(void **state)
{
    struct dcp_store *store = *state;
    const struct dcp_save_options keep = { .keep = 2 };
    struct dcp_step *steps;
    size_t n;

    for (int step = 1; step <= 6; step++) {
        struct acts acts = { .store = store,
                             .layout = "zero3",
                             .world = 2,
                             .step = step,
                             .salt = (unsigned)step,
                             .more = &keep };
        held.held = step == 3 ? "step-00000001" : "-step-"; /* then whatever is old */
        assert_int_equal(acts_save(&acts), 0);
        assert_string_equal(acts.err.message, "");
    }
    assert_true(held.refused > 3);
    assert_true(exists(store, ".trash-step-00000001/manifest.json"));
    assert_int_equal(dcp_steps(store, &steps, &n, NULL, NULL), 0);
    assert_int_equal(n, 2);
    assert_int_equal(steps[0].step, 6);
    free(steps);

    struct dcp_error err = { 0 };
    assert_int_equal(dcp_prune(store, 1, 0, NULL, &err), DCP_E_IO); /* told, and done */
    assert_non_null(strstr(err.message, ".trash-step-00000001"));
    assert_false(exists(store, "step-00000005"));
    held.held = "none";
    size_t removed;
    assert_int_equal(dcp_prune(store, 1, 0, &removed, NULL), 0);
    assert_int_equal(removed, 5);
    assert_false(exists(store, ".trash-step-00000001"));
}

/* A step of a number whose temporary and trash folders are both held. */
static void the_same_number_again(void **state)
{
    struct dcp_store *store = *state;
    struct acts acts = {
        .store = store, .layout = "zero3", .world = 2, .step = 1, .salt = 1
    };

    make(store, ".tmp-step-00000001");
    make(store, ".trash-step-00000001");
    held.held = "-step-00000001";
    assert_int_equal(acts_save(&acts), 0);
    acts.step = acts.salt = 2;
    acts.more = &(const struct dcp_save_options){ .keep = 1 };
    assert_int_equal(acts_save(&acts), 0);
    assert_false(exists(store, "step-00000001"));
    assert_true(exists(store, ".trash-step-00000001~2"));
    acts.step = -1;
    acts.salt = 2;
    assert_int_equal(acts_load(&acts), 0);
    assert_int_equal(acts.loaded_step, 2);
    assert_int_equal(acts.wrong, 0);
}

static void replacements(void **state)
{
    struct dcp_store *store = *state;
    struct dcp_publish publish;
    struct dcp_error err = { 0 };

    for (int can_exchange = 0; can_exchange < 2; can_exchange++) {
        make(store, can_exchange ? "b" : "a");
        held.ops.exchange = can_exchange ? held.real->exchange : NULL;
        for (int i = 0; i < 3; i++) {
            err = (struct dcp_error){ 0 };
            held.held = can_exchange ? "-b" : "-a";
            assert_int_equal(
                dcp_publish_begin(&publish, store, can_exchange ? "b" : "a", true, NULL),
                0);
            assert_int_equal(dcp_publish_commit(&publish, NULL, true, NULL), 0);
            assert_int_equal(dcp_publish_clear(&publish, &err), DCP_E_IO);
            assert_non_null(strstr(err.message, "it is held"));
            dcp_publish_fini(&publish);
        }
    }
    assert_true(exists(store, ".trash-a~3"));
    assert_true(exists(store, ".tmp-b~3"));
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        EACH(names),
        EACH(saves_go_on),
        EACH(the_same_number_again),
        EACH(replacements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
