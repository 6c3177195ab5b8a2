#include "signals.h"

#include "base/mem.h"
#include <dcp/error.h>
#include <signal.h>
#include <unistd.h>

/* A signal handler can tell the program nothing but through a variable like this one. */
static volatile sig_atomic_t stopped;

/* Ends the line that a progress bar may stand on. */
static void leave(int exit_status)
{
    if (isatty(STDERR_FILENO) && write(STDERR_FILENO, "\n", 1) < 0)
        _exit(exit_status);
    _exit(exit_status);
}

static void on_stop(int signo)
{
    (void)signo;
    if (stopped)
        leave(130);
    stopped = 1;
}

static void on_end(int signo)
{
    (void)signo;
    leave(130);
}

void dcp_signals_watch(bool stops)
{
    /* The handlers have a stack of their own: kernels that oneDNN compiles while it runs
     * keep values far below the stack pointer, where they would be overwritten. */
    static char space[1 << 16];
    const stack_t stack = { .ss_sp = space, .ss_size = sizeof space };
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction act = { .sa_handler = stops ? on_stop : on_end,
                             .sa_flags = SA_RESTART | SA_ONSTACK };
    sigemptyset(&act.sa_mask);
    sigaltstack(&stack, NULL);
    for (size_t i = 0; i < DCP_ARRAY_LEN(numbers); i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &act, NULL);
    }
}

bool dcp_signals_stopped(void)
{
    return stopped != 0;
}
