#include "launch.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "cli/main.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_MS 100
#define AFTER_DEATH_S                                                                   \
    6.0                    /* in which all ranks end once one has died, or lost another \
                            */
#define AFTER_FIRST_S 60.0 /* in which all ranks start, or end, after the first */
#define FORKING_S 5.0      /* in which mpirun has made all processes, after the first */
#define MPIRUN_S 2.0       /* in which mpirun follows its ranks */
#define NOISE_BYTES 4096   /* of what mpirun says: the first of it is kept */
#define ARGS_MAX_BYTES (8u << 20)
#define MPIRUN_ARGS 4 /* of its own: the ranks' follow */

enum state {
    STARTING,
    RUNNING,
    ENDED,
    DEAD,
    KILLED /* here, because it did not start or end in time */
};

struct rank_line {
    int fd;
    pid_t pid;
    enum state state;
    bool is_killed;
    struct launch_end end;
};

struct launcher {
    int n;
    struct rank_line *ranks;
    int listener, noise; /* -1: closed */
    char name[64];       /* of the socket */
    pid_t mpirun;        /* or who takes its place; 0: ended */
    bool here;           /* somebody does */
    struct dcp_buf said; /* by mpirun */
    double first_start_s, first_end_s, first_death_s; /* 0: not yet */
    bool told;     /* the ranks know that they are to stop */
    bool orphaned; /* mpirun ended before its ranks */
    bool killed;   /* mpirun was, by others; then its ranks end with it */
    bool ending;   /* it is signalled here */
    int n_unknown; /* lines whose rank is not known yet */
    struct rank_line *unknown;
};

/* --- starting --- */

static int listen_for_ranks(struct launcher *l, struct dcp_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    uint64_t random;
    DCP_TRY(dcp_random(&random, sizeof random, err));
    int n = snprintf(l->name, sizeof l->name, "dcp-train-%d-%016llx", getpid(),
                     (unsigned long long)random);
    memcpy(address.sun_path + 1, l->name, (size_t)n);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    l->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->listener < 0 || bind(l->listener, (struct sockaddr *)&address, size) ||
        listen(l->listener, l->n))
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot open a socket for the ranks");
    return DCP_OK;
}

/* The environment of a process is for its user alone, unlike its arguments. */
static int make_secret(struct dcp_error *err)
{
    unsigned char bytes[DCP_SHA256_BYTES];
    char text[DCP_SHA256_HEX];
    DCP_TRY(dcp_random(bytes, sizeof bytes, err));
    dcp_sha256_text(bytes, text);
    setenv(LAUNCH_SECRET, text, 1);
    return DCP_OK;
}

/* What a user of mpirun would have to know: more ranks than cores must not spin, messages
 * stay in this machine, and root is no accident. What the user did set is kept. */
static void set_environment(const struct launcher *l)
{
    static const char *const settings[][2] = {
        { "OMPI_MCA_mpi_yield_when_idle", "1" },
        { "OMPI_MCA_rmaps_base_oversubscribe", "1" },
        { "OMPI_MCA_hwloc_base_binding_policy", "none" },
        { "OMPI_MCA_pml", "ob1" },
        { "OMPI_MCA_btl", "self,vader" },
        { "OMPI_MCA_btl_vader_single_copy_mechanism", "none" },
        { "OMPI_MCA_plm", "isolated" },
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(settings); i++)
        setenv(settings[i][0], settings[i][1], 0);
    if (getuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    setenv(LAUNCH_ENV, l->name, 1);
}

/* mpirun's arguments: its own, this program, and this program's. The strings lie in
 * *out_text. */
static int make_arguments(int n_ranks, char **out_text, char ***out_argv,
                          struct dcp_error *err)
{
    static const char *const own[] = { "mpirun", "--enable-recovery", "-np" };
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    FILE *file = n > 0 ? fopen("/proc/self/cmdline", "re") : NULL;
    if (!file)
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot read /proc/self");
    exe[n] = '\0';
    for (size_t i = 0; i < DCP_ARRAY_LEN(own); i++)
        dcp_buf_add(&text, own[i], strlen(own[i]) + 1);
    dcp_buf_add_fmt(&text, "%d", n_ranks);
    dcp_buf_add_u8(&text, 0);
    dcp_buf_add(&text, exe, strlen(exe) + 1);
    bool name = true; /* the first argument is how this program was called */
    for (int c; (c = fgetc(file)) != EOF && text.size_bytes < ARGS_MAX_BYTES;) {
        if (!name)
            dcp_buf_add_u8(&text, (uint8_t)c);
        name = name && c != 0;
    }
    fclose(file);
    size_t n_args = 0, at = 0;
    for (size_t i = 0; i < text.size_bytes; i++)
        n_args += text.data[i] == 0;
    char **argv = dcp_mem_calloc(n_args + 1, sizeof *argv);
    if (dcp_buf_check(&text, err) || !argv) {
        free(argv);
        return dcp_error_memory(err, "the arguments of mpirun");
    }
    for (size_t i = 0; i < n_args; i++) {
        argv[i] = (char *)text.data + at;
        at += strlen(argv[i]) + 1;
    }
    *out_text = (char *)text.data;
    *out_argv = argv;
    text = (struct dcp_buf){ 0 };
    return DCP_OK;
}

/* In the child: a process group of its own, so that the terminal's Ctrl-C comes to the
 * launcher alone; it ends with the launcher, however that ends. */
static void become_mpirun(const struct launcher *l, char **argv, pid_t launcher,
                          int noise, int failure)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGPIPE, SIG_DFL);
    if (getppid() == launcher && null >= 0 && dup2(null, STDIN_FILENO) >= 0 &&
        dup2(noise, STDOUT_FILENO) >= 0 && dup2(noise, STDERR_FILENO) >= 0) {
        if (l->here) {
            close(failure);
            launch_here(l->n, argv + MPIRUN_ARGS);
        }
        execvp(argv[0], argv);
    }
    int why = errno;
    if (write(failure, &why, sizeof why) != sizeof why)
        _exit(126);
    _exit(127);
}

static int start_mpirun(struct launcher *l, char **argv, struct dcp_error *err)
{
    int noise[2], failure[2], why = 0;
    if (pipe2(noise, O_CLOEXEC))
        return dcp_error_sys(err, DCP_E_IO, errno, "cannot make a pipe");
    if (pipe2(failure, O_CLOEXEC)) {
        why = errno;
        close(noise[0]);
        close(noise[1]);
        return dcp_error_sys(err, DCP_E_IO, why, "cannot make a pipe");
    }
    pid_t launcher = getpid(), child = fork();
    if (child == 0)
        become_mpirun(l, argv, launcher, noise[1], failure[1]);
    why = child < 0 ? errno : 0;
    close(noise[1]);
    close(failure[1]);
    l->noise = noise[0];
    fcntl(l->noise, F_SETFL, O_NONBLOCK);
    if (child > 0) {
        l->mpirun = child;
        if (read(failure[0], &why, sizeof why) == sizeof why) {
            waitpid(child, NULL, 0);
            l->mpirun = 0;
        }
    }
    close(failure[0]);
    if (!why)
        return DCP_OK;
    int rc = dcp_error_sys(err, DCP_E_IO, why, "cannot start 'mpirun'");
    dcp_error_hint(err, "without Open MPI in PATH ranks find each other over TCP");
    return rc;
}

/* --- what comes through the lines --- */

/* Gives a rank our terminal. */
static int send_streams(int fd)
{
    char byte = 0;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec data = { .iov_base = &byte, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &data,
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof control };
    int fds[2] = { STDOUT_FILENO, STDERR_FILENO };
    memset(&control, 0, sizeof control);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(head), fds, sizeof fds);
    return sendmsg(fd, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/* A process of this user that connects says which rank it is. */
static void accept_rank(struct launcher *l)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    if (l->n_unknown == l->n || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) ||
        peer.uid != getuid()) {
        close(fd);
        return;
    }
    l->unknown[l->n_unknown++] = (struct rank_line){ .fd = fd, .pid = peer.pid };
}

static void greet(struct launcher *l, int i)
{
    struct launch_hello hello;
    struct rank_line line = l->unknown[i];
    l->unknown[i] = l->unknown[--l->n_unknown];
    if (recv(line.fd, &hello, sizeof hello, MSG_DONTWAIT) != sizeof hello ||
        hello.rank < 0 || hello.rank >= l->n || l->ranks[hello.rank].state != STARTING ||
        send_streams(line.fd)) {
        close(line.fd);
        return;
    }
    line.state = RUNNING;
    l->ranks[hello.rank] = line;
    if (!l->first_start_s)
        l->first_start_s = dcp_clock_s();
    if (l->told) /* the stop came before it did */
        kill(line.pid, SIGTERM);
}

static void hear(struct launcher *l, int rank)
{
    struct rank_line *line = &l->ranks[rank];
    ssize_t n = recv(line->fd, &line->end, sizeof line->end, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    close(line->fd);
    line->fd = -1;
    line->state = n == sizeof line->end ? ENDED : line->is_killed ? KILLED : DEAD;
    line->end.err.message[sizeof line->end.err.message - 1] = '\0';
    line->end.err.hint[sizeof line->end.err.hint - 1] = '\0';
    line->end.err.tensor[sizeof line->end.err.tensor - 1] = '\0';
    double now_s = dcp_clock_s();
    bool lost = line->state == DEAD || line->end.rc == DCP_E_COMM;
    if (lost && !l->first_death_s)
        l->first_death_s = now_s;
    if (!l->first_end_s)
        l->first_end_s = now_s;
}

static void drain_noise(struct launcher *l)
{
    char text[1024];
    ssize_t n = read(l->noise, text, sizeof text);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        close(l->noise);
        l->noise = -1;
        return;
    }
    if (l->said.size_bytes < NOISE_BYTES)
        dcp_buf_add(&l->said, text, (size_t)n);
}

/* One look at all descriptors. */
static void look(struct launcher *l, struct pollfd *fds)
{
    nfds_t n = 0;
    fds[n++] = (struct pollfd){ .fd = l->listener, .events = POLLIN };
    fds[n++] = (struct pollfd){ .fd = l->noise, .events = POLLIN };
    for (int r = 0; r < l->n; r++)
        fds[n++] = (struct pollfd){ .fd = l->ranks[r].fd, .events = POLLIN };
    int n_unknown = l->n_unknown;
    for (int i = 0; i < n_unknown; i++)
        fds[n++] = (struct pollfd){ .fd = l->unknown[i].fd, .events = POLLIN };
    if (poll(fds, n, POLL_MS) <= 0)
        return;
    for (int i = n_unknown - 1; i >= 0; i--)
        if (fds[2 + l->n + i].revents)
            greet(l, i);
    for (int r = 0; r < l->n; r++)
        if (fds[2 + r].fd >= 0 && fds[2 + r].revents)
            hear(l, r);
    if (fds[1].revents)
        drain_noise(l);
    if (fds[0].revents)
        accept_rank(l);
}

/* --- ending --- */

static int count(const struct launcher *l, enum state state)
{
    int n = 0;
    for (int r = 0; r < l->n; r++)
        n += l->ranks[r].state == state;
    return n;
}

static void signal_ranks(struct launcher *l, int number)
{
    for (int r = 0; r < l->n; r++)
        if (l->ranks[r].state == RUNNING) {
            kill(l->ranks[r].pid, number);
            l->ranks[r].is_killed = number == SIGKILL;
        }
}

static bool mpirun_ended(struct launcher *l)
{
    int status = 0;
    if (l->mpirun && waitpid(l->mpirun, &status, WNOHANG) == l->mpirun) {
        l->mpirun = 0;
        l->killed = WIFSIGNALED(status) && !l->ending;
    }
    return !l->mpirun;
}

/* A rank that died before it had its line: the others would wait for it in MPI_Init. */
static bool is_one_missing(const struct launcher *l, double now_s)
{
    if (!l->first_start_s || now_s - l->first_start_s < FORKING_S || !l->mpirun)
        return false;
    int n = launch_count_children(l->mpirun);
    return n >= 0 && n < count(l, STARTING) + count(l, RUNNING);
}

/* Ranks that should have started, or ended, by now. */
static bool is_overdue(const struct launcher *l)
{
    double now_s = dcp_clock_s();
    if (count(l, STARTING) && is_one_missing(l, now_s))
        return true;
    return (l->first_death_s && now_s - l->first_death_s > AFTER_DEATH_S) ||
           (l->first_end_s && now_s - l->first_end_s > AFTER_FIRST_S) ||
           (l->first_start_s && now_s - l->first_start_s > AFTER_FIRST_S &&
            count(l, STARTING));
}

/* The first signal of the user goes to every rank once. */
static void pass_stop(struct launcher *l)
{
    if (l->told || !dcp_main_stopped())
        return;
    l->told = true;
    signal_ranks(l, SIGTERM);
    if (!count(l, RUNNING) && l->mpirun) {
        l->ending = true;
        kill(l->mpirun, SIGTERM);
    }
}

/* Returns when no rank is left that could be heard. */
static void run(struct launcher *l, struct pollfd *fds)
{
    double alone_s = 0; /* since when mpirun has been gone */
    while (count(l, RUNNING) || (count(l, STARTING) && !mpirun_ended(l))) {
        look(l, fds);
        pass_stop(l);
        if (!l->orphaned && mpirun_ended(l) && count(l, RUNNING)) {
            l->orphaned = true;
            alone_s = dcp_clock_s();
        }
        bool left = l->orphaned && dcp_clock_s() - alone_s > MPIRUN_S;
        if (is_overdue(l) || left) {
            signal_ranks(l, SIGKILL);
            if (!count(l, RUNNING))
                return;
        }
    }
}

static void end_mpirun(struct launcher *l)
{
    static const int numbers[] = { 0, SIGTERM, SIGKILL };
    for (size_t i = 0; i < DCP_ARRAY_LEN(numbers) && !mpirun_ended(l); i++) {
        if (numbers[i]) {
            l->ending = true;
            kill(l->mpirun, numbers[i]);
        }
        double begin_s = dcp_clock_s();
        while (!mpirun_ended(l) && dcp_clock_s() - begin_s < MPIRUN_S)
            dcp_clock_sleep_us(2000);
    }
}

/* "ranks 1, 3 and 4" */
static void name_ranks(const struct launcher *l, enum state state, struct dcp_buf *out)
{
    int n = count(l, state), i = 0;
    dcp_buf_add_text(out, n == 1 ? "rank " : "ranks ");
    for (int r = 0; r < l->n; r++)
        if (l->ranks[r].state == state)
            dcp_buf_add_fmt(out, "%s%d", i++ == 0 ? "" : i == n ? " and " : ", ", r);
}

/* The first line of mpirun's that says something. */
static void quote_mpirun(const struct launcher *l, struct dcp_error *err)
{
    const char *text = l->said.data ? (const char *)l->said.data : "";
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n && strspn(text, "-= ") < n) {
            dcp_error_hint(err, "%s: %.*s", l->here ? "because" : "mpirun says",
                           (int)(n < 200 ? n : 200), text);
            return;
        }
        text += n + (text[n] == '\n');
    }
}

/* What all agreed on: else the failure of the lowest rank that has one of its own; else
 * what a rank says of one that died. */
static int result(const struct launcher *l, struct dcp_error *err)
{
    const struct launch_end *of_others = NULL;
    for (int r = 0; r < l->n; r++) {
        const struct rank_line *line = &l->ranks[r];
        if (line->state != ENDED || line->end.rc == DCP_OK)
            continue;
        if (line->end.rc != DCP_E_COMM) {
            *err = line->end.err;
            return line->end.rc;
        }
        if (!of_others)
            of_others = &line->end;
    }
    if (of_others) {
        *err = of_others->err;
        return of_others->rc;
    }
    if (count(l, ENDED) == l->n)
        return DCP_OK;
    if (l->orphaned || l->killed) {
        dcp_error_set(err, DCP_E_COMM, "%s was killed, and the ranks with it",
                      l->here ? "what started the ranks" : "mpirun");
        dcp_error_hint(err, "start it again with --resume auto");
        return DCP_E_COMM;
    }
    DCP_CLEANUP_BUF struct dcp_buf who = { 0 };
    bool dead = count(l, DEAD) > 0, unstarted = !dead && count(l, STARTING);
    name_ranks(l, dead ? DEAD : unstarted ? STARTING : KILLED, &who);
    if (unstarted && dcp_main_stopped())
        return dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted before it started");
    dcp_error_set(err, DCP_E_COMM, "%s of %d %s",
                  who.failed ? "a rank" : (const char *)who.data, l->n,
                  dead        ? "died"
                  : unstarted ? "could not be started"
                              : "did not exit with the others, and was killed");
    for (int r = l->n - 1; r >= 0; r--)
        if (l->ranks[r].state == DEAD)
            err->rank = r;
    if (unstarted && !l->first_start_s)
        quote_mpirun(l, err);
    if (!err->hint[0])
        dcp_error_hint(err, "start it again with --resume auto");
    return DCP_E_COMM;
}

int launch_ranks(int n_ranks, struct dcp_error *err)
{
    struct launcher l = { .n = n_ranks, .listener = -1, .noise = -1 };
    l.here = !DCP_HAS_MPI || !launch_has_mpirun();
    DCP_CLEANUP_FREE struct rank_line *ranks =
        dcp_mem_calloc((size_t)n_ranks, sizeof *ranks);
    DCP_CLEANUP_FREE struct rank_line *unknown =
        dcp_mem_calloc((size_t)n_ranks, sizeof *unknown);
    DCP_CLEANUP_FREE struct pollfd *fds =
        dcp_mem_calloc(2 * (size_t)n_ranks + 2, sizeof *fds);
    DCP_CLEANUP_FREE char *text = NULL;
    DCP_CLEANUP_FREE char **argv = NULL;
    if (!ranks || !unknown || !fds)
        return dcp_error_memory(err, "a launch");
    for (int r = 0; r < n_ranks; r++)
        ranks[r].fd = -1;
    l.ranks = ranks;
    l.unknown = unknown;
    int rc = make_arguments(n_ranks, &text, &argv, err);
    if (!rc)
        rc = listen_for_ranks(&l, err);
    if (!rc)
        rc = make_secret(err);
    if (!rc) {
        set_environment(&l);
        rc = start_mpirun(&l, argv, err);
    }
    if (!rc) {
        run(&l, fds);
        end_mpirun(&l);
        rc = result(&l, err);
    }
    for (int r = 0; r < n_ranks; r++)
        if (ranks[r].fd >= 0)
            close(ranks[r].fd);
    for (int i = 0; i < l.n_unknown; i++)
        close(unknown[i].fd);
    if (l.listener >= 0)
        close(l.listener);
    if (l.noise >= 0)
        close(l.noise);
    dcp_buf_fini(&l.said);
    return rc;
}
