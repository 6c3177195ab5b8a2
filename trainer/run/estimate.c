#include "estimate.h"

#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include "cli/human.h"
#include "cli/table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORLDS = 32, MAX_WORLD_SIZE = 1 << 20, N_STAGES = 4 };
static const int usual_worlds[] = { 1, 8, 64, 512, 1024 };

/* One world size: what a rank holds, in bytes. The first of two: everything is kept; the
 * second: layers are computed again. */
struct world {
    int world_size, micro_batch, seq_len, accumulation;
    char why[640]; /* it is impossible */
    struct shard_bytes of[N_STAGES];
    uint64_t activations[2], saving, work; /* what a save copies, and works with */
};

struct estimate {
    struct dcp_main *main;
    const struct run_options *options;
    bool gpu; /* ranks have one each: the copy of a save is in the memory of the host */
    struct world worlds[MAX_WORLDS];
    int n_worlds;

    /* Of the first world that is possible. */
    bool known;
    bool hosts, swaps; /* some state is in the host's memory, or in files */
    struct model_config model;
    const char *precision;
    int64_t n_elems;
    char way[24]; /* how layers are computed again: "full" */
};

/* --- world sizes --- */

static int add_world(struct estimate *e, int64_t world_size, struct dcp_error *err)
{
    int i = e->n_worlds;
    for (int w = 0; w < e->n_worlds; w++)
        if (e->worlds[w].world_size == world_size)
            return DCP_OK;
    if (world_size < 1 || world_size > MAX_WORLD_SIZE || i == MAX_WORLDS)
        return dcp_error_set(
            err, DCP_E_USAGE,
            "--worlds takes up to %d numbers of ranks from 1 to %d, such "
            "as 8,64",
            MAX_WORLDS, MAX_WORLD_SIZE);
    for (; i > 0 && e->worlds[i - 1].world_size > world_size; i--)
        e->worlds[i].world_size = e->worlds[i - 1].world_size;
    e->worlds[i].world_size = (int)world_size;
    e->n_worlds++;
    return DCP_OK;
}

static int read_worlds(struct estimate *e, struct dcp_error *err)
{
    const char *text = e->options->worlds;
    for (size_t i = 0; !text && i < DCP_ARRAY_LEN(usual_worlds); i++)
        DCP_TRY(add_world(e, usual_worlds[i], err));
    while (text) {
        char number[16] = "";
        size_t n = strcspn(text, ",");
        int64_t world_size = 0;
        if (n < sizeof number)
            memcpy(number, text, n);
        if (!dcp_str_parse_i64(number, &world_size))
            world_size = 0;
        DCP_TRY(add_world(e, world_size, err));
        text = text[n] ? text + n + 1 : NULL;
    }
    return e->options->ranks ? add_world(e, e->options->ranks, err) : DCP_OK;
}

/* --- sizes --- */

static int plan_model(const struct settings *s, struct model_recompute recompute,
                      struct model **out_model, struct dcp_error *err)
{
    const struct model_options options = { .dtype = s->dtype,
                                           .batch = s->micro_batch,
                                           .seq_len = s->seq_len,
                                           .recompute = recompute,
                                           .plan = true };
    return model_make(&s->model, &options, ops_cpu(), out_model, err);
}

/* What the configuration asks for, or else the most that can be. */
static struct model_recompute recompute_of(const struct estimate *e,
                                           const struct settings *s)
{
    struct model_recompute r = s->recompute;
    if (!r.every && !r.attention)
        r.every = 1;
    r.host = e->gpu && s->cpu_checkpointing;
    return r;
}

static int plan_state(struct estimate *e, struct world *w, const struct settings *s,
                      const struct model *model, struct dcp_error *err)
{
    struct shard_options cut;
    struct shard_bytes whole;
    run_shard_options(s, false, &cut);
    struct shard_offload of_weights = cut.offload_weights;
    for (cut.stage = 0; cut.stage < N_STAGES; cut.stage++) {
        cut.shard_size = cut.stage == 3 ? s->shard_size : 0;
        cut.near_size = cut.stage == 3 ? s->near_size : 0;
        cut.offload_weights =
            cut.stage == 3 ? of_weights : (struct shard_offload){ .folder = NULL };
        DCP_TRY(shard_plan(model, &cut, w->world_size, e->gpu,
                           run_overlaps(s, e->gpu, w->world_size), &w->of[cut.stage],
                           err));
        e->hosts |= w->of[cut.stage].host > 0;
    }
    e->swaps |= s->swap_optimizer || s->swap_weights;
    w->work = dcp_save_work_bytes(&(struct dcp_save_options){
        .delta = s->delta,
        .keep_optimizer = s->keep_optimizer,
        .consolidated =
            s->gather_16bit_on_save ? &(struct dcp_export){ .name = NULL } : NULL,
    });
    if (!run_saves_aside(s))
        return DCP_OK;
    /* A save writes weights and optimizer once, each rank an even share. */
    cut.stage = cut.shard_size = cut.near_size = 0;
    cut.offload_weights = cut.offload_optimizer =
        (struct shard_offload){ .folder = NULL };
    DCP_TRY(shard_plan(model, &cut, 1, false, false, &whole, err));
    w->saving = (whole.weights + whole.optimizer) / (uint64_t)w->world_size;
    return DCP_OK;
}

static void describe(struct estimate *e, const struct settings *s,
                     const struct model *model)
{
    struct model_recompute r = recompute_of(e, s);
    int n;
    const struct model_param *params = model_params(model, &n);
    e->known = true;
    e->model = s->model;
    e->precision = settings_precision(s);
    for (int p = 0; p < n; p++)
        e->n_elems += params[p].n_elems;
    snprintf(e->way, sizeof e->way, r.attention ? "selective" : "full");
    if (r.every > 1)
        snprintf(e->way, sizeof e->way, "every %d", r.every);
}

static int fill_world(struct estimate *e, struct world *w, const struct settings *s,
                      struct dcp_error *err)
{
    const struct model_recompute ways[2] = { { 0 }, recompute_of(e, s) };
    int rc = DCP_OK;
    w->micro_batch = s->micro_batch;
    w->seq_len = s->seq_len;
    w->accumulation = s->accumulation;
    for (int i = 0; !rc && i < 2; i++) {
        struct model *model = NULL;
        rc = plan_model(s, ways[i], &model, err);
        if (!rc)
            w->activations[i] = model_activation_bytes(model);
        if (!rc && i == 1)
            rc = plan_state(e, w, s, model, err);
        if (!rc && i == 1 && !e->known)
            describe(e, s, model);
        model_free(model);
    }
    return rc;
}

/* Batches may be impossible at one world size and not at another. */
static int make(struct estimate *e, struct dcp_error *err)
{
    struct dcp_error first = { 0 };
    int failed = DCP_OK;
    for (int i = 0; i < e->n_worlds; i++) {
        struct world *w = &e->worlds[i];
        struct settings settings = { 0 };
        struct dcp_error why = { 0 };
        const struct dcp_log *log = i ? NULL : &e->main->log;
        int rc = run_read_settings(e->options, w->world_size, w->world_size, log,
                                   &settings, &why);
        if (!rc)
            rc = fill_world(e, w, &settings, &why);
        settings_fini(&settings);
        if (rc)
            snprintf(w->why, sizeof w->why, "%s", why.message);
        if (rc && !failed) {
            failed = rc;
            first = why;
        }
    }
    if (e->known)
        return DCP_OK;
    if (err)
        *err = first;
    return failed;
}

static uint64_t total(const struct estimate *e, const struct world *w, int stage,
                      bool again)
{
    const struct shard_bytes *b = &w->of[stage];
    const uint64_t parts[] = { b->gradients,           b->optimizer,
                               b->transient,           w->activations[again],
                               e->gpu ? 0 : w->saving, e->gpu ? 0 : w->work };
    uint64_t sum = b->weights;
    for (size_t i = 0; i < DCP_ARRAY_LEN(parts); i++)
        if (!dcp_add_u64(sum, parts[i], &sum))
            return UINT64_MAX;
    return sum;
}

/* --- for people --- */

static int print_world(const struct estimate *e, const struct world *w,
                       struct dcp_error *err)
{
    const struct dcp_term *out = &e->main->out;
    struct dcp_column columns[] = {
        { .title = "stage", .right = true },     { .title = "weights", .right = true },
        { .title = "gradients", .right = true }, { .title = "optimizer", .right = true },
        { .title = "layers", .right = true },    { .title = "in all", .right = true },
        { .title = e->way, .right = true },      { .title = "", .right = true },
        { .title = "", .right = true }
    };
    size_t n_columns = 7;
    if (e->hosts)
        columns[n_columns++].title = "on the host";
    if (e->swaps)
        columns[n_columns++].title = "on disk";
    dcp_term_printf(out, "\n%s",
                    dcp_human_items((uint64_t)w->world_size, "rank", "ranks").text);
    if (w->why[0]) {
        dcp_term_printf(out, ": %s\n", w->why);
        return DCP_OK;
    }
    dcp_term_printf(out, ", %d × %d samples of %d tokens each\n", w->accumulation,
                    w->micro_batch, w->seq_len);
    dcp_term_printf(out, "activations %s, %s %s; a save's copy %s%s%s%s\n",
                    dcp_human_size(w->activations[0]).text, e->way,
                    dcp_human_size(w->activations[1]).text,
                    dcp_human_size(w->saving).text, w->work ? ", its work " : "",
                    w->work ? dcp_human_size(w->work).text : "",
                    e->gpu ? " of the host" : "");
    struct dcp_table *table = dcp_table_new(columns, n_columns);
    if (!table)
        return dcp_error_memory(err, "a table");
    for (int stage = 0; stage < N_STAGES; stage++) {
        const struct shard_bytes *b = &w->of[stage];
        const uint64_t sizes[] = { b->weights,
                                   b->gradients,
                                   b->optimizer,
                                   b->transient,
                                   total(e, w, stage, false),
                                   total(e, w, stage, true),
                                   e->hosts ? b->host : b->swapped,
                                   b->swapped };
        dcp_table_cell(table, "%d", stage);
        for (size_t i = 0; i + 1 < n_columns; i++)
            dcp_table_cell(table, "%s", dcp_human_size(sizes[i]).text);
    }
    int rc = dcp_table_print(table, out, 0, err);
    dcp_table_free(table);
    return rc;
}

static int print_text(const struct estimate *e, struct dcp_error *err)
{
    const struct dcp_term *out = &e->main->out;
    dcp_term_printf(out, "%s, %d layers, %d heads, width %d: %s parameters in %s\n",
                    e->model.family, e->model.n_layer, e->model.n_head, e->model.n_embd,
                    dcp_human_count((uint64_t)e->n_elems).text, e->precision);
    for (int i = 0; i < e->n_worlds; i++)
        DCP_TRY(print_world(e, &e->worlds[i], err));
    dcp_term_printf(out,
                    "\nlayers: gathered ones, and the gradients of one on their way\n"
                    "in all: with activations%s; %s: with activation checkpointing\n",
                    e->gpu ? "" : " and a save's copy", e->way);
    return DCP_OK;
}

/* --- for programs --- */

static json_t *row_of(const struct estimate *e, const struct world *w, int stage)
{
    const struct shard_bytes *b = &w->of[stage];
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        { "world", (uint64_t)w->world_size },
        { "stage", (uint64_t)stage },
        { "micro_batch", (uint64_t)w->micro_batch },
        { "accumulation", (uint64_t)w->accumulation },
        { "weight_bytes", b->weights },
        { "gradient_bytes", b->gradients },
        { "optimizer_bytes", b->optimizer },
        { "layer_bytes", b->transient },
        { "host_bytes", b->host },
        { "disk_bytes", b->swapped },
        { "activation_bytes", w->activations[0] },
        { "checkpointed_activation_bytes", w->activations[1] },
        { "save_bytes", w->saving },
        { "save_work_bytes", w->work },
        { "total_bytes", total(e, w, stage, false) },
        { "checkpointed_total_bytes", total(e, w, stage, true) },
    };
    json_t *row = json_object();
    int rc = row ? DCP_OK : DCP_E_MEMORY;
    for (size_t i = 0; !rc && i < DCP_ARRAY_LEN(rows); i++)
        rc = dcp_doc_set(row, rows[i].name, dcp_doc_u64(rows[i].value));
    if (!rc)
        return row;
    json_decref(row);
    return NULL;
}

static int add_world_to(json_t *possible, json_t *impossible, const struct estimate *e,
                        const struct world *w)
{
    int rc = DCP_OK;
    if (w->why[0])
        return dcp_doc_add(impossible, json_pack("{s:i, s:o}", "world", w->world_size,
                                                 "why", dcp_doc_text(w->why)));
    for (int stage = 0; !rc && stage < N_STAGES; stage++)
        rc = dcp_doc_add(possible, row_of(e, w, stage));
    return rc;
}

static int print_json(const struct estimate *e, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *doc = dcp_doc_new("estimate");
    json_t *possible = json_array(), *impossible = json_array();
    int rc = doc ? dcp_doc_set(doc, "parameters", dcp_doc_u64((uint64_t)e->n_elems))
                 : DCP_E_MEMORY;
    if (!rc)
        rc = dcp_doc_set(doc, "dtype", dcp_doc_text(e->precision));
    if (!rc)
        rc = dcp_doc_set(doc, "activation_checkpointing", dcp_doc_text(e->way));
    for (int i = 0; !rc && i < e->n_worlds; i++)
        rc = add_world_to(possible, impossible, e, &e->worlds[i]);
    if (!rc) {
        rc = dcp_doc_set(doc, "estimates", json_incref(possible));
        if (!rc)
            rc = dcp_doc_set(doc, "impossible", json_incref(impossible));
    }
    json_decref(possible);
    json_decref(impossible);
    return rc ? dcp_error_memory(err, "the answer")
              : dcp_doc_print(e->main->out.file, doc, err);
}

int estimate_print(struct dcp_main *main, const struct run_options *options,
                   struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct estimate *e = dcp_mem_calloc(1, sizeof *e);
    if (!e)
        return dcp_error_memory(err, "an estimate");
    e->main = main;
    e->options = options;
    e->gpu = options->device == COMPUTE_CUDA;
    DCP_TRY(read_worlds(e, err));
    DCP_TRY(make(e, err));
    return main->json ? print_json(e, err) : print_text(e, err);
}
