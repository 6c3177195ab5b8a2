/* Readers pin the step they read: retention leaves it, for a while, and a step that went
 * all the same is no corruption. */
#include "base/clock.h"
#include "core/run/pin.h"
#include "lib/acts.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>
#include <dcp/dcp.h>

struct run {
    char folder[256];
    struct dcp_store store;
};

static int setup(void **state)
{
    struct run *run = calloc(1, sizeof *run);

    assert_non_null(run);
    acts_folder(run->folder);
    *state = run;
    return dcp_store_dir(&run->store, run->folder, false, NULL);
}

static int teardown(void **state)
{
    struct run *run = *state;

    dcp_store_free(&run->store);
    acts_folder_remove(run->folder);
    free(run);
    return 0;
}

static void save(const struct run *run, int64_t step)
{
    struct acts acts = { .store = &run->store,
                         .layout = "zero3",
                         .world_size = 1,
                         .step = step,
                         .salt = (unsigned)step,
                         .small = true };

    assert_int_equal(acts_save(&acts), 0);
}

/* The numbers of the steps that are there, newest first: "3 2 1". */
static const char *steps(const struct dcp_store *store)
{
    static char text[256];
    struct dcp_step *list;
    size_t n, at = 0;

    assert_int_equal(dcp_steps(store, &list, &n, NULL, NULL), 0);
    text[0] = '\0';
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%lld", i ? " " : "",
                               (long long)list[i].step);
    free(list);
    return text;
}

static size_t prune(const struct run *run, double timeout_s)
{
    const struct dcp_retention retention = { .keep = 1, .pin_timeout_s = timeout_s };
    size_t removed = 99;

    assert_int_equal(dcp_prune(&run->store, &retention, &removed, NULL), 0);
    return removed;
}

static bool is_due(const struct run *run, int64_t step)
{
    char name[64];
    bool is_dir;
    uint64_t size;

    snprintf(name, sizeof name, ".due-step-%08lld", (long long)step);
    return !run->store.ops->stat(run->store.self, name, &is_dir, &size, NULL);
}

static void set_due(const struct run *run, int64_t step, int64_t since)
{
    char name[64], text[32];

    snprintf(name, sizeof name, ".due-step-%08lld", (long long)step);
    snprintf(text, sizeof text, "%lld\n", (long long)since);
    assert_int_equal(
        run->store.ops->replace(run->store.self, name, text, strlen(text), NULL), 0);
}

static void count_read(void *self, const struct dcp_step *step, enum dcp_stay stay)
{
    (void)step;
    *(int *)self += stay == DCP_STAYS_READ;
}

static void a_pinned_step_stays(void **state)
{
    const struct run *run = *state;
    struct dcp_store_file *pin, *second;
    int n_read = 0;
    const struct dcp_retention look = {
        .keep = 1, .dry_run = true, .judged = count_read, .self = &n_read
    };

    for (int64_t step = 1; step <= 3; step++)
        save(run, step);
    assert_int_equal(dcp_pin(&run->store, "step-00000001", &pin, NULL), 0);
    assert_int_equal(dcp_pin(&run->store, "step-00000001", &second, NULL), 0);
    assert_non_null(pin);
    assert_int_equal(dcp_prune(&run->store, &look, NULL, NULL), 0);
    assert_int_equal(n_read, 1);
    assert_false(is_due(run, 1)); /* a dry run leaves nothing */
    assert_int_equal(prune(run, 0), 1);
    assert_string_equal(steps(&run->store), "3 1");
    assert_true(is_due(run, 1));
    dcp_unpin(&run->store, &second);
    assert_int_equal(prune(run, 0), 0);
    dcp_unpin(&run->store, &pin);
    assert_int_equal(prune(run, 0), 1);
    assert_string_equal(steps(&run->store), "3");
    assert_false(is_due(run, 1));
    assert_int_equal(dcp_pin(&run->store, "step-00000001", &pin, NULL), DCP_E_NOT_FOUND);
    assert_null(pin);
}

/* A reader that hangs does not fill the disk. */
static void retention_does_not_wait_for_ever(void **state)
{
    const struct run *run = *state;
    struct dcp_store_file *pin;
    int64_t now = (int64_t)time(NULL);

    save(run, 1);
    save(run, 2);
    assert_int_equal(dcp_pin(&run->store, "step-00000001", &pin, NULL), 0);
    assert_int_equal(prune(run, 0), 0);
    set_due(run, 1, now - 3000);
    assert_int_equal(prune(run, 0), 0);
    set_due(run, 1, now + 3000); /* the clock was set back */
    assert_int_equal(prune(run, 1000), 0);
    set_due(run, 1, now - 3000);
    assert_int_equal(prune(run, 2000), 1);
    assert_string_equal(steps(&run->store), "2");
    assert_false(is_due(run, 1));
    dcp_unpin(&run->store, &pin);
    save(run, 3);
    assert_int_equal(dcp_pin(&run->store, "step-00000002", &pin, NULL), 0);
    assert_int_equal(prune(run, -1), 1);
    dcp_unpin(&run->store, &pin);
}

/* The time of a step that stays after all begins anew when it is due again. */
static void what_stays_is_not_due(void **state)
{
    const struct run *run = *state;
    const struct dcp_retention all = { .keep = 2 };
    struct dcp_store_file *pin;
    int64_t now = (int64_t)time(NULL);

    save(run, 1);
    save(run, 2);
    assert_int_equal(dcp_pin(&run->store, "step-00000001", &pin, NULL), 0);
    assert_int_equal(prune(run, 0), 0);
    set_due(run, 1, now - 5000);
    const struct dcp_retention look = { .keep = 2, .dry_run = true };
    assert_int_equal(dcp_prune(&run->store, &look, NULL, NULL), 0);
    assert_true(is_due(run, 1)); /* a dry run changes nothing */
    assert_int_equal(dcp_prune(&run->store, &all, NULL, NULL), 0);
    assert_false(is_due(run, 1));
    assert_int_equal(prune(run, 0), 0);
    dcp_unpin(&run->store, &pin);
}

struct holder {
    const struct run *run;
    struct dcp_store_file *held;
};

static void *let_go(void *arg)
{
    struct holder *holder = arg;

    dcp_clock_sleep_us(20000);
    dcp_unpin(&holder->run->store, &holder->held);
    return NULL;
}

/* Who asks whether a step is read keeps no reader from pinning it. */
static void a_look_costs_no_pin(void **state)
{
    struct holder holder = { .run = *state };
    const struct dcp_store *store = &holder.run->store;
    struct dcp_store_file *pin;
    pthread_t thread;

    save(*state, 1);
    assert_int_equal(store->ops->hold(store->self, "step-00000001/manifest.json", true,
                                      &holder.held, NULL),
                     0);
    assert_int_equal(pthread_create(&thread, NULL, let_go, &holder), 0);
    assert_int_equal(dcp_pin(store, "step-00000001", &pin, NULL), 0);
    assert_non_null(pin);
    dcp_unpin(store, &pin);
    pthread_join(thread, NULL);
}

/* What a person names is pinned until it is closed. */
static void locations_are_pinned(void **state)
{
    const struct run *run = *state;
    char path[300];
    struct dcp_location newest, step;

    save(run, 1);
    save(run, 2);
    snprintf(path, sizeof path, "%s/step-00000001", run->folder);
    assert_int_equal(dcp_location_open(path, &step, NULL), 0);
    assert_int_equal(dcp_location_open(run->folder, &newest, NULL), 0);
    save(run, 3);
    save(run, 4);
    assert_int_equal(prune(run, 0), 1);
    assert_string_equal(steps(&run->store), "4 2 1");
    const struct dcp_source source = dcp_location_plain(&newest);
    assert_int_equal(dcp_verify(&source, NULL, NULL, NULL), 0);
    dcp_location_close(&step);
    dcp_location_close(&newest);
    assert_int_equal(prune(run, 0), 2);
}

/* Reading must be allowed, no more. */
static void readers_need_not_write(void **state)
{
    const struct run *run = *state;
    struct dcp_store_file *pin;
    char path[300];

    save(run, 1);
    save(run, 2);
    snprintf(path, sizeof path, "%s/step-00000001/manifest.json", run->folder);
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(dcp_pin(&run->store, "step-00000001", &pin, NULL), 0);
    assert_non_null(pin);
    assert_int_equal(prune(run, 0), 0);
    dcp_unpin(&run->store, &pin);
}

/* A reshard into a run folder takes no lease; it holds the folder that it makes. */
static void what_is_being_made_stays(void **state)
{
    const struct run *run = *state;
    const struct dcp_store *store = &run->store;
    struct dcp_store_file *held;
    bool is_dir;
    uint64_t size;

    assert_int_equal(store->ops->make_dir(store->self, ".tmp-step-00000009", NULL), 0);
    assert_int_equal(
        store->ops->hold(store->self, ".tmp-step-00000009", false, &held, NULL), 0);
    save(run, 1);
    assert_int_equal(prune(run, 0), 0);
    assert_int_equal(
        store->ops->stat(store->self, ".tmp-step-00000009", &is_dir, &size, NULL), 0);
    dcp_unpin(store, &held);
    assert_int_equal(prune(run, 0), 1);
}

/* --- marks --- */

static int pin_it(void *self, struct dcp_marks *marks, struct dcp_error *err)
{
    (void)err;
    marks->pinned = *(const bool *)self;
    return 0;
}

static int mark(const struct dcp_store *store, const char *step, bool pinned)
{
    struct dcp_marks marks;

    return dcp_marks_change(store, step, pin_it, &pinned, &marks, NULL);
}

/* A store in which things happen while a step is retired or superseded. */
static struct {
    bool marks;                   /* step 1 is pinned before it is locked */
    int n_published, n_unguarded; /* renames of step 1; those while it could be marked */
} meanwhile;

static int hold_meanwhile(void *self, const char *name, bool exclusive,
                          struct dcp_store_file **out, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    if (meanwhile.marks && !strncmp(name, "step-00000001", 13)) {
        meanwhile.marks = false;
        assert_int_equal(mark(inner, "step-00000001", true), 0);
    }
    return inner->ops->hold(inner->self, name, exclusive, out, err);
}

static int publish_meanwhile(void *self, const char *from, const char *to,
                             struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;
    struct dcp_store_file *held = NULL;

    if (!strcmp(from, "step-00000001")) {
        meanwhile.n_published++;
        meanwhile.n_unguarded +=
            inner->ops->hold(inner->self, from, true, &held, NULL) != DCP_E_BUSY;
        dcp_unpin(inner, &held);
    }
    return inner->ops->publish(inner->self, from, to, err);
}

static void no_mark_is_lost_to_retention(void **state)
{
    const struct run *run = *state;
    struct dcp_store_forward wrapper;
    struct dcp_store store;
    const struct dcp_retention retention = { .keep = 1 };
    const struct dcp_context ctx = { .store = &store };
    size_t removed = 99;

    dcp_store_forward(&store, &wrapper, &run->store);
    wrapper.ops.hold = hold_meanwhile;
    wrapper.ops.publish = publish_meanwhile;
    meanwhile.marks = true;
    save(run, 1);
    save(run, 2);
    assert_int_equal(dcp_prune(&store, &retention, &removed, NULL), 0);
    assert_false(meanwhile.marks);
    assert_int_equal(removed, 0);
    assert_string_equal(steps(&run->store), "2 1");
    assert_int_equal(mark(&run->store, "step-00000001", false), 0);
    assert_int_equal(dcp_prune(&store, &retention, &removed, NULL), 0);
    assert_int_equal(removed, 1);
    save(run, 1);
    assert_int_equal(dcp_supersede(&ctx, 0, NULL), 0);
    assert_int_equal(meanwhile.n_published, 2);
    assert_int_equal(meanwhile.n_unguarded, 0);
}

/* Reads of a step, and those while nobody pinned it. */
static struct {
    int n, n_unpinned;
} reads;

static int open_pinned(void *self, const char *name, struct dcp_store_file **out,
                       struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;
    struct dcp_store_file *held = NULL;

    if (!strncmp(name, "step-00000001/", 14)) {
        reads.n++;
        reads.n_unpinned += !dcp_is_read(inner, "step-00000001", &held);
        dcp_unpin(inner, &held);
    }
    return inner->ops->open(inner->self, name, out, err);
}

/* From the manifest on, whether the step was named or found. */
static void a_load_pins_before_it_reads(void **state)
{
    const struct run *run = *state;
    struct dcp_store_forward wrapper;
    struct dcp_store store;

    struct acts acts = { &store, "zero3", 1, .step = 1, .salt = 1, .small = true };

    save(run, 1);
    dcp_store_forward(&store, &wrapper, &run->store);
    wrapper.ops.open = open_pinned;
    for (int named = 0; named < 2; named++) {
        acts.name = named ? "step-00000001" : NULL;
        reads.n = reads.n_unpinned = 0;
        assert_int_equal(acts_load(&acts), 0);
        assert_true(reads.n > 2);
        assert_int_equal(reads.n_unpinned, 0);
    }
}

static int look_for_lock(void *self, struct dcp_marks *marks, struct dcp_error *err)
{
    const struct dcp_store *store = self;
    struct dcp_store_file *held = NULL;

    (void)err;
    assert_int_equal(store->ops->hold(store->self, "step-00000001", true, &held, NULL),
                     DCP_E_BUSY);
    marks->pinned = true;
    return DCP_OK;
}

/* Nobody else changes the marks of a step meanwhile. */
static void marks_are_changed_under_a_lock(void **state)
{
    const struct run *run = *state;
    struct dcp_store store = run->store;
    struct dcp_marks marks;

    save(run, 1);
    assert_int_equal(
        dcp_marks_change(&store, "step-00000001", look_for_lock, &store, &marks, NULL),
        0);
    assert_true(marks.pinned);
}

/* Somebody who is about to mark it keeps a step, as a reader does, and no longer. */
static void a_step_that_is_being_marked_stays(void **state)
{
    const struct run *run = *state;
    const struct dcp_store *store = &run->store;
    struct dcp_store_file *held;

    save(run, 1);
    save(run, 2);
    assert_int_equal(store->ops->hold(store->self, "step-00000001", true, &held, NULL),
                     0);
    assert_int_equal(prune(run, 0), 0);
    set_due(run, 1, (int64_t)time(NULL) - 3000);
    assert_int_equal(prune(run, 2000), 1);
    dcp_unpin(store, &held);
    assert_int_equal(mark(store, "step-00000001", true), DCP_E_NOT_FOUND);
}

static int remove_replaced(void *self, const char *name, const void *data,
                           size_t size_bytes, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;
    int rc = inner->ops->replace(inner->self, name, data, size_bytes, err);

    inner->ops->remove(inner->self, "step-00000001", NULL);
    return rc;
}

/* Without locks a mark may come too late: it says so, and is none of a later step. */
static void a_mark_without_a_step_is_an_error(void **state)
{
    const struct run *run = *state;
    struct dcp_store_forward wrapper;
    struct dcp_store store;
    struct dcp_marks marks;

    dcp_store_forward(&store, &wrapper, &run->store);
    wrapper.ops.hold = NULL;
    wrapper.ops.replace = remove_replaced;
    save(run, 1);
    assert_int_equal(mark(&store, "step-00000001", true), DCP_E_NOT_FOUND);
    save(run, 1);
    assert_int_equal(dcp_marks_read(&store, "step-00000001", &marks, NULL), 0);
    assert_false(marks.pinned);
    assert_int_equal(mark(&store, "step-1", true), DCP_E_NOT_FOUND);
}

/* --- steps that go all the same --- */

/* A store that cannot pin, in which step 2 is removed when its n-th file is opened. */
static struct {
    int opens, at, lists;
} vanishing;

static int count_lists(void *self, const char *dir, struct dcp_store_entry **out,
                       size_t *out_n, struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    vanishing.lists++;
    return inner->ops->list(inner->self, dir, out, out_n, err);
}

static int vanish(void *self, const char *name, struct dcp_store_file **out,
                  struct dcp_error *err)
{
    const struct dcp_store *inner = ((const struct dcp_store_forward *)self)->inner;

    if (!strncmp(name, "step-00000002/", 14) && ++vanishing.opens == vanishing.at)
        inner->ops->remove(inner->self, "step-00000002", NULL);
    return inner->ops->open(inner->self, name, out, err);
}

static void count_warnings(void *self, enum dcp_log_level level, const char *text)
{
    (void)text;
    *(int *)self += level == DCP_LOG_WARN;
}

static void steps_that_go_while_they_are_read(void **state)
{
    const struct run *run = *state;
    struct dcp_store_forward wrapper;
    struct dcp_store store;
    struct dcp_step found, *list;
    size_t n;
    int warnings = 0, at;
    const struct dcp_log log = { .write = count_warnings,
                                 .self = &warnings,
                                 .level = DCP_LOG_WARN };
    const struct dcp_context ctx = { .store = &store, .log = &log };

    dcp_store_forward(&store, &wrapper, &run->store);
    wrapper.ops.open = vanish;
    wrapper.ops.hold = NULL;
    save(run, 1);
    for (at = 1; at < 100; at++) {
        struct acts acts = { .store = &store,
                             .layout = "zero3",
                             .world_size = 2,
                             .salt = 1,
                             .step = -1,
                             .small = true,
                             .log = &log };
        save(run, 2);
        vanishing.opens = 0;
        vanishing.at = at;
        acts.salt = 1;
        assert_int_equal(acts_load(&acts), 0);
        if (acts.loaded_step == 2)
            break;
        assert_int_equal(acts.loaded_step, 1);
        assert_int_equal(acts.wrong, 0);
    }
    assert_true(at > 3);
    assert_int_equal(warnings, 0);
    vanishing.opens = 0;
    vanishing.at = 1;
    assert_int_equal(dcp_find(&ctx, -1, &found, NULL), 0);
    assert_int_equal(found.step, 1);
    save(run, 2);
    vanishing.opens = 0;
    assert_int_equal(dcp_steps(&store, &list, &n, NULL, NULL), 0);
    assert_int_equal(n, 1);
    free(list);
    save(run, 2);
    vanishing.opens = 0;
    vanishing.at = 3;
    struct acts asked = {
        .store = &store, .layout = "zero3", .world_size = 1, .step = 2, .small = true
    };
    assert_int_equal(acts_load(&asked), DCP_E_NOT_FOUND);
    assert_non_null(strstr(asked.err.message, "was removed while it was read"));
}

/* The one step of a run goes while it is read: there is none, and it is not looked for
 * again and again. */
static void the_only_step_goes(void **state)
{
    const struct run *run = *state;
    struct dcp_store_forward wrapper;
    struct dcp_store store;
    struct acts acts = {
        .store = &store, .layout = "zero3", .world_size = 1, .step = -1, .small = true
    };

    dcp_store_forward(&store, &wrapper, &run->store);
    wrapper.ops.open = vanish;
    wrapper.ops.list = count_lists;
    wrapper.ops.hold = NULL;
    save(run, 2);
    vanishing.opens = vanishing.lists = 0;
    vanishing.at = 3; /* it is found, and then read */
    assert_int_equal(acts_load(&acts), DCP_E_NOT_FOUND);
    assert_true(vanishing.opens >= 3);
    assert_in_range(vanishing.lists, 1, 5);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        EACH(a_pinned_step_stays),
        EACH(retention_does_not_wait_for_ever),
        EACH(locations_are_pinned),
        EACH(readers_need_not_write),
        EACH(what_is_being_made_stays),
        EACH(steps_that_go_while_they_are_read),
        EACH(what_stays_is_not_due),
        EACH(a_look_costs_no_pin),
        EACH(the_only_step_goes),
        EACH(a_load_pins_before_it_reads),
        EACH(no_mark_is_lost_to_retention),
        EACH(marks_are_changed_under_a_lock),
        EACH(a_step_that_is_being_marked_stays),
        EACH(a_mark_without_a_step_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
