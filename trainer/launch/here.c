/* Ranks without mpirun: they are processes of the one that starts them, and find each
 * other over TCP, as under torchrun. */
#include "launch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_PORT 20000
#define N_PORTS 40000

bool launch_has_mpirun(void)
{
    const char *at = getenv("PATH");
    while (at && *at) {
        char path[PATH_MAX];
        size_t n = strcspn(at, ":");
        if (n && n < sizeof path - sizeof "/mpirun") {
            snprintf(path, sizeof path, "%.*s/mpirun", (int)n, at);
            if (!access(path, X_OK))
                return true;
        }
        at += n + (at[n] == ':');
    }
    return false;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* What is not free there is passed over: ranks look behind it, and know their own. */
static int any_port(void)
{
    uint64_t random;
    if (dcp_random(&random, sizeof random, NULL))
        random = dcp_clock_ns();
    return FIRST_PORT + (int)(random % N_PORTS);
}

static void become_rank(int rank, pid_t starter, char **argv)
{
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == starter)
        execv(argv[0], argv);
    fprintf(stderr, "cannot start rank %d: %s\n", rank, strerror(errno));
    _exit(127);
}

void launch_here(int n_ranks, char **argv)
{
    static const int stops[] = { SIGTERM, SIGINT, SIGHUP };
    pid_t starter = getpid();
    for (size_t i = 0; i < DCP_ARRAY_LEN(stops); i++)
        signal(stops[i], SIG_DFL); /* not the launcher's: this one just ends */
    set_number("WORLD_SIZE", n_ranks);
    set_number("LOCAL_WORLD_SIZE", n_ranks);
    set_number("MASTER_PORT", any_port());
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    for (int rank = 0; rank < n_ranks; rank++) {
        pid_t child = fork();
        if (child == 0)
            become_rank(rank, starter, argv);
        if (child < 0) {
            fprintf(stderr, "cannot start rank %d: %s\n", rank, strerror(errno));
            _exit(1); /* those that began end with it */
        }
    }
    while (wait(NULL) > 0 || errno == EINTR)
        continue;
    _exit(0);
}
