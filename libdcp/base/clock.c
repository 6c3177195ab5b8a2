#include "clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_S 1000000000u

uint64_t dcp_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

double dcp_clock_s(void)
{
    return (double)dcp_clock_ns() * 1e-9;
}

struct timespec dcp_clock_after_us(uint64_t us)
{
    uint64_t end = dcp_clock_ns() + us * 1000;

    return (struct timespec){ .tv_sec = (time_t)(end / NS_PER_S),
                              .tv_nsec = (long)(end % NS_PER_S) };
}

void dcp_clock_sleep_us(uint64_t us)
{
    /* An absolute end: signals that cut a sleep short do not lengthen it. */
    struct timespec at = dcp_clock_after_us(us);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}
