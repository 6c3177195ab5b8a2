#include "cli/signals.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static atomic_bool sent;

static void *send_term(void *arg)
{
    const struct timespec a_while = { .tv_nsec = 50000000 };
    (void)arg;
    nanosleep(&a_while, NULL);
    kill(getpid(), SIGTERM);
    while (!dcp_signals_stopped())
        nanosleep(&a_while, NULL);
    atomic_store(&sent, true);
    return NULL;
}

/* Keeps values far below the stack pointer, as compiled kernels of oneDNN do, while a
 * signal comes. No function is called meanwhile. */
__attribute__((noinline)) static int64_t lost_below_the_stack(void)
{
    enum { FAR = 16384, NEAR = 512, WORD = (int)sizeof(uint64_t) };
    volatile uint64_t *below =
        (volatile uint64_t *)((char *)__builtin_frame_address(0) - FAR);
    int64_t n = (FAR - NEAR) / WORD, lost = 0;
    for (int64_t i = 0; i < n; i++)
        below[i] = UINT64_C(0x5ea1ed0000000000) + (uint64_t)i;
    while (!atomic_load_explicit(&sent, memory_order_relaxed))
        continue;
    for (int64_t i = 0; i < n; i++)
        lost += below[i] != UINT64_C(0x5ea1ed0000000000) + (uint64_t)i;
    return lost;
}

static void handlers_leave_the_stack_alone(void **state)
{
    (void)state;
    sigset_t all, before;
    pthread_t thread;
    dcp_signals_watch(true);
    assert_false(dcp_signals_stopped());
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    assert_int_equal(pthread_create(&thread, NULL, send_term, NULL), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(lost_below_the_stack(), 0);
    assert_true(dcp_signals_stopped());
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handlers_leave_the_stack_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
