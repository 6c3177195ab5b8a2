/* power_saver: the program that is at work when the power goes.
 *
 *   power_saver save RUN FIRST LAST   saves steps; says "begin N" before each and "done
 * N" when it is promised power_saver check RUN LEAST MOST  the newest step is one of
 * these, every step is complete and what was saved
 *
 * Three steps are kept; every third save is made in three ranks, every fifth has a
 * second file. Where the step before has as many ranks a save is a delta on it, made by a
 * saver that did not write that one; every fourth save is larger, is asynchronous and
 * goes past the page cache. Exit status 1 and a sentence: something is wrong. */
#include "lib/acts.h"
#include "tests/fault/crash/check.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEEP = 3 };

static const struct dcp_export consolidated = { "pytorch_model.bin", "torch", DCP_BF16 };

static int save(const char *run, int64_t first, int64_t last)
{
    struct dcp_store store;
    struct dcp_error err = { 0 };

    if (dcp_store_delta_dir(&store, run, true, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int64_t step = first; step <= last; step++) {
        bool staged = step % 4 == 0;
        const struct dcp_save_options more = {
            .keep = KEEP,
            .delta = staged ? 0 : 4,
            .verify_after_save = staged,
            .consolidated = step % 5 ? NULL : &consolidated,
        };
        struct acts acts = { .store = &store,
                             .layout = "zero3",
                             .world_size = step % 3 ? 1 : 3,
                             .step = step,
                             .salt = STEP_SALT(step),
                             .more = &more,
                             .staged = staged,
                             .small = !staged };
        dprintf(STDOUT_FILENO, "begin %" PRId64 "\n", step);
        if (acts_save(&acts)) {
            fprintf(stderr, "%s\n", acts.err.message);
            return 1;
        }
        dprintf(STDOUT_FILENO, "done %" PRId64 "\n", step);
    }
    dcp_store_free(&store);
    return 0;
}

int main(int argc, char **argv)
{
    char why[512];

    if (argc < 5)
        return 2;
    int64_t first = strtoll(argv[3], NULL, 10), last = strtoll(argv[4], NULL, 10);
    if (!strcmp(argv[1], "save"))
        return save(argv[2], first, last);
    if (argc != 6)
        return 2;
    const struct run_want want = {
        .first = first, .least = last, .most = strtoll(argv[5], NULL, 10), .keep = KEEP
    };
    if (run_is(argv[2], &want, why))
        return 0;
    printf("%s\n", why);
    return 1;
}
