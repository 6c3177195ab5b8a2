/* parts: one reshard that many processes make, each some of the files, and one finishes.
 *
 * They share nothing but a folder (staging.h), need not live at the same time, and may
 * die: what a dead part left is made anew by the next process with its number. A part is
 * done when its receipt is there, which comes last and durably. Nothing is published but
 * by dcp_parts_finish, by one rename. */
#ifndef DCP_CORE_PARTS_PARTS_H
#define DCP_CORE_PARTS_PARTS_H

#include "core/write/stream.h"
#include "deal.h"
#include "identity.h"
#include "staging.h"

struct dcp_parts {
    struct dcp_deal deal;
    char *identity; /* the text of identity.h */
    uint64_t job;   /* its digest */
};

/* The number of parts of the job that waits for the target `name`, whatever it is; 0
 * where that cannot be told. *out_state: whether one waits. Errors: IO, MEMORY. */
int dcp_parts_find(const struct dcp_store *store, const char *name, int *out_n,
                   enum dcp_staging_state *out_state, struct dcp_error *err);
/* Deals the files out and identifies the job. dcp_parts_fini also after a failure.
 * Errors: IO, CORRUPT, MEMORY. */
int dcp_parts_new(struct dcp_parts *parts, struct dcp_target *target,
                  struct dcp_identity_of_job *job, struct dcp_error *err);
void dcp_parts_fini(struct dcp_parts *parts);
/* Looks which parts are done: deal.parts[].made. Errors: MISMATCH (another job waits
 * there), IO, MEMORY. */
int dcp_parts_look(struct dcp_parts *parts, const struct dcp_store *store,
                   const char *name, struct dcp_error *err);

/* Makes part `part` (from 0) of the target `name` of setup->store; setup->prefix is set
 * here. *out_was_made: it was done before, and nothing was written. Errors: those of
 * dcp_stream_part and dcp_staging_enter; MISMATCH (it is a part of another job). */
int dcp_parts_make(struct dcp_parts *parts, struct dcp_stream_setup *setup,
                   const char *name, int part, bool *out_was_made, struct dcp_error *err);

struct dcp_parts_finish {
    const char *name; /* of the target */
    bool force;
    const struct dcp_log *log;
    int (*made)(void *self, const struct dcp_source *target, struct dcp_error *err);
    void *self; /* both as in dcp_reshard_options */
};
/* Proves what all parts wrote, writes what comes last, and publishes. *out_was_published:
 * it is the target already, and nothing was written. Errors: NOT_FOUND (parts are
 * missing, named), BUSY (one is being made), MISMATCH (another job), EXISTS, and those of
 * dcp_stream_join. The parts stay after a failure. */
int dcp_parts_finish(struct dcp_parts *parts, struct dcp_stream_setup *setup,
                     const struct dcp_parts_finish *finish, bool *out_was_published,
                     struct dcp_error *err);

#endif
