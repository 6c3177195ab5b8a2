#include "hook.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/main.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAUSE_US 20000
#define N_OWN 3

/* What makes a process a rank of this job, by its starter or by dcp-train itself: a
 * command is none, and does not learn the secret. And what is said to the command. */
static const char *const not_passed[] = {
    "DCP_LAUNCH=",
    "DCP_JOB_SECRET=",
    "DCP_JOB_SECRET_FILE=",
    "RANK=",
    "WORLD_SIZE=",
    "LOCAL_RANK=",
    "LOCAL_WORLD_SIZE=",
    "MASTER_",
    "TORCHELASTIC_",
    "GROUP_RANK=",
    "GROUP_WORLD_SIZE=",
    "ROLE_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "SLURM_PROCID=",
    "SLURM_LOCALID=",
    "DCP_STEP=",
    "DCP_PATH=",
    "DCP_MESSAGE=",
};
#define OF_ROOT "OMPI_ALLOW_RUN_AS_ROOT" /* the user's, and of no job */

static bool is_passed(const char *variable)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(not_passed); i++)
        if (dcp_str_starts(variable, not_passed[i]))
            return dcp_str_starts(variable, OF_ROOT);
    return true;
}

/* What is passed of the environment, and three variables more, in one array. */
static char **environment(char *const own[N_OWN])
{
    size_t n = 0, to = 0;
    while (environ[n])
        n++;
    char **out = dcp_mem_calloc(n + N_OWN + 1, sizeof *out);
    for (size_t i = 0; out && i < n; i++)
        if (is_passed(environ[i]))
            out[to++] = environ[i];
    for (size_t i = 0; out && i < N_OWN; i++)
        out[to++] = own[i];
    return out;
}

/* 0 or an errno. */
static int spawn(const char *command, char **env, pid_t *out_pid)
{
    char *argv[] = { "sh", "-c", (char *)command, NULL };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int why = posix_spawn_file_actions_init(&files);
    if (why)
        return why;
    why = posix_spawnattr_init(&attr);
    if (why) {
        posix_spawn_file_actions_destroy(&files);
        return why;
    }
    why =
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!why)
        why = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    /* Ctrl-C is for the training: a copy to somewhere else goes on. */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                        POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    if (!why)
        why = posix_spawn(out_pid, "/bin/sh", &files, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return why;
}

void hook_start(struct hooks *hooks, const char *key, const char *command,
                const struct hook_event *event)
{
    char step[64];
    pid_t pid = 0;
    if (!command || !*command)
        return;
    hook_reap(hooks);
    if (hooks->n == HOOK_MOST) {
        dcp_log_write(hooks->log, DCP_LOG_WARN,
                      "%s was not run for step %" PRId64 ": %d of its kind still run",
                      key, event->step, HOOK_MOST);
        return;
    }
    snprintf(step, sizeof step, "DCP_STEP=%" PRId64, event->step);
    DCP_CLEANUP_FREE char *path = dcp_str_join("DCP_PATH=", event->path, "");
    DCP_CLEANUP_FREE char *message = dcp_str_join("DCP_MESSAGE=", event->message, "");
    char *const own[N_OWN] = { step, path, message };
    DCP_CLEANUP_FREE char **env = path && message ? environment(own) : NULL;
    int why = env ? spawn(command, env, &pid) : ENOMEM;
    if (why)
        dcp_log_write(hooks->log, DCP_LOG_WARN, "%s cannot be run: %s", key,
                      strerror(why));
    else
        hooks->running[hooks->n++] = (struct hook){ pid, key, event->step };
}

static void tell(const struct hooks *hooks, const struct hook *hook, int status)
{
    if (WIFSIGNALED(status))
        dcp_log_write(hooks->log, DCP_LOG_WARN,
                      "%s of step %" PRId64 " was ended by signal %d", hook->key,
                      hook->step, WTERMSIG(status));
    else if (WEXITSTATUS(status))
        dcp_log_write(hooks->log, DCP_LOG_WARN,
                      "%s of step %" PRId64 " ended with exit status %d", hook->key,
                      hook->step, WEXITSTATUS(status));
}

void hook_reap(struct hooks *hooks)
{
    for (size_t i = 0; i < hooks->n;) {
        int status = 0;
        pid_t pid = waitpid(hooks->running[i].pid, &status, WNOHANG);
        if (pid == 0 || (pid < 0 && errno == EINTR)) {
            i++;
            continue;
        }
        if (pid > 0)
            tell(hooks, &hooks->running[i], status);
        hooks->running[i] = hooks->running[--hooks->n];
    }
}

void hook_finish(struct hooks *hooks, int timeout_s)
{
    double begin_s = dcp_clock_s();
    for (hook_reap(hooks); hooks->n; hook_reap(hooks)) {
        int patience_s =
            dcp_main_stopped() && timeout_s > HOOK_HURRY_S ? HOOK_HURRY_S : timeout_s;
        if (dcp_clock_s() - begin_s > patience_s)
            break;
        dcp_clock_sleep_us(PAUSE_US);
    }
    for (size_t i = 0; i < hooks->n; i++)
        dcp_log_write(
            hooks->log, DCP_LOG_WARN,
            "%s of step %" PRId64 " is still running as process %ld, and is left alone",
            hooks->running[i].key, hooks->running[i].step, (long)hooks->running[i].pid);
    hooks->n = 0;
}
