/* acts: save and load of the sample state by a group of threads, as one call. */
#ifndef TESTS_LIB_ACTS_H
#define TESTS_LIB_ACTS_H

#include <dcp/checkpoint.h>

/* What is done and how. Zero means: no codec, 60 s, nobody dies. */
struct acts {
    const struct dcp_store *store;
    const char *layout;
    int world_size;
    int64_t step; /* of a save; of a load: -1 is the newest */
    unsigned salt;
    enum dcp_codec codec;
    const char *name; /* folder of the step to load; NULL: by its number */
    const struct dcp_save_options
        *more; /* keep, consolidated export; step and codec are ours */
    const struct dcp_log *log;
    bool staged; /* the save is asynchronous, from staging memory */
    bool small;  /* without the last tensor, which is most of the bytes */
    int timeout_ms;
    int dies, dies_at; /* rank `dies` falls silent at its call dies_at (from 1) of comm */

    /* Filled in: */
    struct dcp_error err;       /* of the lowest rank that lives */
    bool agreed;                /* all ranks that live returned the same code */
    int64_t loaded_step, wrong; /* of a load: elements that are not the sample's */
    int n_calls;                /* of comm by the rank that dies */
    struct dcp_error errs[16];  /* of all ranks, when the world size is not larger */
};

/* Return the code of the lowest rank that lives. */
int acts_save(struct acts *acts);
int acts_load(struct acts *acts);

/* A new folder below TMPDIR or /tmp, and its removal with all in it. */
void acts_folder(char out[256]);
void acts_folder_remove(const char *folder);

/* Seeded numbers: the same sequence everywhere. */
uint64_t acts_random(uint64_t *state);
/* 0 .. n - 1. */
int64_t acts_pick(uint64_t *state, int64_t n);

/* Fixtures of cmocka: *state is a store in memory. */
int acts_setup(void **state);
int acts_teardown(void **state);

#endif
