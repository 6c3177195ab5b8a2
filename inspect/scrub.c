#include "scrub.h"

#include "base/mem.h"
#include "cli/doc.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_PERCENT 0.001

int inspect_scrub_open(const char *file, struct inspect_scrub *out, struct dcp_error *err)
{
    *out = (struct inspect_scrub){ 0 };
    DCP_TRY(dcp_scrub_file_find(file, &out->file, err));
    return dcp_scrub_file_change(&out->file, NULL, NULL, &out->states, err);
}

void inspect_scrub_close(struct inspect_scrub *scrub)
{
    dcp_scrub_file_fini(&scrub->file);
    json_decref(scrub->states);
    *scrub = (struct inspect_scrub){ 0 };
}

char *inspect_scrub_key(const char *path, struct dcp_error *err)
{
    char *real = realpath(path, NULL);
    if (real)
        return real;
    if (errno == ENOENT || errno == ENOTDIR)
        dcp_error_set(err, DCP_E_NOT_FOUND, "there is no '%s'", path);
    else
        dcp_error_sys(err, errno == ENOMEM ? DCP_E_MEMORY : DCP_E_IO, errno,
                      "cannot resolve '%s'", path);
    return NULL;
}

/* What is known of a step: {"from": 0.35, "turn": 7}, the turn it was last read in; NULL
 * when it never was. */
static json_t *known(const json_t *run, const char *step)
{
    return json_object_get(json_object_get(run, "steps"), step);
}

/* What was begun is ended; then comes what was never read, the oldest first; then what
 * was read the longest ago. */
static bool comes_before(const json_t *a, const json_t *b)
{
    bool a_begun = dcp_scrub_position(json_object_get(a, "from")) > 0,
         b_begun = dcp_scrub_position(json_object_get(b, "from")) > 0;
    if (a_begun != b_begun)
        return a_begun;
    return json_integer_value(json_object_get(a, "turn")) <=
           json_integer_value(json_object_get(b, "turn"));
}

size_t inspect_scrub_next(const struct inspect_scrub *scrub, const char *run,
                          const char *const *steps, const bool *done, size_t n,
                          double *out_from)
{
    const json_t *state = json_object_get(scrub->states, run), *best = NULL;
    size_t next = n;
    for (size_t i = 0; i < n; i++) { /* newest first */
        const json_t *step = steps[i] ? known(state, steps[i]) : NULL;
        if (done[i] || (next < n && !comes_before(step, best)))
            continue;
        next = i;
        best = step;
    }
    if (next < n)
        *out_from =
            dcp_scrub_position(steps[next] ? json_object_get(best, "from") : state);
    return next;
}

struct change {
    const char *run;
    const char *const *steps;
    size_t n, read;
    double from;
};

/* Of the steps of a run those that are there are remembered. */
static json_t *note(const struct change *c, const json_t *old)
{
    json_int_t turn = json_integer_value(json_object_get(old, "turn")) + 1;
    json_t *run = json_pack("{s:I, s:{}}", "turn", turn, "steps");
    json_t *list = json_object_get(run, "steps");
    for (size_t i = 0; run && i < c->n; i++) {
        json_t *step = i == c->read
                           ? json_pack("{s:f, s:I}", "from", c->from, "turn", turn)
                           : json_incref(known(old, c->steps[i]));
        if ((step || i == c->read) && json_object_set_new(list, c->steps[i], step)) {
            json_decref(run);
            return NULL;
        }
    }
    return run;
}

static int change_run(void *self, json_t *states, struct dcp_error *err)
{
    const struct change *c = self;
    json_t *state =
        c->steps[c->read] ? note(c, json_object_get(states, c->run)) : json_real(c->from);
    return dcp_doc_set(states, c->run, state) ? dcp_error_memory(err, "a state") : DCP_OK;
}

int inspect_scrub_set(struct inspect_scrub *scrub, const char *run,
                      const char *const *steps, size_t n, size_t read, double from,
                      struct dcp_error *err)
{
    struct change change = { run, steps, n, read, from };
    json_t *states;
    DCP_TRY(dcp_scrub_file_change(&scrub->file, change_run, &change, &states, err));
    json_decref(scrub->states);
    scrub->states = states;
    return DCP_OK;
}

int inspect_scrub_parse(const char *text, double *out_part, struct dcp_error *err)
{
    char *end;
    double percent = strtod(text, &end);
    bool whole = end != text && (!*end || !strcmp(end, "%"));
    if (!whole || !(percent >= LEAST_PERCENT) || percent > 100)
        return dcp_error_set(err, DCP_E_USAGE,
                             "--subset '%s' is no percentage from %g%% to 100%%, such as "
                             "5%%",
                             text, LEAST_PERCENT);
    *out_part = percent / 100;
    return DCP_OK;
}
