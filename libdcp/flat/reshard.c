/* reshard: another checkpoint of one, as dcp-reshard makes it. */
#include "checkpoint.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/family.h>
#include <dcp/training.h>
#include <stdio.h>
#include <string.h>

struct act {
    struct dcp_flat_reshard_options options;
    struct dcp_reshard_options ours;
    struct dcp_location location;
    struct dcp_catalog *source;
    struct dcp_reshard *reshard;
    char *config;
};

/* -- words to numbers -------------------------------------------------------------- */

/* The place of a word in a NULL-terminated list; 0 where none is given. */
static int choose(const char *word, const char *what, const char *const *words, int *out,
                  struct dcp_error *err)
{
    *out = 0;
    for (int i = 0; word && words[i]; i++)
        if (!strcmp(words[i], word)) {
            *out = i;
            return DCP_OK;
        }
    if (!word)
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "there is no %s '%s'", what, word);
    const char *near = dcp_str_nearest(word, words);
    if (near)
        dcp_error_hint(err, "did you mean '%s'?", near);
    return DCP_E_USAGE;
}

static int check_dtype(const char *text, int *out, struct dcp_error *err)
{
    *out = text ? dcp_dtype_parse(text) : -1;
    if (!text || (*out >= 0 && dcp_dtype_is_float((enum dcp_dtype) * out)))
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "'dtype' takes a floating type, not '%s'", text);
    dcp_error_hint(err, "bf16, fp16 and fp32 are the usual ones");
    return DCP_E_USAGE;
}

/* As asked for; else by the target's name. */
static int check_format(const struct dcp_flat_reshard_options *given, const char **out,
                        struct dcp_error *err)
{
    const char *target = given->target;
    const struct dcp_format *by_name =
        dcp_str_ends(target, "/") ? NULL : dcp_format_for_suffix(target);
    const struct dcp_format *format =
        given->format ? dcp_format_find(given->format) : by_name;

    if (given->format && !format) {
        dcp_error_set(err, DCP_E_USAGE, "there is no format '%s'", given->format);
        dcp_error_hint(err, "the table of formats lists them");
        return DCP_E_USAGE;
    }
    if (format && !(format->flags & DCP_FORMAT_WRITES))
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "the format '%s' can be read, not written", format->name);
    if (!given->format && by_name && !given->for_export && !by_name->packs) {
        dcp_error_set(err, DCP_E_USAGE, "'%s' is named like a file of the format '%s'",
                      target, by_name->name);
        dcp_error_hint(err, "export makes one; a format says what is meant");
        return DCP_E_USAGE;
    }
    *out = format ? format->name : given->for_export ? "hf" : NULL;
    return DCP_OK;
}

static int take_options(struct act *act, struct dcp_error *err)
{
    static const char *const onlys[] = { "all", "model", "optim", NULL };
    static const char *const weights[] = { "auto", "model", "master", NULL };
    static const char *const codecs[] = { "none", "zstd", "planes", "split", NULL };
    static const char *const spellings[] = { "nested", "flat", "torchtitan", "kept",
                                             NULL };
    const struct dcp_flat_reshard_options *given = &act->options;
    struct dcp_reshard_options *ours = &act->ours;
    int only, weight, codec, spelling;

    if (!given->source || !given->target)
        return dcp_error_set(err, DCP_E_USAGE, "a reshard has a source and a target");
    DCP_TRY(choose(given->only, "selection", onlys, &only, err));
    DCP_TRY(choose(given->weights, "choice of weights", weights, &weight, err));
    DCP_TRY(choose(given->codec, "codec", codecs, &codec, err));
    DCP_TRY(choose(given->spelling, "spelling", spellings, &spelling, err));
    DCP_TRY(choose(given->layout, "layout", dcp_layout_names(), &(int){ 0 }, err));
    *ours = (struct dcp_reshard_options){
        .source = act->source,
        .world_size = given->world_size   ? given->world_size
                      : given->for_export ? 1
                                          : 0,
        .layout = given->layout,
        .select = given->select,
        .only = given->for_export && !given->only ? DCP_ONLY_MODEL : (enum dcp_only)only,
        .weights = (enum dcp_weights)weight,
        .codec = (enum dcp_codec)codec,
        .parity = given->parity,
        .memory_bytes = given->memory_bytes,
        .threads = dcp_flat_threads(given->threads),
        .no_verify = given->no_verify,
        .force = given->force,
        .lossy = given->lossy,
        .trust = given->trust,
        .keep_unsafe = given->keep_unsafe,
        .reflink = given->reflink,
        .target = { .max_shard_size_bytes = given->max_shard_bytes,
                    .config_json = act->config,
                    .spelling = given->spelling,
                    .prefix = given->prefix,
                    .untie = given->untie },
    };
    DCP_TRY(check_dtype(given->dtype, &ours->dtype, err));
    DCP_TRY(check_format(given, &ours->format, err));
    return given->rename ? dcp_rename_new(given->rename, "rename", &ours->rename, err)
                         : DCP_OK;
}

/* -- the act ----------------------------------------------------------------------- */

static int plan(struct act *act, struct dcp_error *err)
{
    const struct dcp_flat_reshard_options *given = &act->options;

    DCP_TRY(
        dcp_flat_open_location(given->source, given->step, NULL, &act->location, err));
    DCP_TRY(dcp_location_index(&act->location, &act->source, err));
    if (given->config_json)
        act->config = strdup(given->config_json);
    else
        DCP_TRY(dcp_location_config(&act->location, act->source, &act->config, err));
    const struct dcp_progress progress = act->ours.progress;
    DCP_TRY(take_options(act, err));
    act->ours.progress = progress;
    int rc =
        dcp_reshard_plan(&act->location, given->target, &act->ours, &act->reshard, err);
    return rc ? dcp_location_failed(&act->location, rc, err) : DCP_OK;
}

static int run(struct act *act, struct dcp_error *err)
{
    int rc = dcp_reshard_run(act->reshard, err);

    if (rc)
        rc = dcp_location_failed(&act->location, rc, err);
    if (rc == DCP_E_CORRUPT) {
        dcp_error_prefix(err, "cannot reshard '%s'", act->location.path);
        dcp_error_hint(err, "a verify of '%s' lists everything that is corrupt",
                       act->location.path);
    }
    return rc;
}

/* Names, a line each, while there is room for whole ones; gives how many there are. */
static uint64_t put_names(const char *const *names, char *out, size_t size)
{
    uint64_t n = 0;
    size_t used = 0;

    for (; names && names[n]; n++) {
        if (used + strlen(names[n]) + 2 > size)
            size = 0; /* the first ones, and none behind a gap */
        if (!size)
            continue;
        used +=
            (size_t)snprintf(out + used, size - used, "%s%s", used ? "\n" : "", names[n]);
    }
    return n;
}

static void tell(const struct act *act, struct dcp_flat_reshard_result *out)
{
    const struct dcp_reshard_plan *facts = dcp_reshard_facts(act->reshard);
    struct dcp_flat_reshard_result told = {
        .n_tensors = facts->n_tensors,
        .source_bytes = facts->source_bytes,
        .target_bytes = facts->target_bytes,
        .read_bytes = facts->read_bytes,
        .n_files = facts->target_files,
        .n_unproved = facts->n_unproved,
        .n_left = facts->n_left,
        .n_objects_left = facts->n_objects_left,
        .n_beside = facts->n_beside,
        .n_overflows = act->options.dry_run
                           ? 0
                           : dcp_reshard_overflows(act->reshard, &(size_t){ 0 },
                                                   &(const char *){ NULL }),
        .step = act->source->step,
        .passed_over = act->location.passed_over,
        .shared_bytes =
            act->options.dry_run ? facts->shared_bytes : dcp_reshard_shared(act->reshard),
    };

    dcp_family_lacks_weight(act->source, told.lacks, sizeof told.lacks);
    told.n_objects_left +=
        put_names(facts->objects_left, told.objects_left, sizeof told.objects_left);
    if (facts->assumed)
        snprintf(told.assumed, sizeof told.assumed, "%s", facts->assumed);
    dcp_flat_give(out, &told, sizeof told);
}

int32_t dcp_flat_reshard(const struct dcp_flat_reshard_options *options,
                         const struct dcp_flat_hooks *hooks,
                         struct dcp_flat_reshard_result *out_result,
                         struct dcp_flat_error *err)
{
    struct dcp_flat_watch watch;
    struct dcp_error why = { 0 };
    struct act act = { .ours.progress = dcp_flat_watch(&watch, hooks) };

    dcp_flat_take(&act.options, sizeof act.options, options);
    int rc = plan(&act, &why);
    if (!rc && !act.options.dry_run)
        rc = run(&act, &why);
    if (!rc)
        tell(&act, out_result);
    dcp_reshard_free(act.reshard);
    dcp_rename_free(act.ours.rename);
    dcp_catalog_free(act.source);
    free(act.config);
    dcp_location_close(&act.location);
    return dcp_flat_fail(err, rc, &why);
}
