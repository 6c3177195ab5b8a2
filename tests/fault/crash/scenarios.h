/* scenarios: what is done while the power may go, and what must be there afterwards. */
#ifndef TESTS_FAULT_SCENARIOS_H
#define TESTS_FAULT_SCENARIOS_H

#include "model.h"

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

extern const struct scenario scenarios[];
extern const size_t n_scenarios;

#endif
