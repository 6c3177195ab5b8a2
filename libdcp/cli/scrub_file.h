/* scrub_file: the file in which `dcp-inspect verify --subset` remembers, for every
 * checkpoint by its real path, up to where it was read: a run's steps, each with the turn
 * it was last read in, or a fraction of whatever else it is:
 *
 *     {"/a/run": {"turn": 7, "steps": {"step-00001200": {"from": 0.35, "turn": 7}}},
 *      "/a/step-00001200": 0.2}
 *
 * From 0 means to its end. Thread rule: one thread. */
#ifndef DCP_CLI_SCRUB_FILE_H
#define DCP_CLI_SCRUB_FILE_H

#include "base/json.h"
#include <stdbool.h>

struct dcp_scrub_file {
    char *dir, *name;
    bool makes_dir; /* where it is the usual one */
};

/* `path`, or NULL: scrub.json below XDG_STATE_HOME, or ~/.local/state. Freed with
 * dcp_scrub_file_fini, also after a failure. Errors: USAGE (neither is set), MEMORY. */
int dcp_scrub_file_find(const char *path, struct dcp_scrub_file *out,
                        struct dcp_error *err);
void dcp_scrub_file_fini(struct dcp_scrub_file *file);

/* What it holds, caller owns; an empty object when there is none. Errors: IO, CORRUPT (it
 * is none of ours), MEMORY. */
int dcp_scrub_file_read(const struct dcp_scrub_file *file, json_t **out,
                        struct dcp_error *err);
/* Reads it, lets `change` change that (NULL: it stays), and replaces it, durably. Waits
 * for others that do the same, so that nothing they write is lost; where the file system
 * has no locks that is not so. *out is what was written, caller owns. Errors: those of
 * read and of change, NO_SPACE. */
int dcp_scrub_file_change(const struct dcp_scrub_file *file,
                          int (*change)(void *self, json_t *states,
                                        struct dcp_error *err),
                          void *self, json_t **out, struct dcp_error *err);

/* A fraction of a checkpoint that was begun, else 0. */
double dcp_scrub_position(const json_t *from);
/* The step of a run that was read last, and up to where; NULL: none. Borrowed. */
const char *dcp_scrub_last(const json_t *states, const char *run, double *out_from);

#endif
