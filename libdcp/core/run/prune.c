#include "prune.h"
#include "base/mem.h"
#include "base/str.h"
#include "bases.h"
#include "leftover.h"
#include "pin.h"
#include "steps.h"
#include <string.h>

#define PIN_TIMEOUT_S 3600.0

/* What dead processes left: with the lease in our hands nobody else is at work here. What
 * cannot be removed stays. */
static void reap(const struct dcp_store *store, size_t *removed, struct dcp_error *err)
{
    struct dcp_store_entry *entries;
    size_t n;

    if (store->ops->list(store->self, "", &entries, &n, err))
        return;
    for (size_t i = 0; i < n; i++) {
        bool ours = dcp_str_starts(entries[i].name, DCP_TMP_PREFIX "step-") ||
                    dcp_str_starts(entries[i].name, DCP_TMP_PREFIX "repair-step-") ||
                    dcp_str_starts(entries[i].name, DCP_TRASH_PREFIX "step-");
        struct dcp_error why = { 0 };
        if (!entries[i].is_dir || !ours)
            continue;
        int rc = dcp_leftover_remove(store, entries[i].name, &why);
        *removed += rc == DCP_OK;
        if (rc && rc != DCP_E_BUSY && rc != DCP_E_NOT_FOUND && !err->code)
            *err = why; /* BUSY: a reshard takes no lease */
    }
    dcp_store_list_free(entries, n);
}

struct prune {
    const struct dcp_store *store;
    const struct dcp_retention *retention;
    const struct dcp_thinning *thinning;
    struct dcp_error *why_not; /* the first thing that could not be done */
    size_t removed;
    const char **going; /* of a dry run: what would be gone by now */
    size_t n_going;
    int n_thinned;
};

static double timeout_of(const struct dcp_retention *retention)
{
    return retention->pin_timeout_s == 0 ? PIN_TIMEOUT_S : retention->pin_timeout_s;
}

/* Marks that cannot be read are as good as a pin. */
static bool is_marked(struct prune *prune, const struct dcp_step *step)
{
    struct dcp_marks marks;

    return dcp_marks_read(prune->store, step->name, &marks, prune->why_not) ||
           marks.pinned || marks.n_tags;
}

/* Whether it has a mark, and is the base of a delta, is looked at when nobody can set one
 * or make one any more: who makes a delta pins its base. */
static enum dcp_stay remove_step(struct prune *prune, const struct dcp_step *step)
{
    if (is_marked(prune, step))
        return DCP_STAYS_MARKED;
    if (dcp_is_base(prune->store, step->name, NULL, 0))
        return DCP_STAYS_BASE;
    return dcp_leftover_bury(prune->store, step->name, prune->why_not) ? DCP_STAYS_STUCK
                                                                       : DCP_GOES;
}

/* A step that is to go goes, unless it is being read or marked. */
static enum dcp_stay retire(struct prune *prune, const struct dcp_step *step)
{
    const struct dcp_retention *retention = prune->retention;
    struct dcp_store_file *pin = NULL, *marks = NULL;
    enum dcp_stay stay = DCP_GOES;

    if (!dcp_pin_yields(prune->store, step->name, timeout_of(retention),
                        !retention->dry_run, &pin, &marks))
        stay = DCP_STAYS_READ;
    else if (!retention->dry_run)
        stay = remove_step(prune, step);
    else if (dcp_is_base(prune->store, step->name, prune->going, prune->n_going))
        stay = DCP_STAYS_BASE;
    else
        prune->going[prune->n_going++] = step->name;
    prune->removed += stay == DCP_GOES && !retention->dry_run;
    dcp_unpin(prune->store, &pin);
    dcp_unpin(prune->store, &marks);
    return stay;
}

/* The optimizer state of a step that stays, and need not keep it. */
static void thin(struct prune *prune, const struct dcp_step *step)
{
    const struct dcp_retention *retention = prune->retention;
    const struct dcp_thinning *thinning = prune->thinning;
    enum dcp_stay stay;

    if (thinning->most && prune->n_thinned == thinning->most)
        return;
    stay = retention->dry_run
               ? dcp_thin_judge(prune->store, step, prune->why_not)
               : dcp_thin(prune->store, step, thinning->make, prune->why_not);
    prune->n_thinned += stay == DCP_GOES || stay == DCP_STAYS_STUCK;
    if (retention->thinned)
        retention->thinned(retention->self, step, stay);
}

/* A run that diverged pushes out neither the newest step that is finite nor the one
 * before it: the loss of a step is that of the weights before it, so the last weights
 * that look well may be those that it diverged with. */
static void judge_all(struct prune *prune, const struct dcp_step *steps, size_t n,
                      int64_t newest)
{
    const struct dcp_retention *retention = prune->retention;
    int complete = 0, finite = 0, learned = 0;
    bool diverged = false; /* the newest one */

    for (size_t i = 0; i < n; i++) { /* newest first */
        const struct dcp_step *step = &steps[i];
        bool every = retention->keep_every > 0 && step->step % retention->keep_every == 0;
        bool above = newest >= 0 && step->step > newest;
        bool counts = step->complete && !above, is_finite = counts && !step->diverged;
        bool best = is_finite && finite < (diverged ? 2 : 1);
        int why = step->why.code;
        /* Only complete steps count, and only what lies behind enough of them goes: a
         * corrupt step is never a reason to lose a good one. What could not be read, or
         * was written by a newer version, may be complete. */
        enum dcp_stay stay = DCP_GOES;
        if (above || complete < retention->keep || !retention->keep)
            stay = DCP_STAYS_NEW;
        else if (every)
            stay = DCP_STAYS_EVERY;
        else if (best)
            stay = DCP_STAYS_FINITE;
        else if (is_marked(prune, step))
            stay = DCP_STAYS_MARKED;
        else if (why && why != DCP_E_CORRUPT)
            stay = DCP_STAYS_UNKNOWN;
        else
            stay = retire(prune, step);
        if (stay != DCP_STAYS_READ && !retention->dry_run)
            dcp_pin_invalidate(prune->store, step->name); /* it is not due any more */
        diverged |= counts && !complete && step->diverged;
        complete += counts;
        finite += is_finite;
        if (retention->judged)
            retention->judged(retention->self, step, stay);
        if (!counts || !step->optimizer_bytes)
            continue;
        if (retention->keep_optimizer && learned >= retention->keep_optimizer && !best &&
            stay != DCP_GOES)
            thin(prune, step);
        learned++;
    }
}

int dcp_prune_held(const struct dcp_store *store, const struct dcp_retention *retention,
                   const struct dcp_thinning *thinning, int64_t newest,
                   size_t *out_removed, struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_step *steps = NULL;
    size_t n = 0;
    struct dcp_error why_not = { 0 };
    struct prune prune = { store, retention, thinning, .why_not = &why_not };

    if (!retention->dry_run)
        reap(store, &prune.removed, &why_not);
    if (retention->keep > 0 || retention->keep_optimizer > 0 || retention->judged)
        dcp_steps(store, &steps, &n, NULL, &why_not);
    DCP_CLEANUP_FREE const char **going = dcp_mem_calloc(n, sizeof *going);
    if (!going)
        return dcp_error_memory(err, "the list of steps");
    prune.going = going;
    judge_all(&prune, steps, n, newest);
    if (out_removed)
        *out_removed = prune.removed;
    if (why_not.code && err)
        *err = why_not;
    return why_not.code;
}
