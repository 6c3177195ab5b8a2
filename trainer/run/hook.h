/* hook: commands of the user that are run when something happened, beside the training.
 */
#ifndef TRAINER_RUN_HOOK_H
#define TRAINER_RUN_HOOK_H

#include <dcp/log.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { HOOK_MOST = 8, HOOK_HURRY_S = 3 }; /* so many run at once */

/* Zero but for the log is none. Thread rule: one thread. */
struct hooks {
    const struct dcp_log *log; /* borrowed */
    struct hook {
        pid_t pid;
        const char *key; /* "checkpoint.on_save" */
        int64_t step;
    } running[HOOK_MOST];
    size_t n;
};

/* What a command is told, in DCP_STEP, DCP_PATH and DCP_MESSAGE of its environment. */
struct hook_event {
    int64_t step;
    const char *path, *message;
};

/* Begins /bin/sh -c COMMAND and does not wait for it: in a process group of its own, with
 * an empty stdin, stderr for stdout, and an environment that makes it no rank. `command`
 * NULL is nothing; `key` is borrowed until it ended. What goes wrong is a warning. */
void hook_start(struct hooks *hooks, const char *key, const char *command,
                const struct hook_event *event);
/* Warns of those that ended and failed. Does not wait. */
void hook_reap(struct hooks *hooks);
/* Waits for those that still run, timeout_s at most, and no more than HOOK_HURRY_S once
 * the user stopped the program; what runs longer is left alone. */
void hook_finish(struct hooks *hooks, int timeout_s);

#endif
