/* program: a running program, as its verbs and what they call know it: options that all
 * have, streams, the bar, signals. */
#ifndef DCP_CLI_PROGRAM_H
#define DCP_CLI_PROGRAM_H

#include "opt.h"
#include "progress.h"
#include "term.h"
#include <dcp/log.h>
#include <dcp/signature.h>
#include <jansson.h>
#include <pthread.h>

/* A running program. */
struct dcp_main {
    const struct dcp_program *program;
    const struct dcp_command *command;
    struct dcp_opt_list operands; /* what is no option; NULL behind the last */
    struct dcp_term out;          /* stdout: the answer */
    struct dcp_term note;         /* stderr: everything else */
    struct dcp_log log;           /* to stderr; what -q and -v let through */
    bool json;                    /* --json: the answer is one document */
    int verbose;                  /* -v: 1, -vv: 2, -q: -1 */
    struct dcp_keys *trusted;     /* --trusted-keys, or NULL */
    uint64_t max_header_bytes;    /* --limit-header; 0: the library's limits */
    int threads;                  /* -j; 0: the library's choice */
    enum dcp_when progress;       /* --progress; NEVER with -q */
    bool mute; /* a command may set it: another process reports the failure */

    struct dcp_progress_bar bar; /* private */
    pthread_mutex_t lock;        /* private: of bar and stderr */
    struct dcp_opt *common;      /* private: the common options of this program */
};

/* True after the first SIGINT, SIGTERM or SIGHUP of a command with `stops`; a second one
 * ends the process with status 130. */
bool dcp_main_stopped(void);

/* A bar called `label` for a function of the library; the work ends when the user stops
 * it. One at a time; dcp_main_progress_end takes it away. */
struct dcp_progress dcp_main_progress(struct dcp_main *m, const char *label);
void dcp_main_progress_end(struct dcp_main *m);
/* Before something is written while work with a bar goes on. */
void dcp_main_progress_hide(struct dcp_main *m);

/* False once nobody reads stdout any more: work whose answer is long may end early. */
bool dcp_main_is_read(const struct dcp_main *m);

#endif
