/* scenarios: what is done while the power may go, and what must be there afterwards. */
#ifndef TESTS_FAULT_SCENARIOS_H
#define TESTS_FAULT_SCENARIOS_H

#include "model.h"
#include <dcp/dcp.h>

/* What the program under test had said when the power went. */
struct promise {
    int64_t begun, done; /* the highest act; 0: none */
};

/* What is true of the whole trace. */
struct facts {
    const char *folder; /* where a state lies */
    struct tree before, after;
};

struct scenario {
    const char *name;
    /* Makes what is there, durably, before the trace; then the acts. In `folder`. */
    void (*prepare)(const char *folder);
    void (*act)(const char *folder);
    /* Whether a state keeps the promise; else what is wrong, in `why`. */
    bool (*check)(const struct facts *facts, const struct tree *state,
                  struct promise promise, char why[512]);
    /* The next act in that state needs no help. */
    bool (*go_on)(const struct facts *facts, struct promise promise, char why[512]);
};

/* All, by number; NULL: that was the last. */
const struct scenario *scenario_at(size_t i);
extern const struct scenario reshard_scenarios[];
extern const size_t n_reshard_scenarios;

/* What they are made of. An act is a number from 1. */
void act_begins(int64_t act);
void act_is_done(int64_t act);
void path_of(char out[512], const char *folder, const char *name);
/* The run folder in a folder. */
void open_run(struct dcp_store *store, const char *folder);
void save_steps(const char *folder, int64_t first, int64_t last,
                const struct dcp_save_options *more);
/* The run folder is as promised; `there`: the steps that were there before. */
bool check_run(const struct facts *facts, struct promise promise, int keep, int64_t there,
               char why[512]);

#endif
