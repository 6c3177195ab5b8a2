/* run: what reading and writing a run of llm.c share. */
#ifndef DCP_FORMATS_LLMC_RUN_H
#define DCP_FORMATS_LLMC_RUN_H

#include "llmc.h"
#include <dcp/format.h>

extern const struct dcp_format dcp_format_llmc_run;

/* Where a state has its numbers, in integers of 32 bits. */
enum {
    DCP_LLMC_AT_MAGIC,
    DCP_LLMC_AT_VERSION,
    DCP_LLMC_AT_WORLD_SIZE,
    DCP_LLMC_AT_RANK,
    DCP_LLMC_AT_MASTERS,
    DCP_LLMC_AT_SHUFFLE,
    DCP_LLMC_AT_STEP = 10,
    DCP_LLMC_AT_RNG = 20, /* 64 bits each, from here on */
    DCP_LLMC_AT_RNG_LAST =
        22, /* before the last update: weights are rounded again by it */
    DCP_LLMC_AT_SHARD = 30,
    DCP_LLMC_AT_SAMPLE = 32
};

/* The names of the 64-bit numbers in DCP_LLMC_STATE, {"ranks": [{"rng_state": "…", …}]}:
 * the random numbers in hexadecimal, the positions as integers. */
#define DCP_LLMC_RNG_SEED 13371337 /* of rank 0; each other adds its number */

/* "model_00000100.bin"; "state_00000100_00003.bin"; "DONE_00000100". */
void dcp_llmc_run_name(char out[40], const char *kind, int64_t step, int rank);

/* The roles of a state, in its order. */
enum { DCP_LLMC_N_STATES = 3 };
extern const enum dcp_role dcp_llmc_states[DCP_LLMC_N_STATES];

/* dcp_format.assign. */
int dcp_llmc_run_assign(struct dcp_target *target, struct dcp_error *err);

#endif
