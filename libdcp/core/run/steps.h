/* steps: the folders of a run: what is a step, what is unfinished, and which steps are
 * complete. */
#ifndef DCP_CORE_RUN_STEPS_H
#define DCP_CORE_RUN_STEPS_H

#include <dcp/checkpoint.h>

#define DCP_TMP_PREFIX \
    ".tmp-" /* being written; dead when nobody holds the root's lease */
#define DCP_TRASH_PREFIX ".trash-" /* being removed */
#define DCP_SUPERSEDED_SUFFIX                                                      \
    ".aside"                       /* no longer part of the run: see dcp_supersede \
                                    */
#define DCP_MARKS_PREFIX ".marks-" /* what people say of a step: see dcp_marks */
#define DCP_LATEST "latest"        /* a hint for people: the name of the newest step */
#define DCP_MOST_LOOKS 100         /* at a run whose steps go while they are looked at */

/* "step-00001200". */
void dcp_step_name(char out[64], int64_t step);
/* The number of a step's folder name, or -1. */
int64_t dcp_step_parse(const char *name);
/* What a step is called that was superseded, i from 1: "step-00000060.aside", then
 * ".aside-2", and so on; and whether a name is such a one. */
void dcp_superseded_name(const char *step, int64_t i, char out[96]);
bool dcp_is_superseded(const char *name);
/* The file that has the marks of a step. */
void dcp_marks_name(const char *step, char out[96]);
/* Keeps the marks of a step as they are until *out is given back with dcp_unpin: waits
 * for others who hold its folder. *out is NULL where the store has no locks, or there is
 * no such step. Errors: BUSY. */
int dcp_marks_hold(const struct dcp_store *store, const char *step,
                   struct dcp_store_file **out, struct dcp_error *err);
/* What rank 0 has of a step that is to be read; NULL on the others. */
struct dcp_reading {
    struct dcp_store_file *pin; /* NULL: the store has none */
    struct dcp_catalog *head;   /* what its manifest says; NULL: parity gives that */
};

/* As dcp_find, among the steps below `below` (INT64_MAX: all), for who goes on to an
 * older one when what it reads is corrupt: tables of pieces are not looked into. Rank 0
 * pins the step before it reads of it; caller ends *out, which is empty after a failure.
 * Collective. */
int dcp_find_to_read(const struct dcp_context *ctx, int64_t step, int64_t below,
                     struct dcp_step *out_step, struct dcp_reading *out,
                     struct dcp_error *err);
/* The same for who needs no more than *out_step. */
int dcp_find_below(const struct dcp_context *ctx, int64_t step, int64_t below,
                   struct dcp_step *out_step, struct dcp_error *err);
void dcp_reading_end(const struct dcp_store *store, struct dcp_reading *reading);

#endif
