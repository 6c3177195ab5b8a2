#include "steps.h"
#include "base/mem.h"
#include "base/str.h"
#include "core/collective/await.h"
#include "core/parity/reconstruction.h"
#include "pin.h"
#include <dcp/delta.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dcp_step_name(char out[64], int64_t step)
{
    snprintf(out, 64, "step-%08" PRId64, step);
}

int64_t dcp_step_parse(const char *name)
{
    int64_t step;
    char again[64];

    if (!dcp_str_starts(name, "step-") || !dcp_str_parse_i64(name + 5, &step) || step < 0)
        return -1;
    dcp_step_name(again, step);
    return strcmp(again, name) ? -1
                               : step; /* one spelling: no two folders for one step */
}

void dcp_superseded_name(const char *step, int64_t i, char out[96])
{
    if (i == 1)
        snprintf(out, 96, "%s" DCP_SUPERSEDED_SUFFIX, step);
    else
        snprintf(out, 96, "%s" DCP_SUPERSEDED_SUFFIX "-%" PRId64, step, i);
}

bool dcp_is_superseded(const char *name)
{
    const char *suffix = strstr(name, DCP_SUPERSEDED_SUFFIX);
    char step[64], again[96];
    int64_t i = 1;

    if (!suffix || (size_t)(suffix - name) >= sizeof step)
        return false;
    snprintf(step, sizeof step, "%.*s", (int)(suffix - name), name);
    suffix += strlen(DCP_SUPERSEDED_SUFFIX);
    if (*suffix && !dcp_str_parse_i64(suffix + 1, &i))
        return false;
    dcp_superseded_name(step, i, again);
    return dcp_step_parse(step) >= 0 && i >= 1 && !strcmp(again, name);
}

bool dcp_is_step(const struct dcp_store *store)
{
    struct dcp_store_entry *entries;
    bool found = false;
    size_t n;

    if (store->ops->list(store->self, "", &entries, &n, NULL))
        return false;
    for (size_t i = 0; i < n; i++)
        found |= dcp_str_starts(entries[i].name, "shard-") ||
                 dcp_str_starts(entries[i].name, "parity-");
    dcp_store_list_free(entries, n);
    return found;
}

/* Whether it is a delta, and against what. */
static void look_for_base(const struct dcp_store *store, struct dcp_step *step)
{
    DCP_CLEANUP_FREE char *base = NULL;

    if (dcp_delta_base(store, step->name, &base, &step->chain, NULL))
        return;
    bool beside = dcp_str_starts(base, "../") && !strchr(base + 3, '/');
    snprintf(step->base, sizeof step->base, "%s", beside ? base + 3 : base);
}

/* Fills what the manifest says, and whether the step is complete. *out_head, unless NULL:
 * the head that was read; then the tables of its pieces are not looked into, since the
 * caller reads them as far as it needs them. */
static int look_into(const struct dcp_store *store, const char *name,
                     struct dcp_catalog **out_head, struct dcp_step *out,
                     struct dcp_error *err)
{
    const struct dcp_format *steps = dcp_format_of_steps();
    struct dcp_source source = { store, name, true };
    struct dcp_catalog *catalog;
    int rc = dcp_catalog_new(&catalog, err);

    if (!rc)
        rc = steps->index_head(&source, catalog, err);
    if (!rc && !out_head)
        rc = steps->index_counts(&source, catalog, err);
    if (!rc && dcp_step_parse(name) != catalog->step)
        rc = dcp_error_set(err, DCP_E_CORRUPT, "its manifest is that of step %" PRId64,
                           catalog->step);
    out->complete = !rc;
    look_for_base(store, out);
    if (!rc) {
        out->diverged = catalog->diverged;
        out->world_size = catalog->world_size;
        for (size_t t = 0; t < catalog->n_tensors; t++) {
            const struct dcp_tensor *tensor = &catalog->tensors[t];
            uint64_t bytes = tensor->tied_to ? 0 : dcp_tensor_bytes(tensor);
            out->size_bytes += bytes;
            out->optimizer_bytes += dcp_role_is_optim(tensor->role) ? bytes : 0;
        }
        out->weights_only = dcp_holds_weights_only(catalog);
        dcp_lineage_read(catalog, &out->lineage);
        out->fingerprint = dcp_state_fingerprint(catalog);
        out->weights_fingerprint = dcp_weights_fingerprint(catalog);
    }
    if (rc || !out_head)
        dcp_catalog_free(catalog);
    else
        *out_head = catalog;
    return rc;
}

/* Whether parity gives what is missing: nothing but manifests is read through it. */
static int check_reconstructed(const struct dcp_store *store, struct dcp_step *step,
                               struct dcp_error *err)
{
    struct dcp_step reconstructed = { .complete = false };
    struct dcp_reconstruction *rebuilt;

    DCP_TRY(dcp_reconstruction_open(store, step->name, &rebuilt, err));
    int rc = look_into(dcp_reconstruction_store(rebuilt), step->name, NULL,
                       &reconstructed, err);
    dcp_reconstruction_free(rebuilt);
    step->recoverable = !rc;
    step->diverged = !rc && reconstructed.diverged;
    return rc;
}

static int newest_first(const void *a, const void *b)
{
    const struct dcp_step *x = a, *y = b;

    return x->step > y->step ? -1 : x->step < y->step;
}

int dcp_steps(const struct dcp_store *store, struct dcp_step **out, size_t *out_n,
              size_t *out_unfinished, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n, n_steps = 0, unfinished = 0;
    int rc = store->ops->list(store->self, "", &entries, &n, err);

    *out = NULL;
    *out_n = 0;
    if (rc)
        return rc;
    struct dcp_step *steps = dcp_mem_calloc(n, sizeof *steps);
    for (size_t i = 0; steps && i < n; i++) {
        int64_t step = dcp_step_parse(entries[i].name);
        if (entries[i].is_dir && dcp_str_starts(entries[i].name, DCP_TMP_PREFIX))
            unfinished++;
        if (!entries[i].is_dir || step < 0)
            continue;
        struct dcp_step *s = &steps[n_steps++];
        s->step = step;
        dcp_step_name(s->name, step);
        int rc_of_step = look_into(store, s->name, NULL, s, &s->why);
        if (rc_of_step && dcp_is_gone(store, s->name)) { /* since it was listed */
            *s = (struct dcp_step){ 0 };
            n_steps--;
            continue;
        }
        if (!s->complete)
            check_reconstructed(store, s, NULL);
    }
    dcp_store_list_free(entries, n);
    if (!steps)
        return dcp_error_memory(err, "the list of steps");
    qsort(steps, n_steps, sizeof *steps, newest_first);
    *out = steps;
    *out_n = n_steps;
    if (out_unfinished)
        *out_unfinished = unfinished;
    return DCP_OK;
}

/* There is no step of that number, or, -1, none at all; who named a step in place of a
 * run is told so. */
static int refuse(const struct dcp_store *store, int64_t wanted, struct dcp_error *err)
{
    const struct dcp_format *steps = dcp_format_of_steps();
    const struct dcp_source root = { store, "", true };
    struct dcp_catalog *catalog = NULL;
    char name[64];

    if (wanted < 0)
        dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step in '%s'", store->root);
    else
        dcp_error_set(err, DCP_E_NOT_FOUND, "there is no step %" PRId64 " in '%s'",
                      wanted, store->root);
    if (!steps->probe(&root)) {
        if (wanted >= 0)
            dcp_error_hint(err, "'dcp-inspect %s' lists the steps", store->root);
        return DCP_E_NOT_FOUND;
    }
    bool known =
        !dcp_catalog_new(&catalog, NULL) && !steps->index_head(&root, catalog, NULL);
    int64_t number = known ? catalog->step : -1;
    dcp_catalog_free(catalog);
    dcp_step_name(name, number);
    if (number >= 0)
        dcp_error_hint(err,
                       "the folder itself is a step: move it into a run folder as '%s'; "
                       "or libdcp.open reads it where it is",
                       name);
    else
        dcp_error_hint(err, "the folder itself is a step, of no known number: "
                            "libdcp.open reads it where it is");
    return DCP_E_NOT_FOUND;
}

/* What rank 0 looks for. */
struct search {
    const struct dcp_context *ctx;
    int64_t wanted, below;
    bool to_read; /* rank 0 gets: */
    struct dcp_reading reading;
    struct dcp_step found;
};

/* Looks into a folder, which who reads it pins before. */
static int look(struct search *search, struct dcp_error *err)
{
    const struct dcp_store *store = search->ctx->store;
    struct dcp_reading *reading = &search->reading;
    bool to_read = search->to_read;

    dcp_reading_end(store, reading);
    if (to_read)
        dcp_pin(store, search->found.name, &reading->pin, NULL);
    return look_into(store, search->found.name, to_read ? &reading->head : NULL,
                     &search->found, err);
}

/* Looks at the folders from the newest on and stops at the first complete step: older
 * ones are not read. *out_gone: a step went while it was looked at, so there are newer
 * ones.
 */
static int find_once(struct search *search, bool *out_gone, struct dcp_error *err)
{
    const struct dcp_store *store = search->ctx->store;
    struct dcp_step *out = &search->found;
    int64_t below = search->below, wanted = search->wanted;
    struct dcp_store_entry *entries;
    struct dcp_error why = { 0 };
    size_t n, seen = 0;
    int rc = store->ops->list(store->self, "", &entries, &n, err);

    if (rc)
        return rc;
    for (;;) {
        int64_t best = -1;
        for (size_t i = 0; i < n; i++) {
            int64_t step = entries[i].is_dir ? dcp_step_parse(entries[i].name) : -1;
            if (step > best && step < below && (wanted < 0 || step == wanted))
                best = step;
        }
        if (best < 0)
            break;
        below = best;
        seen++;
        *out = (struct dcp_step){ .step = best };
        dcp_step_name(out->name, best);
        struct dcp_error refused = { 0 };
        rc = look(search, &refused);
        if (rc == DCP_E_MEMORY && err)
            *err = refused;
        if (rc == DCP_OK || rc == DCP_E_MEMORY) /* it says nothing about the step */
            break;
        *out_gone = dcp_is_gone(store, out->name);
        if (*out_gone)
            break;
        dcp_log_write(search->ctx->log, DCP_LOG_WARN, "%s is incomplete: %s", out->name,
                      refused.message);
        struct dcp_error beyond = { 0 };
        rc = check_reconstructed(store, out, &beyond);
        out->why = refused;
        if (rc == DCP_E_MEMORY && err)
            *err = beyond;
        if (rc == DCP_OK || rc == DCP_E_MEMORY)
            break;
        if (!why.code)
            why = refused;
    }
    dcp_store_list_free(entries, n);
    if (out->complete || out->recoverable || rc == DCP_E_MEMORY)
        return rc;

    if (!seen)
        return refuse(store, wanted, err);
    rc = why.code == DCP_E_UNSUPPORTED ? DCP_E_UNSUPPORTED : DCP_E_CORRUPT;
    return dcp_error_set(err, rc, "no step in '%s' is complete: %s", store->root,
                         why.message);
}

static int find_here(void *arg, struct dcp_error *err)
{
    struct search *search = arg;
    struct dcp_error why = { 0 };
    bool gone = true;
    int rc = DCP_E_NOT_FOUND;

    for (int i = 0; i < DCP_MOST_LOOKS && gone; i++) {
        why = (struct dcp_error){ 0 };
        gone = false;
        rc = find_once(search, &gone, &why);
    }
    if (rc)
        dcp_reading_end(search->ctx->store, &search->reading);
    if (rc && err)
        *err = why;
    return rc;
}

static int find(struct search *search, struct dcp_step *out_step, struct dcp_error *err)
{
    struct dcp_comm self;
    struct dcp_comm *comm = search->ctx->comm;

    if (!comm) {
        dcp_comm_self(&self);
        comm = &self;
    }
    int rc = dcp_await(comm, comm->rank == 0 ? find_here : NULL, search, err);
    if (!rc)
        rc = dcp_comm_bcast(comm, &search->found, sizeof search->found, 0, err);
    if (!rc)
        *out_step = search->found;
    else
        dcp_reading_end(search->ctx->store, &search->reading);
    return rc;
}

int dcp_find(const struct dcp_context *ctx, int64_t step, struct dcp_step *out_step,
             struct dcp_error *err)
{
    struct search search = { .ctx = ctx, .wanted = step, .below = INT64_MAX };
    return find(&search, out_step, err);
}

int dcp_find_to_read(const struct dcp_context *ctx, int64_t step, int64_t below,
                     struct dcp_step *out_step, struct dcp_reading *out,
                     struct dcp_error *err)
{
    struct search search = {
        .ctx = ctx, .wanted = step, .below = below, .to_read = true
    };
    int rc = find(&search, out_step, err);

    *out = search.reading;
    return rc;
}

int dcp_find_below(const struct dcp_context *ctx, int64_t step, int64_t below,
                   struct dcp_step *out_step, struct dcp_error *err)
{
    struct dcp_reading reading;
    int rc = dcp_find_to_read(ctx, step, below, out_step, &reading, err);

    dcp_reading_end(ctx->store, &reading);
    return rc;
}

void dcp_reading_end(const struct dcp_store *store, struct dcp_reading *reading)
{
    dcp_unpin(store, &reading->pin);
    dcp_catalog_free(reading->head);
    reading->head = NULL;
}
