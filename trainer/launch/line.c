/* A rank's end of the line to its launcher. */
#include "launch.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Only a process of the same user is believed. */
static int check_peer(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != getuid()) {
        errno = EPERM;
        return -1;
    }
    return 0;
}

/* Receives the launcher's stdout and stderr and puts them in the place of ours. */
static int take_streams(int fd)
{
    char byte;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec data = { .iov_base = &byte, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &data,
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof control };
    int fds[2];
    if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (!head || head->cmsg_type != SCM_RIGHTS ||
        head->cmsg_len != CMSG_LEN(sizeof fds)) {
        errno = EPROTO;
        return -1;
    }
    memcpy(fds, CMSG_DATA(head), sizeof fds);
    fflush(NULL);
    int rc = dup2(fds[0], STDOUT_FILENO) < 0 || dup2(fds[1], STDERR_FILENO) < 0 ? -1 : 0;
    close(fds[0]);
    close(fds[1]);
    return rc;
}

int launch_line_open(int rank, struct launch_line *out_line, struct dcp_error *err)
{
    const char *name = getenv(LAUNCH_ENV);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct launch_hello hello = { .rank = rank };
    out_line->fd = -1;
    if (!name)
        return DCP_OK;
    size_t n = strlen(name);
    if (n == 0 || n + 1 > sizeof address.sun_path)
        return dcp_error_set(err, DCP_E_COMM, "%s does not name a launcher", LAUNCH_ENV);
    memcpy(address.sun_path + 1, name, n); /* a name without a file begins with a NUL */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, size) || check_peer(fd) ||
        send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello ||
        take_streams(fd)) {
        int why = errno;
        if (fd >= 0)
            close(fd);
        return dcp_error_sys(err, DCP_E_COMM, why, "cannot reach the launcher");
    }
    out_line->fd = fd;
    /* Without mpirun Open MPI waits in MPI_Finalize for ever. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return DCP_OK;
}

void launch_line_close(struct launch_line *line, int rc, const struct dcp_error *err)
{
    if (line->fd < 0)
        return;
    struct launch_end end;
    memset(&end, 0, sizeof end);
    end.rc = rc;
    end.err = *err;
    fflush(NULL);
    while (send(line->fd, &end, sizeof end, MSG_NOSIGNAL) < 0 && errno == EINTR)
        continue;
    close(line->fd);
    line->fd = -1;
}
