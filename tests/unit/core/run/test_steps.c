/* The steps of a run: which are complete, which is the newest, and which may go. */
/* labels: tsan */
#include "base/hash.h"
#include "core/run/steps.h"
#include "lib/acts.h"
#include "lib/rank_threads.h"
#include "port/store/mem.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dcp/dcp.h>

static void save(const struct dcp_store *store, int64_t step,
                 const struct dcp_save_options *more)
{
    struct acts acts = { .store = store,
                         .layout = "zero3",
                         .world_size = 2,
                         .step = step,
                         .salt = (unsigned)step,
                         .more = more };

    assert_int_equal(acts_save(&acts), 0);
    assert_string_equal(acts.err.message, "");
}

/* Changes the manifest of a step; with seal its digest is made to hold again. */
static void edit_manifest(const struct dcp_store *store, int64_t step, const char *from,
                          const char *to, bool seal)
{
    char name[128];
    void *data;
    size_t n;

    snprintf(name, sizeof name, "step-%08" PRId64 "/manifest.json", step);
    assert_int_equal(dcp_store_read_file(store, name, 1 << 20, &data, &n, NULL), 0);
    char *at = strstr(data, from);
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    if (seal) {
        char digest[32];
        snprintf(digest, sizeof digest, ",\n\"digest\":\"%016" PRIx64 "\"}",
                 dcp_hash_crc64(0, data, n - 31));
        memcpy((char *)data + n - 31, digest, 30);
    }
    assert_int_equal(store->ops->remove(store->self, name, NULL), 0);
    assert_int_equal(dcp_store_write_file(store, name, data, n, NULL), 0);
    free(data);
}

static void damage(const struct dcp_store *store, int64_t step)
{
    edit_manifest(store, step, "\"role\":\"model\"", "\"role\":\"modem\"", false);
}

static int64_t newest(const struct dcp_store *store)
{
    struct dcp_context ctx = { .store = store };
    struct dcp_step step;

    return dcp_find(&ctx, -1, &step, NULL) ? -1 : step.step;
}

/* "3 2! 1" for complete steps 3 and 1 and a step 2 that is not. */
static void check_steps(const struct dcp_store *store, const char *want,
                        size_t want_unfinished)
{
    struct dcp_step *steps;
    size_t n, unfinished = 99, used = 0;
    char found[256] = "";

    assert_int_equal(dcp_steps(store, &steps, &n, &unfinished, NULL), 0);
    for (size_t i = 0; i < n; i++) {
        used +=
            (size_t)snprintf(found + used, sizeof found - used, "%s%" PRId64 "%s",
                             i ? " " : "", steps[i].step, steps[i].complete ? "" : "!");
        assert_int_equal(dcp_step_parse(steps[i].name), steps[i].step);
        assert_int_equal(steps[i].complete, steps[i].why.code == 0);
    }
    free(steps);
    assert_string_equal(found, want);
    assert_int_equal(unfinished, want_unfinished);
}

/* --- names and finding --- */

static void names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t step;
    } cases[] = {
        { "step-00000000", 0 },
        { "step-00001200", 1200 },
        { "step-12345678", 12345678 },
        { "step-123456789", 123456789 },
        { "step-9223372036854775807", INT64_MAX },
        { "step-9223372036854775808", -1 },
        { "step-000000001", -1 },
        { "step-0000001", -1 },
        { "step-", -1 },
        { "step--0000001", -1 },
        { "step-+0000001", -1 },
        { "step-0000001x", -1 },
        { "step-00000001 ", -1 },
        { "Step-00000001", -1 },
        { "", -1 },
        { ".tmp-step-00000001", -1 },
    };
    char name[64];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(dcp_step_parse(cases[i].name), cases[i].step);
        if (cases[i].step >= 0) {
            dcp_step_name(name, cases[i].step);
            assert_string_equal(name, cases[i].name);
        }
    }
}

static void nothing_there(void **state)
{
    const struct dcp_store *store = *state;
    struct dcp_context ctx = { .store = store };
    struct dcp_step step;
    struct dcp_error err = { 0 };

    assert_int_equal(dcp_find(&ctx, -1, &step, &err), DCP_E_NOT_FOUND);
    assert_string_equal(err.message, "there is no step in 'memory'");
    save(store, 3, NULL);
    err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_find(&ctx, 4, &step, &err), DCP_E_NOT_FOUND);
    assert_string_equal(err.message, "there is no step 4 in 'memory'");
    assert_int_equal(dcp_find(&ctx, 3, &step, NULL), 0);
    assert_true(step.complete && step.step == 3);
    assert_string_equal(step.name, "step-00000003");
}

static void listed(void **state)
{
    const struct dcp_store *store = *state;
    const struct dcp_store_ops *ops = store->ops;

    for (int64_t step = 9; step < 12; step++)
        save(store, step, NULL);
    assert_int_equal(ops->make_dir(store->self, ".tmp-step-00000012", NULL), 0);
    assert_int_equal(ops->make_dir(store->self, "step-00000013", NULL), 0);
    assert_int_equal(ops->make_dir(store->self, "step-0014", NULL), 0);
    assert_int_equal(ops->make_dir(store->self, ".trash-step-00000002", NULL), 0);
    assert_int_equal(dcp_store_write_file(store, "step-00000099", "x", 1, NULL), 0);
    damage(store, 10);
    check_steps(store, "13! 11 10! 9", 1);
    assert_int_equal(newest(store), 11);
}

struct heard {
    int n;
    char last[256];
};

static void hear(void *self, enum dcp_log_level level, const char *message)
{
    struct heard *heard = self;

    if (level == DCP_LOG_WARN) {
        heard->n++;
        snprintf(heard->last, sizeof heard->last, "%s", message);
    }
}

static void corrupt_ones_are_passed_over(void **state)
{
    const struct dcp_store *store = *state;
    struct heard heard = { 0 };
    const struct dcp_log log = { hear, &heard, DCP_LOG_WARN };
    struct dcp_context ctx = { .store = store, .log = &log };
    struct dcp_step step;
    struct dcp_error err = { 0 };

    for (int64_t i = 1; i <= 3; i++)
        save(store, i, NULL);
    damage(store, 3);
    assert_int_equal(dcp_find(&ctx, -1, &step, NULL), 0);
    assert_int_equal(step.step, 2);
    assert_int_equal(heard.n, 1);
    assert_non_null(strstr(heard.last, "step-00000003 is incomplete: manifest.json"));
    assert_int_equal(dcp_find(&ctx, 3, &step, &err), DCP_E_CORRUPT);
    assert_non_null(strstr(err.message, "its digest differs"));
    assert_int_equal(store->ops->remove(
                         store->self, "step-00000002/shard-00001-of-00002.pieces", NULL),
                     0);
    assert_int_equal(newest(store), 1);
    edit_manifest(store, 1, "\"version\":1", "\"version\":2", true);
    err = (struct dcp_error){ 0 };
    assert_int_equal(dcp_find(&ctx, -1, &step, &err), DCP_E_CORRUPT);
    /* Only what a newer version wrote is left. */
    store->ops->remove(store->self, "step-00000002", NULL);
    store->ops->remove(store->self, "step-00000003", NULL);
    assert_int_equal(dcp_find(&ctx, -1, &step, NULL), DCP_E_UNSUPPORTED);
}

struct finders {
    const struct dcp_store *store;
    int codes[3];
    int64_t steps[3];
    struct dcp_error errs[3];
};

static void find_rank(void *arg, struct dcp_comm *comm)
{
    struct finders *f = arg;
    struct dcp_context ctx = { .comm = comm, .store = f->store };
    struct dcp_step step = { 0 };

    f->codes[comm->rank] = dcp_find(&ctx, -1, &step, &f->errs[comm->rank]);
    f->steps[comm->rank] = step.step;
}

/* Ranks may see different folders, on NFS; rank 0 decides for all. */
static void ranks_find_the_same(void **state)
{
    struct finders finders = { .store = *state };

    rank_threads_run(3, find_rank, &finders);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(finders.codes[r], DCP_E_NOT_FOUND);
        assert_string_equal(finders.errs[r].message, "there is no step in 'memory'");
    }
    save(*state, 6, NULL);
    rank_threads_run(3, find_rank, &finders);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(finders.codes[r], 0);
        assert_int_equal(finders.steps[r], 6);
    }
}

/* --- retention --- */

static void prune(const struct dcp_store *store, int keep, int keep_every,
                  size_t want_removed, const char *want)
{
    size_t removed = 99;

    assert_int_equal(
        dcp_prune(store,
                  &(struct dcp_retention){ .keep = keep, .keep_every = keep_every },
                  &removed, NULL),
        0);
    assert_int_equal(removed, want_removed);
    check_steps(store, want, 0);
}

static void old_steps_go(void **state)
{
    const struct dcp_store *store = *state;

    for (int64_t step = 1; step <= 9; step++)
        save(store, step, NULL);
    prune(store, 0, 0, 0, "9 8 7 6 5 4 3 2 1");
    prune(store, 8, 0, 1, "9 8 7 6 5 4 3 2");
    prune(store, 2, 4, 5, "9 8 4");
    prune(store, 2, 0, 1, "9 8");
    prune(store, 1, 0, 1, "9");
    prune(store, 1, 0, 0, "9");
    assert_int_equal(dcp_store_mem_crash(*state, NULL), 0);
    check_steps(store, "9", 0);
}

/* A corrupt step does not count, and is no reason to lose a good one. */
static void corrupt_steps_do_not_count(void **state)
{
    const struct dcp_store *store = *state;

    for (int64_t step = 1; step <= 6; step++)
        save(store, step, NULL);
    damage(store, 6);
    damage(store, 4);
    damage(store, 2);
    prune(store, 2, 0, 2, "6! 5 4! 3");
    prune(store, 1, 0, 2, "6! 5");
    damage(store, 5);
    prune(store, 1, 0, 0, "6! 5!");
}

/* What this version cannot judge stays: a newer one may have written it. */
static void unknown_steps_stay(void **state)
{
    const struct dcp_store *store = *state;

    for (int64_t step = 1; step <= 5; step++)
        save(store, step, NULL);
    edit_manifest(store, 2, "\"version\":1", "\"version\":2", true);
    damage(store, 3);
    prune(store, 1, 3, 2, "5 3! 2!"); /* 3 is kept for ever */
}

static void what_the_dead_left_goes(void **state)
{
    const struct dcp_store *store = *state;
    const struct dcp_store_ops *ops = store->ops;

    save(store, 1, NULL);
    assert_int_equal(ops->make_dir(store->self, ".tmp-step-00000002", NULL), 0);
    assert_int_equal(dcp_store_write_file(store, ".tmp-step-00000002/a", "x", 1, NULL),
                     0);
    assert_int_equal(ops->make_dir(store->self, ".trash-step-00000000", NULL), 0);
    assert_int_equal(ops->make_dir(store->self, ".tmp-mine", NULL), 0); /* not ours */
    assert_int_equal(ops->make_dir(store->self, "notes", NULL), 0);
    size_t removed;
    assert_int_equal(
        dcp_prune(store, &(struct dcp_retention){ .keep = 0 }, &removed, NULL), 0);
    assert_int_equal(removed, 2);
    check_steps(store, "1", 1);
    bool is_dir;
    uint64_t size;
    assert_int_equal(ops->stat(store->self, "notes", &is_dir, &size, NULL), 0);
}

static void prune_needs_the_lease(void **state)
{
    const struct dcp_store *store = *state;
    size_t removed;

    save(store, 1, NULL);
    save(store, 2, NULL);
    assert_int_equal(store->ops->lock(store->self, NULL), 0);
    assert_int_equal(
        dcp_prune(store, &(struct dcp_retention){ .keep = 1 }, &removed, NULL),
        DCP_E_BUSY);
    store->ops->unlock(store->self);
    check_steps(store, "2 1", 0);
    assert_int_equal(
        dcp_prune(store, &(struct dcp_retention){ .keep = -1 }, &removed, NULL),
        DCP_E_USAGE);
    assert_int_equal(dcp_prune(store,
                               &(struct dcp_retention){ .keep = 1, .keep_every = -1 },
                               NULL, NULL),
                     DCP_E_USAGE);
    assert_int_equal(dcp_prune(store, &(struct dcp_retention){ .keep = 1 }, NULL, NULL),
                     0);
    check_steps(store, "2", 0);
}

/* Two savers of one run: the second is told who is there, and does no harm. */
static void saves_need_the_lease(void **state)
{
    const struct dcp_store *store = *state;
    struct acts acts = { .store = store, .layout = "zero3", .world_size = 2, .step = 2 };

    save(store, 1, NULL);
    assert_int_equal(store->ops->make_dir(store->self, ".tmp-step-00000002", NULL), 0);
    assert_int_equal(store->ops->lock(store->self, NULL), 0);
    assert_int_equal(acts_save(&acts), DCP_E_BUSY);
    assert_true(acts.agreed && acts.err.message[0]);
    check_steps(store, "1", 1); /* what the first one makes is still there */
    store->ops->unlock(store->self);
    assert_int_equal(acts_save(&acts), 0);
    check_steps(store, "2 1", 0);
}

static void saves_keep_what_is_asked(void **state)
{
    const struct dcp_store *store = *state;
    const struct dcp_save_options more = { .keep = 2, .keep_every = 3 };

    for (int64_t step = 1; step <= 8; step++)
        save(store, step, &more);
    check_steps(store, "8 7 6 3", 0);
    /* The pointer for people. */
    void *text;
    size_t n;
    assert_int_equal(dcp_store_read_file(store, "latest", 64, &text, &n, NULL), 0);
    assert_string_equal(text, "step-00000008\n");
    free(text);
    struct acts acts = { .store = store, .layout = "zero3", .world_size = 1, .step = 7 };
    assert_int_equal(acts_save(&acts), DCP_E_EXISTS);
    check_steps(store, "8 7 6 3", 0);
}

/* A step that was just promised stays, whatever its number. */
static void the_step_just_saved_stays(void **state)
{
    const struct dcp_save_options more = { .keep = 1 };

    save(*state, 60, &more);
    save(*state, 25, &more);
    check_steps(*state, "60 25", 0);
    save(*state, 26, &more);
    check_steps(*state, "60 26", 0);
    save(*state, 61, &more);
    check_steps(*state, "61", 0);
}

static void superseding_needs_the_lease(void **state)
{
    const struct dcp_store *store = *state;
    struct dcp_context ctx = { .store = store };

    save(store, 1, NULL);
    save(store, 2, NULL);
    assert_int_equal(store->ops->lock(store->self, NULL), 0);
    assert_int_equal(dcp_supersede(&ctx, 1, NULL), DCP_E_BUSY);
    store->ops->unlock(store->self);
    check_steps(store, "2 1", 0);
}

static void steps_are_superseded(void **state)
{
    struct dcp_context ctx = { .store = *state };
    struct dcp_store_entry *entries;
    size_t n, found = 0;

    for (int64_t step = 1; step <= 4; step++)
        save(*state, step, NULL);
    damage(*state, 4);
    assert_int_equal(dcp_supersede(&ctx, 2, NULL), 0);
    check_steps(*state, "2 1", 0);
    save(*state, 3, NULL);
    assert_int_equal(dcp_supersede(&ctx, 2, NULL), 0);
    check_steps(*state, "2 1", 0);
    assert_int_equal(dcp_supersede(&ctx, 2, NULL), 0);
    const struct dcp_store *store = *state;
    assert_int_equal(store->ops->list(store->self, "", &entries, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        found += !strcmp(entries[i].name, "step-00000003.aside") ||
                 !strcmp(entries[i].name, "step-00000003.aside-2") ||
                 !strcmp(entries[i].name, "step-00000004.aside");
    dcp_store_list_free(entries, n);
    assert_int_equal(found, 3);
}

static void put(const struct dcp_store *store, const char *name, bool pinned)
{
    char text[128];

    int n = snprintf(text, sizeof text,
                     "{\"format\":\"libdcp-marks\",\"version\":1,\"pinned\":%s,"
                     "\"tags\":[]}",
                     pinned ? "true" : "false");
    assert_int_equal(store->ops->replace(store->self, name, text, (size_t)n, NULL), 0);
}

static bool is_pinned(const struct dcp_store *store, const char *step)
{
    struct dcp_marks marks;

    assert_int_equal(dcp_marks_read(store, step, &marks, NULL), 0);
    return marks.pinned;
}

/* Marks are those of one step, and of no other that has its number. */
static void marks_go_with_their_step(void **state)
{
    const struct dcp_store *store = *state;
    struct dcp_context ctx = { .store = store };

    save(store, 1, NULL);
    save(store, 2, NULL);
    put(store, ".marks-step-00000002", true);
    /* Of superseded steps, removed by hand. */
    put(store, ".marks-step-00000002.aside", false);
    assert_int_equal(dcp_supersede(&ctx, 1, NULL), 0);
    assert_true(is_pinned(store, "step-00000002.aside"));
    save(store, 2, NULL);
    assert_false(is_pinned(store, "step-00000002"));
    put(store, ".marks-step-00000002.aside-2", true);
    assert_int_equal(dcp_supersede(&ctx, 1, NULL), 0);
    assert_false(is_pinned(store, "step-00000002.aside-2"));

    /* The power went between the two names, or the step was removed by hand. */
    put(store, ".marks-step-00000003", true);
    put(store, ".due-step-00000003", true);
    save(store, 3, NULL);
    assert_false(is_pinned(store, "step-00000003"));
    bool is_dir;
    uint64_t size;
    assert_int_equal(
        store->ops->stat(store->self, ".due-step-00000003", &is_dir, &size, NULL),
        DCP_E_NOT_FOUND);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, acts_setup, acts_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        EACH(nothing_there),
        EACH(listed),
        EACH(corrupt_ones_are_passed_over),
        EACH(ranks_find_the_same),
        EACH(old_steps_go),
        EACH(corrupt_steps_do_not_count),
        EACH(unknown_steps_stay),
        EACH(what_the_dead_left_goes),
        EACH(prune_needs_the_lease),
        EACH(saves_need_the_lease),
        EACH(saves_keep_what_is_asked),
        EACH(the_step_just_saved_stays),
        EACH(superseding_needs_the_lease),
        EACH(steps_are_superseded),
        EACH(marks_go_with_their_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
