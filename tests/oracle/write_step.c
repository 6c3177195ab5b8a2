/* Saves the sample state: write_step FOLDER LAYOUT World size CODEC makes
 * FOLDER/step-00000007. Prints every tensor's name and its fingerprint, taken naively
 * from the state. */
#include "lib/rank_threads.h"
#include "lib/sample.h"
#include <dcp/dcp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SALT 1

struct job {
    const struct dcp_store *store;
    const char *layout;
    enum dcp_codec codec;
    int failures;
};

static void save(void *arg, struct dcp_comm *comm)
{
    struct job *job = arg;
    struct dcp_context ctx = { .comm = comm, .store = job->store };
    struct dcp_save_options options = { .step = 7, .codec = job->codec };
    struct dcp_error err = { 0 };
    struct sample sample;

    sample_make(&sample, job->layout, comm->world_size, comm->rank, true, SALT);
    if (dcp_save(&ctx, &options, &sample.state, NULL, &err)) {
        fprintf(stderr, "rank %d: %s\n", comm->rank, err.message);
        __atomic_fetch_add(&job->failures, 1, __ATOMIC_SEQ_CST);
    }
    if (comm->rank == 0)
        for (int t = 0; t < sample_n_tensors(); t++)
            printf("%s\t%016" PRIx64 "\n", sample.locals[t].name,
                   sample_fingerprint(&sample, t, SALT));
    sample_free(&sample);
}

int main(int argc, char **argv)
{
    struct dcp_store store;
    struct dcp_error err = { 0 };

    int codec = argc == 5 ? dcp_codec_parse(argv[4]) : -1;
    int world_size = argc == 5 ? (int)strtol(argv[3], NULL, 10) : 0;
    if (codec < 0 || world_size < 1) {
        fprintf(stderr, "usage: write_step FOLDER LAYOUT World size CODEC\n");
        return 2;
    }
    if (dcp_store_dir(&store, argv[1], true, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    struct job job = { .store = &store,
                       .layout = argv[2],
                       .codec = (enum dcp_codec)codec };
    rank_threads_run(world_size, save, &job);
    dcp_store_free(&store);
    return job.failures ? 1 : 0;
}
