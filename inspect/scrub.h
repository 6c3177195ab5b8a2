/* scrub: where the verification of checkpoints in the background goes on. */
#ifndef INSPECT_SCRUB_H
#define INSPECT_SCRUB_H

#include "base/json.h"

struct inspect_scrub {
    char *dir, *name; /* of the file of states */
    bool makes_dir;
    json_t *states;
};

/* `file` is where states are kept; NULL: scrub.json below XDG_STATE_HOME, or
 * ~/.local/state. Closed with inspect_scrub_close, also after a failure. Errors: USAGE
 * (no HOME), IO, CORRUPT (the file is none of ours), MEMORY. */
int inspect_scrub_open(const char *file, struct inspect_scrub *out,
                       struct dcp_error *err);
void inspect_scrub_close(struct inspect_scrub *scrub);

/* Which of the steps of a run (newest first, those that are `done` left out) comes next:
 * one that was begun, one that was never read, or the one that was read the longest ago;
 * n when all are done. *out_from is where it goes on: a fraction of its bytes. A
 * checkpoint that is no run is given as the run, with NULL as its one step. Runs are
 * known by their real path. Errors: IO, MEMORY. */
int inspect_scrub_next(const struct inspect_scrub *scrub, const char *run,
                       const char *const *steps, const bool *done, size_t n,
                       size_t *out_next, double *out_from, struct dcp_error *err);
/* Remembers that steps[read] was read up to `from` (0: to its end), and forgets steps
 * that are no more. Errors: IO, MEMORY. */
int inspect_scrub_set(struct inspect_scrub *scrub, const char *run,
                      const char *const *steps, size_t n, size_t read, double from,
                      struct dcp_error *err);

/* "5%" or "5": a part of 1, more than 0. */
int inspect_scrub_parse(const char *text, double *out_part, struct dcp_error *err);

#endif
