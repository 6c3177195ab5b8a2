#include "check.h"
#include "lib/must.h"
#include "lib/sample.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SALT = 64, MAX_TENSORS = 32 };

bool wrong(char why[512], const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, 512, format, args);
    va_end(args);
    return false;
}

/* Fingerprints of the sample, made once. */
static const struct sample *sample_of(unsigned salt, const uint64_t **out_fingerprints)
{
    static struct sample samples[MAX_SALT];
    static uint64_t fingerprints[MAX_SALT][MAX_TENSORS];
    int n = sample_n_tensors();

    must(salt < MAX_SALT && n <= MAX_TENSORS);
    struct sample *sample = &samples[salt];
    if (!sample->catalog) {
        sample_make_first(sample, n, "replicated", 1, 0, false, salt);
        for (int t = 0; t < n; t++)
            fingerprints[salt][t] = sample_fingerprint(sample, t, salt);
    }
    *out_fingerprints = fingerprints[salt];
    return sample;
}

/* Of a step that holds its weights alone, these. The last tensor may be there or not. */
static bool has_salt(const struct dcp_catalog *catalog, unsigned salt)
{
    const uint64_t *fingerprints;
    const struct sample *sample = sample_of(salt, &fingerprints);

    for (size_t t = 0; t < catalog->n_tensors; t++) {
        int s = dcp_catalog_find(sample->catalog, catalog->tensors[t].name);
        if (s < 0 || catalog->tensors[t].fingerprint != fingerprints[s])
            return false;
    }
    bool thin = dcp_holds_weights_only(catalog);
    int last = sample_n_tensors() - 1;
    size_t n = 0;
    if (dcp_catalog_find(catalog, sample->catalog->tensors[last].name) >= 0)
        n++;
    for (int t = 0; t < last; t++)
        n += !thin || !dcp_role_is_optim(sample->catalog->tensors[t].role);
    return catalog->n_tensors == n;
}

bool step_is(const struct dcp_store *store, const char *name, unsigned salt,
             unsigned other, char why[512])
{
    struct dcp_source source = { store, name, true };
    struct dcp_verify_options options = { .threads = 1 };
    struct dcp_catalog *catalog;
    struct dcp_error err = { 0 };

    if (dcp_verify(&source, &options, NULL, &err))
        return wrong(why, "%s: %s", name, err.message);
    must(dcp_catalog_new(&catalog, NULL) == 0);
    int rc = dcp_format_find("native")->index(&source, catalog, &err);
    bool fine = !rc && (has_salt(catalog, salt) || (other && has_salt(catalog, other)));
    dcp_catalog_free(catalog);
    if (rc)
        return wrong(why, "%s: %s", name, err.message);
    return fine || wrong(why, "%s does not hold what was saved", name);
}

static bool steps_are(const struct dcp_store *store, const struct run_want *want,
                      int64_t *out_newest, char why[512])
{
    struct dcp_step *steps, found = { 0 };
    struct dcp_context ctx = { .store = store };
    struct dcp_error err = { 0 };
    size_t n;
    bool fine = true;

    if (dcp_steps(store, &steps, &n, NULL, &err))
        return wrong(why, "%s", err.message);
    for (size_t i = 0; i < n && fine; i++) {
        bool again = want->again && steps[i].step == want->again;
        fine = steps[i].complete ? step_is(store, steps[i].name, STEP_SALT(steps[i].step),
                                           again ? want->again_salt : 0, why)
                                 : wrong(why, "%s is incomplete: %s", steps[i].name,
                                         steps[i].why.message);
    }
    int rc = dcp_find(&ctx, -1, &found, &err);
    *out_newest = found.step;
    int64_t due = want->least ? want->least - want->first + 1 : 0;
    if (want->keep && want->keep < due)
        due = want->keep;
    if (fine && rc && (rc != DCP_E_NOT_FOUND || want->least))
        fine = wrong(why, "step %" PRId64 " is lost: %s", want->least, err.message);
    else if (fine && !rc && (found.step < want->least || found.step > want->most))
        fine = wrong(why, "found step %" PRId64 ", not one of %" PRId64 " to %" PRId64,
                     found.step, want->least, want->most);
    else if (fine && (int64_t)n < due)
        fine = wrong(why, "%zu steps are left, not %" PRId64, n, due);
    for (int64_t s = want->least - due + 1; fine && s <= want->least && due; s++) {
        /* One that a newer step has pushed out may be gone. */
        bool pushed = want->keep && found.step - s >= want->keep;
        bool there = false;
        for (size_t i = 0; i < n; i++)
            there = there || steps[i].step == s;
        fine = there || pushed || wrong(why, "step %" PRId64 " is gone", s);
    }
    free(steps);
    return fine;
}

/* "latest" is absent or a line that is the name of a step. */
static bool latest_is(const struct dcp_store *store, const struct run_want *want,
                      int64_t newest, char why[512])
{
    void *data;
    size_t size;
    char name[64] = "";
    int64_t step = -1;

    int rc = dcp_store_read_file(store, "latest", 80, &data, &size, NULL);
    if (rc == DCP_E_NOT_FOUND)
        return !want->latest || !want->least || wrong(why, "'latest' is lost");
    if (rc)
        return wrong(why, "'latest' cannot be read");
    const char *text = data;
    if (size > 6 && !strncmp(text, "step-", 5))
        step = strtoll(text + 5, NULL, 10);
    snprintf(name, sizeof name, "step-%08" PRId64 "\n", step);
    bool fine = step > 0 && !strcmp(text, name);
    free(data);
    if (!fine)
        return wrong(why, "'latest' is torn");
    return !want->latest || (step >= want->least && step <= newest) ||
           wrong(why, "'latest' says step %" PRId64, step);
}

bool run_is(const char *folder, const struct run_want *want, char why[512])
{
    struct dcp_store store;
    struct dcp_error err = { 0 };

    if (dcp_store_delta_dir(&store, folder, false, &err))
        return !want->least ||
               wrong(why, "step %" PRId64 " is lost: %s", want->least, err.message);
    int64_t newest = 0;
    bool fine =
        steps_are(&store, want, &newest, why) && latest_is(&store, want, newest, why);
    dcp_store_free(&store);
    return fine;
}
