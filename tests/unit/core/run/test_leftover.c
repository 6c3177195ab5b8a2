/* What cannot be removed is in nobody's way: saves, replacements and retention go on
 * beside it. */
#include "core/run/leftover.h"
#include "core/run/publish.h"
#include "core/run/steps.h"
#include "lib/acts.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

/* A store in memory that cannot remove some names: a file system on which others hold
 * them. */
struct stubborn {
    struct dcp_store_forward forward;
    struct dcp_store memory, store;
    const char *held; /* no name with this in it goes */
    int refused;
    struct dcp_store dir; /* in place of the memory, where locks are to be real */
    int filled;
};

static struct stubborn held;

static int refuse(void *self, const char *name, struct dcp_error *err)
{
    const struct dcp_store *memory = &held.memory;
    bool is_dir;
    uint64_t size;

    (void)self;
    if (!strstr(name, held.held) ||
        memory->ops->stat(memory->self, name, &is_dir, &size, NULL))
        return memory->ops->remove(memory->self, name, err);
    held.refused++;
    return dcp_error_set(err, DCP_E_IO, "cannot remove '%s': it is held", name);
}

static int setup(void **state)
{
    if (dcp_store_mem(&held.memory, NULL))
        return -1;
    dcp_store_forward(&held.store, &held.forward, &held.memory);
    held.forward.ops.remove = refuse;
    held.held = "none";
    held.refused = 0;
    *state = &held.store;
    return 0;
}

static int teardown(void **state)
{
    dcp_store_free(*state);
    dcp_store_free(&held.memory);
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

/* Many at once, who all want one name: nobody gets, or loses, the folder of another. */
enum { MAKERS = 6, ROUNDS = 100 };

static void *make_and_check(void *arg)
{
    const struct dcp_store *store = arg;
    struct dcp_publication publish;
    intptr_t wrong = 0;
    bool is_dir;
    uint64_t size;

    for (int i = 0; i < ROUNDS; i++) {
        if (dcp_publish_begin(&publish, store, "x", false, NULL)) {
            wrong++;
            continue;
        }
        char mine[64];
        snprintf(mine, sizeof mine, "%smine", publish.prefix);
        wrong += dcp_store_write_file(store, mine, "1", 1, NULL) != 0;
        for (int look = 0; look < 10; look++)
            wrong += store->ops->stat(store->self, mine, &is_dir, &size, NULL) != 0;
        dcp_publish_fini(&publish);
    }
    return (void *)wrong;
}

static void one_folder_one_maker(void **state)
{
    char path[256];
    struct dcp_store dir;
    struct dcp_store_entry *entries;
    pthread_t threads[MAKERS];
    void *wrong;
    size_t n;

    (void)state;
    acts_folder(path);
    assert_int_equal(dcp_store_dir(&dir, path, false, NULL), 0);
    for (int i = 0; i < MAKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_and_check, &dir), 0);
    for (int i = 0; i < MAKERS; i++) {
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    struct dcp_publication publish; /* the last to come takes away what is left */
    assert_int_equal(dcp_publish_begin(&publish, &dir, "x", false, NULL), 0);
    dcp_publish_fini(&publish);
    assert_int_equal(dir.ops->list(dir.self, "", &entries, &n, NULL), 0);
    dcp_store_list_free(entries, n);
    assert_in_range(n, 0, MAKERS);
    dcp_store_free(&dir);
    acts_folder_remove(path);
}

/* Another takes the new folder for a leftover before it is held, makes one of that name,
 * fills it and lets go. */
static int hold_late(void *self, const char *name, bool exclusive,
                     struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *dir = &held.dir;

    (void)self;
    if (!held.filled && exists(dir, name)) {
        held.filled++;
        dcp_store_write_file(dir, ".tmp-x/theirs", "1", 1, NULL);
    }
    return dir->ops->hold(dir->self, name, exclusive, out, err);
}

static void a_folder_that_was_made_anew(void **state)
{
    char path[256];
    struct dcp_store_forward forward;
    struct dcp_store late;
    struct dcp_publication publish;

    (void)state;
    acts_folder(path);
    assert_int_equal(dcp_store_dir(&held.dir, path, false, NULL), 0);
    dcp_store_forward(&late, &forward, &held.dir);
    forward.ops.hold = hold_late;
    held.filled = 0;
    assert_int_equal(dcp_publish_begin(&publish, &late, "x", false, NULL), 0);
    assert_int_equal(held.filled, 1);
    assert_string_equal(publish.tmp, ".tmp-x");
    assert_false(exists(&late, ".tmp-x/theirs"));
    dcp_publish_fini(&publish);
    dcp_store_free(&late);
    dcp_store_free(&held.dir);
    acts_folder_remove(path);
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
                             .world_size = 2,
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
    assert_int_equal(dcp_prune(store, &(struct dcp_retention){ .keep = 1 }, NULL, &err),
                     DCP_E_IO); /* told, and done */
    assert_non_null(strstr(err.message, ".trash-step-00000001"));
    assert_false(exists(store, "step-00000005"));
    held.held = "none";
    size_t removed;
    assert_int_equal(
        dcp_prune(store, &(struct dcp_retention){ .keep = 1 }, &removed, NULL), 0);
    assert_int_equal(removed, 5);
    assert_false(exists(store, ".trash-step-00000001"));
}

/* A step of a number whose temporary and trash folders are both held. */
static void the_same_number_again(void **state)
{
    struct dcp_store *store = *state;
    struct acts acts = {
        .store = store, .layout = "zero3", .world_size = 2, .step = 1, .salt = 1
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
    const struct dcp_store_ops all = held.forward.ops;
    struct dcp_publication publish;
    struct dcp_error err = { 0 };

    for (int can_exchange = 0; can_exchange < 2; can_exchange++) {
        make(store, can_exchange ? "b" : "a");
        held.forward.ops.exchange = can_exchange ? all.exchange : NULL;
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
        EACH(names),       EACH(one_folder_one_maker),  EACH(a_folder_that_was_made_anew),
        EACH(saves_go_on), EACH(the_same_number_again), EACH(replacements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
