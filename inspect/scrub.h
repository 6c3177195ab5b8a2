/* scrub: where the verification of checkpoints in the background goes on. */
#ifndef INSPECT_SCRUB_H
#define INSPECT_SCRUB_H

#include "cli/scrub_file.h"

struct inspect_scrub {
    struct dcp_scrub_file file;
    json_t *states;
};

/* As dcp_scrub_file_find says. The file is written once, so that one that cannot be is
 * told before anything is read. Closed with inspect_scrub_close, also after a failure.
 * Errors: those of dcp_scrub_file_find and dcp_scrub_file_change. */
int inspect_scrub_open(const char *file, struct inspect_scrub *out,
                       struct dcp_error *err);
void inspect_scrub_close(struct inspect_scrub *scrub);

/* What a checkpoint is known by: its real path, caller frees. NULL, with an error, where
 * there is none: NOT_FOUND, IO. */
char *inspect_scrub_key(const char *path, struct dcp_error *err);

/* Which of the steps of a run (newest first, those that are `done` left out) comes next:
 * one that was begun, one that was never read, or the one that was read the longest ago;
 * n when all are done. *out_from is where it goes on: a fraction of its bytes. A
 * checkpoint that is no run is given as the run, with NULL as its one step. */
size_t inspect_scrub_next(const struct inspect_scrub *scrub, const char *run,
                          const char *const *steps, const bool *done, size_t n,
                          double *out_from);
/* Remembers that steps[read] was read up to `from` (0: to its end), and forgets steps
 * that are no more; what others remember meanwhile stays. Errors: those of
 * dcp_scrub_file_change. */
int inspect_scrub_set(struct inspect_scrub *scrub, const char *run,
                      const char *const *steps, size_t n, size_t read, double from,
                      struct dcp_error *err);

/* "5%" or "5": a part of 1, at least 0.00001. */
int inspect_scrub_parse(const char *text, double *out_part, struct dcp_error *err);

#endif
