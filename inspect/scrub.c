#include "scrub.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/doc.h"
#include <dcp/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STATE_BYTES ((size_t)16 << 20)
#define STATE_NAME "scrub.json"

/* Folder and name of the file of states. */
static int find_state(const char *file, char **out_dir, char **out_name,
                      struct dcp_error *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (file)
        return dcp_fs_split(file, out_dir, out_name) ? DCP_OK
                                                     : dcp_error_memory(err, "a path");
    bool given = state && state[0] == '/';
    if (!given && !(home && home[0] == '/'))
        return dcp_error_set(err, DCP_E_USAGE,
                             "there is no HOME to remember the place in: give --state");
    *out_dir =
        dcp_fs_join(given ? state : home, given ? "libdcp" : ".local/state/libdcp");
    *out_name = strdup(STATE_NAME);
    if (!*out_dir || !*out_name)
        return dcp_error_memory(err, "a path");
    return DCP_OK;
}

/* The states of all checkpoints; an empty object when there is no file. */
static int read_states(const char *dir, const char *name, json_t **out,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_fs_join(dir, name);
    DCP_CLEANUP_FREE void *text = NULL;
    size_t n = 0;
    *out = NULL;
    if (!path)
        return dcp_error_memory(err, "a path");
    if (!dcp_fs_exists(path)) {
        *out = json_object();
        return *out ? DCP_OK : dcp_error_memory(err, "a state");
    }
    int rc = dcp_fs_read_file(path, MAX_STATE_BYTES, &text, &n, err);
    if (!rc)
        rc = dcp_json_parse(text, n, path, out, err);
    if (!rc && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        rc = dcp_error_set(err, DCP_E_CORRUPT, "'%s' is no file of states", path);
    }
    return rc;
}

static char *real_path(const char *path, struct dcp_error *err)
{
    char *real = realpath(path, NULL);
    if (!real)
        dcp_error_sys(err, DCP_E_IO, 0, "cannot resolve '%s'", path);
    return real;
}

int inspect_scrub_open(const char *file, struct inspect_scrub *out, struct dcp_error *err)
{
    *out = (struct inspect_scrub){ 0 };
    int rc = find_state(file, &out->dir, &out->name, err);
    if (!rc)
        rc = read_states(out->dir, out->name, &out->states, err);
    out->makes_dir = !file;
    return rc;
}

void inspect_scrub_close(struct inspect_scrub *scrub)
{
    free(scrub->dir);
    free(scrub->name);
    json_decref(scrub->states);
    *scrub = (struct inspect_scrub){ 0 };
}

/* What is known of a step: {"from": 0.35, "turn": 7}, the turn it was last read in; NULL
 * when it never was. */
static json_t *known(const json_t *run, const char *step)
{
    return json_object_get(json_object_get(run, "steps"), step);
}

static double place_of(const json_t *value)
{
    double from = json_number_value(value);
    return from > 0 && from < 1 ? from : 0;
}

/* What was begun is ended; then comes what was never read, the oldest first; then what
 * was read the longest ago. */
static bool comes_before(const json_t *a, const json_t *b)
{
    bool a_begun = place_of(json_object_get(a, "from")) > 0,
         b_begun = place_of(json_object_get(b, "from")) > 0;
    if (a_begun != b_begun)
        return a_begun;
    return json_integer_value(json_object_get(a, "turn")) <=
           json_integer_value(json_object_get(b, "turn"));
}

int inspect_scrub_next(const struct inspect_scrub *scrub, const char *run,
                       const char *const *steps, const bool *done, size_t n,
                       size_t *out_next, double *out_from, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *real = real_path(run, err);
    if (!real)
        return DCP_E_IO;
    const json_t *state = json_object_get(scrub->states, real), *best = NULL;
    size_t next = n;
    for (size_t i = 0; i < n; i++) { /* newest first */
        const json_t *step = steps[i] ? known(state, steps[i]) : NULL;
        if (done[i] || (next < n && !comes_before(step, best)))
            continue;
        next = i;
        best = step;
    }
    *out_next = next;
    if (next < n)
        *out_from = place_of(steps[next] ? json_object_get(best, "from") : state);
    return DCP_OK;
}

/* Of the steps of a run those that are there are remembered. */
static json_t *note(const json_t *old, const char *const *steps, size_t n, size_t read,
                    double from)
{
    json_int_t turn = json_integer_value(json_object_get(old, "turn")) + 1;
    json_t *run = json_pack("{s:I, s:{}}", "turn", turn, "steps");
    json_t *list = json_object_get(run, "steps");
    for (size_t i = 0; run && i < n; i++) {
        json_t *step = i == read ? json_pack("{s:f, s:I}", "from", from, "turn", turn)
                                 : json_incref(known(old, steps[i]));
        if (step && json_object_set_new(list, steps[i], step)) {
            json_decref(run);
            return NULL;
        }
    }
    return run;
}

int inspect_scrub_set(struct inspect_scrub *scrub, const char *run,
                      const char *const *steps, size_t n, size_t read, double from,
                      struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *real = real_path(run, err);
    struct dcp_store store = { 0 };
    if (!real)
        return DCP_E_IO;
    json_t *state = steps[read]
                        ? note(json_object_get(scrub->states, real), steps, n, read, from)
                        : json_real(from);
    int rc = dcp_doc_set(scrub->states, real, state) ? dcp_error_memory(err, "a state")
                                                     : DCP_OK;
    DCP_CLEANUP_FREE char *text = rc ? NULL : dcp_json_text(scrub->states, 2);
    if (!rc && !text)
        rc = dcp_error_memory(err, "a state");
    if (!rc)
        rc = dcp_store_dir(&store, scrub->dir, scrub->makes_dir, err);
    if (!rc)
        rc = store.ops->replace(store.self, scrub->name, text, strlen(text), err);
    if (store.ops)
        dcp_store_free(&store);
    return rc;
}

int inspect_scrub_parse(const char *text, double *out_part, struct dcp_error *err)
{
    char *end;
    double percent = strtod(text, &end);
    bool whole = end != text && (!*end || !strcmp(end, "%"));
    if (!whole || !(percent > 0) || percent > 100)
        return dcp_error_set(err, DCP_E_USAGE,
                             "--subset '%s' is no percentage, such as 5%%", text);
    *out_part = percent / 100;
    return DCP_OK;
}
