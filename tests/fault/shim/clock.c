/* The clock of the day jumps, as when somebody sets it, or a machine of the past comes to
 * life. Other clocks go on as they do. */
#include "shim.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* How far it is off now: another way at every look, at least a quarter of the most. */
static time_t jump(void)
{
    static uint64_t looks;
    const char *text = getenv("DCP_SHIM_CLOCK");
    int64_t most = text ? strtoll(text, NULL, 10) : 0;

    if (most <= 0)
        return 0;
    uint64_t n = __atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED);
    int64_t off = most / 4 + (int64_t)(n * 2654435761u % (uint64_t)(most - most / 4));
    return n % 2 ? off : -off;
}

SHIM_EXPORT int clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, out);

    if (!rc && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        out->tv_sec += jump();
    return rc;
}

SHIM_EXPORT int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    *out = (struct timeval){ now.tv_sec, now.tv_nsec / 1000 };
    return 0;
}

SHIM_EXPORT time_t time(time_t *out)
{
    struct timespec now;

    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
