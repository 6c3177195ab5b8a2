#include "peers.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct dcp_peers {
    int world_size;
    pthread_mutex_t lock;
    struct pollfd watch[]; /* by rank: a pidfd, or -1, which poll passes over */
};

void dcp_peer_identify(struct dcp_peer *out_self)
{
    struct stat ns;
    memset(out_self, 0, sizeof *out_self); /* what lies between its members is sent too */
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, out_self->boot_id, sizeof out_self->boot_id - 1) <= 0)
            out_self->boot_id[0] = '\0';
        close(fd);
    }
    out_self->pid_ns = stat("/proc/self/ns/pid", &ns) == 0 ? (uint64_t)ns.st_ino : 0;
    out_self->pid = getpid();
}

static bool same_host(const struct dcp_peer *a, const struct dcp_peer *b)
{
    return *a->boot_id && memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0 &&
           a->pid_ns && a->pid_ns == b->pid_ns;
}

static int open_process(int64_t pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

struct dcp_peers *dcp_peers_new(const struct dcp_peer *all, int world_size, int rank)
{
    size_t n = (size_t)world_size;
    struct dcp_peers *peers = calloc(1, sizeof *peers + n * sizeof peers->watch[0]);
    if (!peers)
        return NULL;
    peers->world_size = world_size;
    pthread_mutex_init(&peers->lock, NULL);
    for (int r = 0; r < world_size; r++) {
        bool here = r != rank && same_host(&all[r], &all[rank]);
        peers->watch[r].fd = here ? open_process(all[r].pid) : -1;
        peers->watch[r].events = POLLIN; /* it has ended */
    }
    return peers;
}

void dcp_peers_free(struct dcp_peers *peers)
{
    for (int r = 0; peers && r < peers->world_size; r++)
        if (peers->watch[r].fd >= 0)
            close(peers->watch[r].fd);
    if (peers)
        pthread_mutex_destroy(&peers->lock);
    free(peers);
}

bool dcp_peers_look(struct dcp_peers *peers)
{
    pthread_mutex_lock(&peers->lock);
    int n = poll(peers->watch, (nfds_t)peers->world_size, 0);
    pthread_mutex_unlock(&peers->lock);
    return n > 0;
}

bool dcp_peers_is_dead(struct dcp_peers *peers, int rank)
{
    pthread_mutex_lock(&peers->lock);
    bool is_dead = peers->watch[rank].revents != 0;
    pthread_mutex_unlock(&peers->lock);
    return is_dead;
}
