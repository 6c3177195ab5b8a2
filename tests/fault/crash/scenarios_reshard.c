/* Scenarios of what is made of steps: reshards, exports, archives, deltas. */
#include "check.h"
#include "lib/must.h"
#include "scenarios.h"
#include <dcp/dcp.h>
#include <stdio.h>
#include <string.h>

/* --- reshards --- */

/* What a reshard makes, over what. */
struct how {
    const char *format, *target;
    bool force;
    int n_parts;  /* 0: in one */
    bool applies; /* a delta */
    bool reflink; /* as many ranks; where the shim is, which has reflinks everywhere */
};

/* part: 1 to n_parts; one behind them is the end; 0 is all in one. */
static int reshard_part(const char *folder, const struct how *how, int world_size,
                        bool force, int part, struct dcp_error *err)
{
    bool ends = part > how->n_parts, same = how->format || how->reflink;
    struct dcp_reshard_options options = { .world_size = same ? 0 : world_size,
                                           .format = how->format,
                                           .dtype = -1,
                                           .only = world_size == 4 ? DCP_ONLY_MODEL : 0,
                                           .force = force,
                                           .threads = 2,
                                           .reflink = how->reflink && fault_shim_begin,
                                           .part = ends ? 0 : part,
                                           .n_parts = part && !ends ? how->n_parts : 0,
                                           .finish = ends };
    struct dcp_location source;
    struct dcp_reshard *job;
    char from[512], to[512];

    if (how->format && strcmp(how->format, "bundle") != 0)
        options.only = DCP_ONLY_MODEL;
    if (how->format && !strcmp(how->format, "deepspeed"))
        options.lossy = true;
    if (how->format && world_size == 4)
        options.dtype = DCP_F16; /* another old one */
    if (how->format && !strcmp(how->format, "bundle") && world_size == 4)
        options.dtype = -1;
    path_of(from, folder, "run");
    path_of(to, folder, how->target);
    int rc = dcp_location_open(from, &source, err);
    if (rc)
        return rc;
    rc = dcp_reshard_plan(&source, to, &options, &job, err);
    if (!rc) {
        rc = dcp_reshard_run(job, err);
        must(rc || !options.reflink || dcp_reshard_shared(job) > 0);
        dcp_reshard_free(job);
    }
    dcp_location_close(&source);
    return rc;
}

static int reshard(const char *folder, const struct how *how, int world_size, bool force,
                   struct dcp_error *err)
{
    int rc = how->n_parts ? 0 : reshard_part(folder, how, world_size, force, 0, err);

    for (int part = 1; how->n_parts && part <= how->n_parts + 1 && !rc; part++)
        rc = reshard_part(folder, how, world_size, force, part, err);
    return rc;
}

static void prepare_reshard(const char *folder, const struct how *how)
{
    save_steps(folder, 1, 1, NULL);
    if (how->force)
        must(reshard(folder, how, 4, false, NULL) == 0);
}

static void act_reshard(const char *folder, const struct how *how)
{
    act_begins(1);
    must(reshard(folder, how, 3, how->force, NULL) == 0);
    act_is_done(1);
}

/* Verified by its digests, if its format has any. */
static bool is_whole(const char *path, char why[512])
{
    struct dcp_location location;
    struct dcp_verify_options options = { .threads = 1 };
    struct dcp_error err = { 0 };

    int rc = dcp_location_open(path, &location, &err);
    if (!rc) {
        rc = dcp_verify(&location.source, &options, NULL, &err);
        dcp_location_close(&location);
    }
    return !rc || wrong(why, "%s", err.message);
}

/* A part that is done stays done: the files that its receipt names are durable. */
static bool has_part(const struct tree *state, const struct how *how, char why[512])
{
    if (!how->n_parts || how->format || tree_find(state, how->target) ||
        !tree_find(state, ".parts-out/part-00002") ||
        tree_find(state, ".parts-out/files/shard-00002-of-00003.pieces"))
        return true;
    return wrong(why, "a part that is done has lost a file");
}

static bool check_reshard(const struct facts *facts, const struct tree *state,
                          struct promise promise, const struct how *how, char why[512])
{
    char path[512];
    bool is_new = tree_find(&facts->after, how->target) &&
                  tree_same(state, how->target, &facts->after, how->target);
    bool is_old = tree_same(state, how->target, &facts->before, how->target);

    path_of(path, facts->folder, how->target);
    if (!check_run(facts, (struct promise){ 1, 1 }, 0, 1, why))
        return false;
    if (!is_new && !is_old)
        return wrong(why, "the target is neither what it was nor what it is to be");
    if (promise.done && !is_new)
        return wrong(why, "the target that was promised is not there");
    return has_part(state, how, why) &&
           (!tree_find(state, how->target) || is_whole(path, why));
}

/* What a next one made, which returned rc. */
static bool is_made_again(const struct facts *facts, const struct how *how, int rc,
                          const struct dcp_error *err, char why[512])
{
    struct tree tree;

    if (rc)
        return wrong(why, "the next one fails: %s", err->message);
    if (!tree_read(&tree, facts->folder))
        return wrong(why, "the folder cannot be read");
    bool fine = tree_same(&tree, how->target, &facts->after, how->target) ||
                wrong(why, "the next one makes something else");
    for (size_t i = 0; i < tree.n && fine; i++)
        if (!strncmp(tree.items[i].path, ".tmp-", 5) ||
            !strncmp(tree.items[i].path, ".parts-", 7))
            fine = wrong(why, "the next one leaves '%s'", tree.items[i].path);
    tree_free(&tree);
    return fine;
}

static bool again_reshard(const struct facts *facts, const struct how *how, char why[512])
{
    struct dcp_error err = { 0 };
    int rc = reshard(facts->folder, how, 3, true, &err);

    return is_made_again(facts, how, rc, &err, why);
}

/* --- deltas --- */

/* Makes or applies one; "full" and "base" are two folders, `how->format` their format. */
static int delta(const char *folder, const struct how *how, bool force,
                 struct dcp_error *err)
{
    const struct dcp_delta_options options = { .threads = 2, .force = force };
    struct dcp_delta_result result;
    struct dcp_location base = { 0 }, source;
    char path[512], to[512];

    path_of(path, folder, how->applies ? "delta" : "full");
    path_of(to, folder, how->target);
    int rc = dcp_location_open(path, &source, err);
    if (rc)
        return rc;
    path_of(path, folder, "base");
    if (how->applies)
        rc = dcp_delta_apply(&source, to, &options, &result, err);
    else if (!(rc = dcp_location_open(path, &base, err)))
        rc = dcp_delta_make(&base, &source, to, &options, &result, err);
    dcp_location_close(&base);
    dcp_location_close(&source);
    return rc;
}

static void prepare_delta(const char *folder, const struct how *how)
{
    struct how part = { .format = how->format, .target = "full" };
    const struct how made = { .format = how->format, .target = "delta" };

    save_steps(folder, 1, 1, NULL);
    must(reshard(folder, &part, 3, false, NULL) == 0);
    part.target = "base";
    must(reshard(folder, &part, 3, false, NULL) == 0);
    if (how->applies)
        must(delta(folder, &made, false, NULL) == 0);
}

static void act_delta(const char *folder, const struct how *how)
{
    act_begins(1);
    must(delta(folder, how, how->force, NULL) == 0);
    act_is_done(1);
}

static bool again_delta(const struct facts *facts, const struct how *how, char why[512])
{
    struct dcp_error err = { 0 };
    int rc = delta(facts->folder, how, true, &err);

    return is_made_again(facts, how, rc, &err, why);
}

/* --- a file that is moved --- */

static const char moved[] = "moved";

static void prepare_move(const char *folder)
{
    struct dcp_store store;

    must(dcp_store_dir(&store, folder, true, NULL) == 0);
    must(store.ops->make_dir(store.self, "from", NULL) == 0);
    must(store.ops->make_dir(store.self, "to", NULL) == 0);
    must(dcp_store_write_file(&store, "from/file", moved, sizeof moved, NULL) == 0);
    must(store.ops->sync_dir(store.self, "from", NULL) == 0);
    must(store.ops->sync_dir(store.self, "", NULL) == 0);
    dcp_store_free(&store);
}

static void act_move(const char *folder)
{
    struct dcp_store store;

    act_begins(1);
    must(dcp_store_dir(&store, folder, false, NULL) == 0);
    must(store.ops->publish(store.self, "from/file", "to/file", NULL) == 0);
    dcp_store_free(&store);
    act_is_done(1);
}

/* It is in one folder or the other, or in both; once that was promised, in the new one.
 */
static bool check_move(const struct facts *facts, const struct tree *state,
                       struct promise promise, char why[512])
{
    const struct tree_item *from = tree_find(state, "from/file");
    const struct tree_item *to = tree_find(state, "to/file");

    (void)facts;
    if (!from && !to)
        return wrong(why, "the file is lost");
    if (promise.done && !to)
        return wrong(why, "the file is where it was before");
    if (promise.done && from)
        return wrong(why, "the file is still where it was");
    return (to ? to : from)->size == sizeof moved || wrong(why, "it is cut");
}

static bool move_again(const struct facts *facts, struct promise promise, char why[512])
{
    (void)facts;
    (void)promise;
    (void)why;
    return true;
}

/* `act` is reshard or delta. */
#define MADE(act, id, ...)                                                      \
    static const struct how id = { __VA_ARGS__ };                               \
    static void prepare_##id(const char *folder)                                \
    {                                                                           \
        prepare_##act(folder, &id);                                             \
    }                                                                           \
    static void act_##id(const char *folder)                                    \
    {                                                                           \
        act_##act(folder, &id);                                                 \
    }                                                                           \
    static bool check_##id(const struct facts *facts, const struct tree *state, \
                           struct promise promise, char why[512])               \
    {                                                                           \
        return check_reshard(facts, state, promise, &id, why);                  \
    }                                                                           \
    static bool again_##id(const struct facts *facts, struct promise promise,   \
                           char why[512])                                       \
    {                                                                           \
        (void)promise;                                                          \
        return again_##act(facts, &id, why);                                    \
    }

MADE(reshard, dir, .target = "out")
MADE(reshard, shared, .target = "out", .reflink = true)
MADE(reshard, dir_over, .target = "out", .force = true)
MADE(reshard, nested, .format = "deepspeed",
     .target = "out") /* its files lie in a folder of their own */
MADE(reshard, file, .format = "safetensors", .target = "out.safetensors")
MADE(reshard, file_over, .format = "torch", .target = "out.bin", .force = true)
MADE(reshard, archive, .format = "bundle", .target = "out.tar.zst")
MADE(reshard, archive_over, .format = "bundle", .target = "out.tar.zst", .force = true)
MADE(reshard, parts, .target = "out", .n_parts = 2)
MADE(reshard, parts_over, .format = "deepspeed", .target = "out", .force = true,
     .n_parts = 2)
MADE(delta, made, .target = "out")
MADE(delta, made_nested, .format = "deepspeed", .target = "out")
MADE(delta, applied, .target = "out", .applies = true)
MADE(delta, applied_nested, .format = "deepspeed", .target = "out", .applies = true)

#define RESHARDS(text, id)                                   \
    {                                                        \
        text, prepare_##id, act_##id, check_##id, again_##id \
    }

const struct scenario reshard_scenarios[] = {
    RESHARDS("reshard", dir),
    RESHARDS("reshard-reflink", shared),
    RESHARDS("reshard-force", dir_over),
    RESHARDS("reshard-nested", nested),
    RESHARDS("export", file),
    RESHARDS("export-force", file_over),
    RESHARDS("pack", archive),
    RESHARDS("pack-force", archive_over),
    RESHARDS("parts", parts),
    RESHARDS("parts-force", parts_over),
    RESHARDS("delta-make", made),
    RESHARDS("delta-make-nested", made_nested),
    RESHARDS("delta-apply", applied),
    RESHARDS("delta-apply-nested", applied_nested),
    { "move", prepare_move, act_move, check_move, move_again },
};
const size_t n_reshard_scenarios = sizeof reshard_scenarios / sizeof reshard_scenarios[0];
