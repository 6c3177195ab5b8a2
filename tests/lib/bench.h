/* bench: a measured act against its floor, in turn, in one run: these machines are noisy,
 * ratios are not. */
#ifndef TESTS_LIB_BENCH_H
#define TESTS_LIB_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_MAX_RUNS 32

/* One comparison. Both functions return the seconds of one run, or a negative number on
 * failure. prepare (may be NULL) runs before each of them and is not timed. */
struct bench {
    const char *name;  /* "durable save" */
    const char *floor; /* "dd conv=fsync" */
    double (*act_s)(void *arg);
    double (*floor_s)(void *arg);
    void (*prepare)(void *arg);
    void *arg;
    uint64_t bytes; /* moved by one run, for the rate; 0: none */
    double aim;     /* ratio of medians that we want, 0: none */
};

/* Runs act and floor in turn `runs` times, prints a table line on stdout and a JSON line
 * to the file named by DCP_BENCH_JSON (appended), and returns whether the aim was met. */
bool bench_run(const struct bench *bench, int runs);
void bench_header(void);

/* Seconds of a shell command, negative when it fails. */
double bench_shell(const char *command);
double bench_now(void);
/* Writes back and invalidates the cached pages of all files below a path. */
void bench_drop_cache(const char *path);

#endif
