#include "check_comm.h"
#include "must.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define MAX_WORLD_SIZE CHECK_COMM_MAX_WORLD_SIZE

struct rank {
    struct dcp_comm *comm;
    int (*run)(struct dcp_comm *comm);
    int wrong;
    pthread_t thread;
};

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    rank->wrong = rank->run(rank->comm);
    return NULL;
}

int check_comm_run(struct dcp_comm *comms, int world_size, int timeout_ms,
                   int (*run)(struct dcp_comm *comm))
{
    struct rank ranks[MAX_WORLD_SIZE];
    int n_wrong = 0;
    must(world_size <= MAX_WORLD_SIZE);
    for (int r = 0; r < world_size; r++) {
        comms[r].timeout_ms = timeout_ms;
        ranks[r] = (struct rank){ .comm = &comms[r], .run = run };
        must(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]) == 0);
    }
    for (int r = 0; r < world_size; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < world_size; r++) {
        if (ranks[r].wrong)
            fprintf(stderr, "rank %d of %d: line %d\n", r, world_size, ranks[r].wrong);
        n_wrong += ranks[r].wrong != 0;
        dcp_comm_free(&comms[r]);
    }
    return n_wrong;
}

static unsigned char byte_of(int rank, size_t i, int round)
{
    return (unsigned char)(rank * 89 + (int)(i % 251) * 3 + round);
}

static int check_part(const unsigned char *part, int rank, size_t n, int round)
{
    for (size_t i = 0; i < n; i++)
        WANT(part[i] == byte_of(rank, i, round));
    return 0;
}

int check_comm_values(struct dcp_comm *comm)
{
    for (int round = 0; round < 200; round++) {
        unsigned char mine[700], all[700 * MAX_WORLD_SIZE];
        size_t n = (size_t)(round * 37 % 700), got[MAX_WORLD_SIZE];
        int root = round % comm->world_size;
        for (size_t i = 0; i < n; i++)
            mine[i] = byte_of(comm->rank, i, round);
        WANT(dcp_comm_allgather(comm, mine, n, all, NULL) == 0);
        for (int r = 0; r < comm->world_size; r++)
            WANT(check_part(all + (size_t)r * n, r, n, round) == 0);

        size_t my_size = comm->rank % 3 ? n / (size_t)comm->rank : 0;
        void *parts;
        for (int all_get = 0; all_get < 2; all_get++) {
            WANT((all_get ? dcp_comm_allgatherv : dcp_comm_gatherv)(
                     comm, mine, my_size, &parts, got, NULL) == 0);
            WANT(!parts == !(all_get || comm->rank == 0));
            const unsigned char *part = parts;
            for (int r = 0; r < comm->world_size && part; r++) {
                WANT(got[r] == (r % 3 ? n / (size_t)r : 0));
                WANT(check_part(part, r, got[r], round) == 0);
                part += got[r];
            }
            free(parts);
        }

        WANT(dcp_comm_bcast(comm, mine, n, root, NULL) == 0);
        WANT(check_part(mine, root, n, round) == 0);

        /* That of rank `root` is the least. */
        int64_t number = round % 2 ? INT64_MIN + 1 : 7, least = 0;
        WANT(dcp_comm_least(comm, number - (comm->rank == root), &least, NULL) == 0);
        WANT(least == number - 1);
    }
    WANT(dcp_comm_bcast(comm, NULL, 0, comm->world_size, NULL) == DCP_E_USAGE);
    return 0;
}

int check_comm_failure(struct dcp_comm *comm, int wanted, int rank_state,
                       const char *message)
{
    for (int i = 0; i < 3; i++) {
        char c = 0, all[MAX_WORLD_SIZE];
        struct dcp_error err = { 0 };
        WANT(dcp_comm_allgather(comm, &c, 1, all, &err) == DCP_E_COMM);
        WANT(err.code == DCP_E_COMM && err.rank == wanted &&
             err.rank_state == rank_state);
        WANT(strstr(err.message, message) && err.hint[0]);
        WANT(dcp_comm_bcast(comm, &c, 1, 0, NULL) == DCP_E_COMM);
        void *out = &c;
        size_t sizes[MAX_WORLD_SIZE];
        WANT(dcp_comm_allgatherv(comm, &c, 1, &out, sizes, NULL) == DCP_E_COMM);
        WANT(!out);
        int64_t least;
        WANT(dcp_comm_least(comm, 0, &least, NULL) == DCP_E_COMM);
    }
    return 0;
}

int check_comm_silent(struct dcp_comm *comm)
{
    if (comm->rank == 3)
        return 0;
    return check_comm_failure(comm, 3, DCP_RANK_SILENT,
                              "rank 3 did not answer within 0.");
}

/* All ranks hear of it. */
static int expect_other_call(struct dcp_comm *comm, int rc, const struct dcp_error *err)
{
    WANT(rc == DCP_E_COMM && strstr(err->message, "called another collective"));
    char c = 0, all[MAX_WORLD_SIZE];
    WANT(dcp_comm_allgather(comm, &c, 1, all, NULL) == DCP_E_COMM);
    return 0;
}

int check_comm_other_size(struct dcp_comm *comm)
{
    char data[16] = { 0 }, all[16 * MAX_WORLD_SIZE];
    size_t n = comm->rank == 1 ? 8 : 16;
    struct dcp_error err = { 0 };
    int rc = dcp_comm_allgather(comm, data, n, all, &err);
    return expect_other_call(comm, rc, &err);
}

int check_comm_other_kind(struct dcp_comm *comm)
{
    char data[16] = { 0 }, all[16 * MAX_WORLD_SIZE];
    struct dcp_error err = { 0 };
    int rc = comm->rank == 1 ? dcp_comm_bcast(comm, data, 16, 0, &err)
                             : dcp_comm_allgather(comm, data, 16, all, &err);
    return expect_other_call(comm, rc, &err);
}

int check_comm_other_number(struct dcp_comm *comm)
{
    int64_t least, all[MAX_WORLD_SIZE], mine = comm->rank;
    struct dcp_error err = { 0 };
    int rc = comm->rank == 1 ? dcp_comm_least(comm, mine, &least, &err)
                             : dcp_comm_allgather(comm, &mine, sizeof mine, all, &err);
    return expect_other_call(comm, rc, &err);
}

int check_comm_other_root(struct dcp_comm *comm)
{
    char data[16] = { 0 };
    struct dcp_error err = { 0 };
    int rc = dcp_comm_bcast(comm, data, 16, comm->rank == 1 ? 1 : 2, &err);
    return expect_other_call(comm, rc, &err);
}

int check_comm_bad_arguments(struct dcp_comm *comm)
{
    char c = 0;
    WANT(dcp_comm_bcast(comm, &c, 1, comm->world_size, NULL) == DCP_E_USAGE);
    WANT(dcp_comm_bcast(comm, &c, 1, -1, NULL) == DCP_E_USAGE);
    WANT(dcp_comm_bcast(comm, &c, SIZE_MAX, 0, NULL) == DCP_E_USAGE);
    WANT(dcp_comm_allgather(comm, &c, SIZE_MAX / 2, &c, NULL) == DCP_E_USAGE);
    WANT(dcp_comm_bcast(comm, &c, 1, 0, NULL) == 0);
    return 0;
}
