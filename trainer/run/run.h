/* run: what one rank trains with, opened in the order in which it can fail:
 * configuration, data, model, state; the run folder last, so that a mistake writes
 * nothing. */
#ifndef TRAINER_RUN_RUN_H
#define TRAINER_RUN_RUN_H

#include "cli/main.h"
#include "compute.h"
#include "failpoint.h"
#include "trainer/config/settings.h"
#include "trainer/data/data.h"
#include "trainer/launch/join.h"
#include "trainer/shard/shard.h"
#include "trainer/state/state.h"

/* What the user asked for on the command line. */
struct run_options {
    const char *config;
    struct dcp_opt_list set; /* KEY=VALUE */
    int64_t ranks;           /* 0: not given */
    const char *job_secret;  /* a file, or NULL */
    const char *resume;      /* "auto", "never", a number or a path; NULL: auto */
    int64_t certify;         /* the step to train again from, -1: train */
    int64_t steps;           /* -1: as configured */
    int sharding;            /* enum run_sharding, -1: as configured */
    int device;              /* enum compute_device */
    bool dry_run, estimate, eval, help_config;
    const char *worlds;   /* "8,64", of an estimate; or NULL */
    const char *generate; /* the beginning of a text */
    int64_t max_tokens, top_k, seed;
    double temperature, top_p;
};
enum run_sharding { RUN_NO_SHARD, RUN_GRAD_OP, RUN_FULL, RUN_HYBRID };

enum run_purpose { RUN_TRAIN, RUN_EVAL, RUN_GENERATE, RUN_PLAN };

struct run {
    struct dcp_main *main; /* borrowed; only rank 0 speaks */
    struct join *join;     /* borrowed */
    const struct run_options *options;
    struct settings settings;
    struct tokenizer *tokenizer;
    struct data *train, *val; /* val may be NULL */
    struct compute compute;
    struct model *model;
    struct coll coll; /* of a GPU's memory; ops NULL: join's is that of the model, too */
    struct shard *shard;
    struct model_hooks hooks;
    struct dcp_store store; /* the run folder; ops NULL: not open */
    struct dcp_context ctx;
    struct dcp_log log; /* silent but on rank 0 */
    struct failpoint kill;
    struct state_progress at;
    int32_t *tokens, *targets; /* a micro-batch */
};

/* Reads the configuration for a world size; for an estimate without data. Errors: those
 * of settings_read. */
int run_read_settings(const struct run_options *options, int world_size,
                      int local_world_size, const struct dcp_log *log,
                      struct settings *out_settings, struct dcp_error *err);
/* Collective. Everything but the run folder; weights are not set yet. *out_run is zeroed
 * or complete. Errors: those of what it opens. */
int run_open(struct dcp_main *m, struct join *join, const struct run_options *options,
             enum run_purpose purpose, struct run *out_run, struct dcp_error *err);
/* Collective. The run folder, made when it is missing and `create` is set; does nothing
 * when it is open. */
int run_open_store(struct run *run, bool create, struct dcp_error *err);
/* Collective. Holds the lease of the open run folder until run_close, so that no other
 * run trains into it; saves work under it. Errors: BUSY with who holds it, those of
 * lock. */
int run_hold_store(struct run *run, struct dcp_error *err);
/* All kernels so far are done: what the model computes with may be read. Errors: those of
 * kernels and collectives. */
int run_sync(struct run *run, struct dcp_error *err);
/* rc: how it ended. After a failure nothing waits for other ranks. */
void run_close(struct run *run, int rc);

/* Whether a save copies the state first, so that training goes on while it is written.
 * What is in files is not copied: that would take the very memory that it must not. */
bool run_saves_aside(const struct settings *settings);
/* How the state is cut. */
void run_shard_options(const struct settings *settings, bool weights_only,
                       struct shard_options *out_options);
/* Whether communication goes on beside the kernels, where that can be: with a GPU unless
 * overlap_comm is false, without one where it is true. */
bool run_overlaps(const struct settings *settings, bool gpu, int world_size);
/* A line for people, on rank 0 unless it is to be quiet. */
void run_say(const struct run *run, const char *fmt, ...) DCP_PRINTF(2, 3);

#endif
