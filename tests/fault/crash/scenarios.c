#include "scenarios.h"
#include "base/clock.h"
#include "base/fs.h"
#include "check.h"
#include "lib/acts.h"
#include "lib/must.h"
#include "lib/rank_threads.h"
#include "lib/sample.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AGAIN_SALT = 40, STEPS = 3 };

void act_begins(int64_t act)
{
    if (fault_shim_begin)
        fault_shim_begin(act);
}

void act_is_done(int64_t act)
{
    if (fault_shim_done)
        fault_shim_done(act);
}

void path_of(char out[512], const char *folder, const char *name)
{
    must(snprintf(out, 512, "%s/%s", folder, name) < 512);
}

void open_run(struct dcp_store *store, const char *folder)
{
    char path[512];

    path_of(path, folder, "run");
    must(dcp_store_delta_dir(store, path, true, NULL) == 0);
}

/* --- saves --- */

static const struct dcp_export consolidated = { "pytorch_model.bin", "torch", DCP_BF16 };

static int save(const struct dcp_store *store, int64_t step, unsigned salt,
                const struct dcp_save_options *more)
{
    struct acts acts = { .store = store,
                         .layout = "zero2",
                         .world_size = 2,
                         .step = step,
                         .salt = salt,
                         .codec = more && more->consolidated ? DCP_CODEC_PLANES : 0,
                         .more = more,
                         .small = true };

    return acts_save(&acts);
}

void save_steps(const char *folder, int64_t first, int64_t last,
                const struct dcp_save_options *more)
{
    struct dcp_store store;

    act_begins(first);
    open_run(&store, folder);
    for (int64_t step = first; step <= last; step++) {
        act_begins(step);
        must(save(&store, step, STEP_SALT(step), more) == 0);
        act_is_done(step);
    }
    dcp_store_free(&store);
}

static void prepare_nothing(const char *folder)
{
    (void)folder;
}

static void prepare_steps(const char *folder)
{
    save_steps(folder, 1, STEPS, NULL);
}

static void act_first(const char *folder)
{
    save_steps(folder, 1, 1, NULL);
}

static void act_saves(const char *folder)
{
    const struct dcp_save_options more = { .keep = 2 };

    save_steps(folder, STEPS + 1, STEPS + 2, &more);
}

static void act_parity(const char *folder)
{
    const struct dcp_save_options more = { .keep = 2, .parity = 1 };

    save_steps(folder, STEPS + 1, STEPS + 2, &more);
}

static void act_consolidated(const char *folder)
{
    const struct dcp_save_options more = { .keep = 1, .consolidated = &consolidated };

    save_steps(folder, STEPS + 1, STEPS + 1, &more);
}

bool check_run(const struct facts *facts, struct promise promise, int keep, int64_t there,
               char why[512])
{
    char path[512];
    const struct run_want want = { .least = promise.done > there ? promise.done : there,
                                   .most = promise.begun > there ? promise.begun : there,
                                   .keep = keep,
                                   .first = 1,
                                   .latest = true };

    path_of(path, facts->folder, "run");
    return run_is(path, &want, why);
}

static bool check_new_run(const struct facts *facts, const struct tree *state,
                          struct promise promise, char why[512])
{
    (void)state;
    return check_run(facts, promise, 2, 0, why);
}

static bool check_saves(const struct facts *facts, const struct tree *state,
                        struct promise promise, char why[512])
{
    (void)state;
    return check_run(facts, promise, 2, STEPS, why);
}

static bool check_consolidated(const struct facts *facts, const struct tree *state,
                               struct promise promise, char why[512])
{
    static const char name[] = "run/step-00000004";

    if (!check_run(facts, promise, 1, STEPS, why))
        return false;
    if (tree_find(state, name) && !tree_same(state, name, &facts->after, name))
        return wrong(why, "%s is not what it was", name);
    return true;
}

/* The next save takes the run up. */
static bool save_next(const struct facts *facts, struct promise promise, char why[512])
{
    struct dcp_store store;
    struct dcp_step *steps;
    size_t n, unfinished = 0;
    int64_t step = (promise.begun > STEPS ? promise.begun : STEPS) + 1;
    char path[512];
    const struct run_want want = { .least = step,
                                   .most = step,
                                   .keep = 1,
                                   .first = 1,
                                   .again = 2,
                                   .again_salt = AGAIN_SALT };

    open_run(&store, facts->folder);
    int rc = save(&store, step, STEP_SALT(step), NULL);
    bool fine = !rc || wrong(why, "the next save fails");
    if (fine && !dcp_steps(&store, &steps, &n, &unfinished, NULL))
        free(steps);
    dcp_store_free(&store);
    path_of(path, facts->folder, "run");
    return fine && run_is(path, &want, why) &&
           (!unfinished || wrong(why, "the next save leaves temporary folders"));
}

/* --- a step that gets smaller than what was reserved for it --- */

static int save_smooth(const struct dcp_store *store, int64_t step)
{
    enum { N = 6000 };
    static float values[N];
    static const int64_t shape[1] = { N };
    const struct dcp_local_tensor local = {
        .name = "w", .dtype = DCP_F32, .ndim = 1, .shape = shape, .data = values
    };
    const struct dcp_save_options options = { .step = step, .codec = DCP_CODEC_PLANES };
    const struct dcp_state state = { .locals = &local, .n_locals = 1 };
    struct dcp_context ctx = { .store = store };

    for (int i = 0; i < N; i++)
        values[i] = (float)(i / 64);
    return dcp_save(&ctx, &options, &state, NULL, NULL);
}

static void act_smooth(const char *folder)
{
    struct dcp_store store;

    act_begins(1);
    open_run(&store, folder);
    must(save_smooth(&store, 1) == 0);
    act_is_done(1);
    dcp_store_free(&store);
}

static bool check_smooth(const struct facts *facts, const struct tree *state,
                         struct promise promise, char why[512])
{
    static const char name[] = "run/step-00000001";
    struct dcp_store store;
    struct dcp_step found;

    if (!tree_find(state, name))
        return !promise.done || wrong(why, "the step is lost");
    if (!tree_same(state, name, &facts->after, name))
        return wrong(why, "the step is not what was saved");
    open_run(&store, facts->folder);
    bool fine = dcp_find(&(struct dcp_context){ .store = &store }, -1, &found, NULL) == 0;
    dcp_store_free(&store);
    return fine || wrong(why, "the step is not found");
}

static bool smooth_again(const struct facts *facts, struct promise promise, char why[512])
{
    struct dcp_store store;

    (void)promise;
    open_run(&store, facts->folder);
    bool fine = save_smooth(&store, 2) == 0;
    dcp_store_free(&store);
    return fine || wrong(why, "the next save fails");
}

/* --- in the background, on two ranks --- */

struct behind {
    struct dcp_store store;
    int delta;  /* as in dcp_save_options */
    bool again; /* each step is saved by another saver, as after a resume */
};

static void save_behind(void *arg, struct dcp_comm *comm)
{
    const struct behind *behind = arg;
    struct dcp_context ctx = { .comm = comm, .store = &behind->store, .threads = 2 };
    struct dcp_saver *saver;
    bool over;

    must(dcp_saver_new(&ctx, &saver, NULL) == 0);
    for (int64_t step = 1; step <= STEPS; step++) {
        const struct dcp_save_options options = { .step = step,
                                                  .keep = 2,
                                                  .delta = behind->delta };
        struct sample sample;
        sample_make_first(&sample, sample_n_tensors() - 1, "zero3", comm->world_size,
                          comm->rank, true, STEP_SALT(step));
        if (comm->rank == 0)
            act_begins(step);
        must(dcp_save_start(saver, &options, &sample.state, NULL) == 0);
        sample_free(&sample); /* training goes on, and changes it */
        for (over = false; !over; dcp_clock_sleep_us(200))
            must(dcp_save_poll(saver, &over, NULL, NULL) == 0);
        if (comm->rank == 0)
            act_is_done(step);
        if (behind->again) {
            dcp_saver_free(saver);
            must(dcp_saver_new(&ctx, &saver, NULL) == 0);
        }
    }
    dcp_saver_free(saver);
}

static void save_all_behind(const char *folder, int delta, bool again)
{
    struct behind behind = { .delta = delta, .again = again };

    act_begins(1);
    open_run(&behind.store, folder);
    rank_threads_run(2, save_behind, &behind);
    dcp_store_free(&behind.store);
}

static void act_behind(const char *folder)
{
    save_all_behind(folder, 0, false);
}

static void act_deltas(const char *folder)
{
    save_all_behind(folder, STEPS, false);
}

static void act_deltas_again(const char *folder)
{
    save_all_behind(folder, STEPS, true);
}

/* --- superseded, prune --- */

/* Act 2: steps 2 and 3 are given up; act 3: another step 2 is saved. */
static void act_supersede(const char *folder)
{
    struct dcp_store store;
    struct dcp_context ctx = { .store = &store };

    act_begins(2);
    open_run(&store, folder);
    must(dcp_supersede(&ctx, 1, NULL) == 0);
    act_is_done(2);
    act_begins(3);
    must(save(&store, 2, AGAIN_SALT, NULL) == 0);
    act_is_done(3);
    dcp_store_free(&store);
}

/* A step of the old course is there under its name or the other. */
static bool is_kept(const struct dcp_store *store, int64_t step, char why[512])
{
    char name[64], superseded[64], ignored[512];

    snprintf(name, sizeof name, "step-%08" PRId64, step);
    snprintf(superseded, sizeof superseded, "step-%08" PRId64 ".aside", step);
    return step_is(store, superseded, STEP_SALT(step), 0, ignored) ||
           step_is(store, name, STEP_SALT(step), 0, ignored) ||
           wrong(why, "%s is lost: %s", name, ignored);
}

static bool check_supersede(const struct facts *facts, const struct tree *state,
                            struct promise promise, char why[512])
{
    char path[512];
    struct dcp_store store;
    const struct run_want want = { .least = promise.done == 3 ? 2 : 1,
                                   .most = promise.done == 3   ? 2
                                           : promise.done == 2 ? promise.begun - 1
                                                               : 3,
                                   .keep = 1,
                                   .first = 1,
                                   .again = promise.begun == 3 ? 2 : 0,
                                   .again_salt = AGAIN_SALT };
    bool fine = true;

    (void)state;
    path_of(path, facts->folder, "run");
    if (!run_is(path, &want, why))
        return false;
    must(dcp_store_dir(&store, path, false, NULL) == 0);
    for (int64_t step = 1; step <= STEPS && fine; step++)
        fine = is_kept(&store, step, why);
    dcp_store_free(&store);
    return fine;
}

static void act_prune(const char *folder)
{
    struct dcp_store store;

    act_begins(1);
    open_run(&store, folder);
    must(dcp_prune(&store, &(struct dcp_retention){ .keep = 1 }, NULL, NULL) == 0);
    act_is_done(1);
    dcp_store_free(&store);
}

static bool check_prune(const struct facts *facts, const struct tree *state,
                        struct promise promise, char why[512])
{
    char path[512];
    const struct run_want want = { .least = STEPS, .most = STEPS, .keep = 1, .first = 1 };

    (void)state;
    (void)promise;
    path_of(path, facts->folder, "run");
    return run_is(path, &want, why);
}

/* --- optimizer state that goes --- */

static const struct dcp_retention one_learned = { .keep_optimizer = 1 };

static void act_thin(const char *folder)
{
    struct dcp_store store;

    act_begins(1);
    open_run(&store, folder);
    must(dcp_prune(&store, &one_learned, NULL, NULL) == 0);
    act_is_done(1);
    dcp_store_free(&store);
}

/* Every step is there, at every moment, and the newest can be resumed. */
static bool check_thin(const struct facts *facts, const struct tree *state,
                       struct promise promise, char why[512])
{
    const struct run_want want = { .least = STEPS, .most = STEPS, .first = 1 };
    char path[512];
    struct dcp_store store;
    struct dcp_step *steps;
    size_t n;

    (void)state;
    path_of(path, facts->folder, "run");
    if (!run_is(path, &want, why))
        return false;
    open_run(&store, facts->folder);
    must(dcp_steps(&store, &steps, &n, NULL, NULL) == 0);
    bool fine = n == STEPS || wrong(why, "%zu steps are left", n);
    for (size_t i = 0; i < n && fine; i++)
        if (steps[i].weights_only ? i == 0 : i > 0 && promise.done)
            fine = wrong(why, "%s has what it should not have", steps[i].name);
    free(steps);
    dcp_store_free(&store);
    return fine;
}

static bool thin_again(const struct facts *facts, struct promise promise, char why[512])
{
    struct dcp_error err = { 0 };
    struct dcp_store store;

    promise.done = 1;
    open_run(&store, facts->folder);
    int rc = dcp_prune(&store, &one_learned, NULL, &err);
    dcp_store_free(&store);
    if (rc)
        return wrong(why, "the next one fails: %s", err.message);
    return check_thin(facts, NULL, promise, why) && save_next(facts, promise, why);
}

/* --- repair --- */

static const char reconstructed[] = "step-00000003";

static void prepare_repair(const char *folder)
{
    const struct dcp_save_options more = { .parity = 1 };
    struct dcp_store store;

    save_steps(folder, 1, STEPS, &more);
    open_run(&store, folder);
    must(store.ops->remove(store.self, "step-00000003/shard-00000-of-00002.safetensors",
                           NULL) == 0);
    dcp_store_free(&store);
}

static int repair(const char *folder, struct dcp_error *err)
{
    struct dcp_store store;

    open_run(&store, folder);
    int rc = dcp_repair(&store, reconstructed, NULL, NULL, err);
    dcp_store_free(&store);
    return rc;
}

static void act_repair(const char *folder)
{
    act_begins(1);
    must(repair(folder, NULL) == 0);
    act_is_done(1);
}

/* The corrupt step can be read through its parity at every moment; the others are none
 * of a repair's business. */
static bool check_repair(const struct facts *facts, const struct tree *state,
                         struct promise promise, char why[512])
{
    struct dcp_store store;
    struct dcp_step *steps;
    size_t n;
    bool fine = true;

    (void)state;
    open_run(&store, facts->folder);
    must(dcp_steps(&store, &steps, &n, NULL, NULL) == 0);
    if (n != STEPS)
        fine = wrong(why, "%zu steps are left", n);
    for (size_t i = 0; i < n && fine; i++)
        if (steps[i].complete)
            fine = step_is(&store, steps[i].name, STEP_SALT(steps[i].step), 0, why);
        else if (promise.done || steps[i].step != 3 || !steps[i].recoverable)
            fine =
                wrong(why, "%s is incomplete: %s", steps[i].name, steps[i].why.message);
    free(steps);
    dcp_store_free(&store);
    return fine;
}

static bool repair_again(const struct facts *facts, struct promise promise, char why[512])
{
    struct dcp_error err = { 0 };

    promise.done = 1;
    if (repair(facts->folder, &err))
        return wrong(why, "the next repair fails: %s", err.message);
    return check_repair(facts, NULL, promise, why);
}

static const struct scenario scenarios[] = {
    { "first-save", prepare_nothing, act_first, check_new_run, save_next },
    { "saves", prepare_steps, act_saves, check_saves, save_next },
    { "parity", prepare_steps, act_parity, check_saves, save_next },
    { "consolidated", prepare_steps, act_consolidated, check_consolidated, save_next },
    { "compressed", prepare_nothing, act_smooth, check_smooth, smooth_again },
    { "background", prepare_nothing, act_behind, check_new_run, save_next },
    { "save-deltas", prepare_nothing, act_deltas, check_new_run, save_next },
    { "resumed-deltas", prepare_nothing, act_deltas_again, check_new_run, save_next },
    { "set-aside", prepare_steps, act_supersede, check_supersede, save_next },
    { "prune", prepare_steps, act_prune, check_prune, save_next },
    { "thin", prepare_steps, act_thin, check_thin, thin_again },
    { "repair", prepare_repair, act_repair, check_repair, repair_again },
};

const struct scenario *scenario_at(size_t i)
{
    size_t n = sizeof scenarios / sizeof scenarios[0];

    if (i < n)
        return &scenarios[i];
    return i - n < n_reshard_scenarios ? &reshard_scenarios[i - n] : NULL;
}
