/* How long ranks that are processes need to agree, over TCP on this machine; and the same
 * where every rank hears the code of every other. usage: bench_agree WORLD ROUNDS
 * [FANOUT]
 */
#include "lib/bench.h"
#include "lib/must.h"
#include "lib/tcp_group.h"
#include "port/comm/relay.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int rounds;

static double cpu_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int run(struct dcp_comm *comm)
{
    int32_t mine = 0, *all = calloc((size_t)comm->world_size, sizeof *all);
    double seconds[2], cpu[2];

    must(all != NULL);
    for (int how = 0; how < 2; how++) {
        must(!dcp_agree(comm, 0, NULL));
        double started = bench_now(), used = cpu_now();
        for (int i = 0; i < rounds; i++)
            must(!(how ? dcp_comm_allgather(comm, &mine, sizeof mine, all, NULL)
                       : dcp_agree(comm, 0, NULL)));
        seconds[how] = (bench_now() - started) / rounds;
        cpu[how] = (cpu_now() - used) / rounds;
    }
    if (comm->rank == 0) {
        const struct dcp_branch *at = &((const struct dcp_relay *)comm->self)->at;
        printf("levels %d\nchildren %d\n", at->levels, at->n_children);
        printf("agree_s %.9f\nagree_cpu_s %.9f\n", seconds[0], cpu[0]);
        printf("allgather_s %.9f\nallgather_cpu_s %.9f\n", seconds[1], cpu[1]);
        fflush(stdout);
    }
    free(all);
    return 0;
}

int main(int argc, char **argv)
{
    bool right = argc == 3 || argc == 4;
    int world_size = right ? (int)strtol(argv[1], NULL, 10) : 0, port;

    rounds = right ? (int)strtol(argv[2], NULL, 10) : 0;
    if (world_size < 2 || rounds < 1) {
        fprintf(stderr, "usage: bench_agree WORLD ROUNDS [FANOUT]\n");
        return 2;
    }
    struct tcp_rank *ranks = calloc((size_t)world_size, sizeof *ranks);
    pid_t *pids = calloc((size_t)world_size, sizeof *pids);
    must(ranks && pids);
    int agent = tcp_group_agent(&port);
    tcp_group_fill(ranks, world_size, port, "bench");
    for (int r = 0; r < world_size; r++) {
        ranks[r].fanout = argc == 4 ? (int)strtol(argv[3], NULL, 10) : 0;
        pids[r] = tcp_group_fork(&ranks[r], run);
    }
    for (int r = 0; r < world_size; r++)
        must(tcp_group_wait(pids[r]) == 0);
    close(agent);
    free(ranks);
    free(pids);
    return 0;
}
