/* clock: monotonic time, and sleeping that a signal does not cut short. */
#ifndef DCP_BASE_CLOCK_H
#define DCP_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

uint64_t dcp_clock_ns(void);
double dcp_clock_s(void);
void dcp_clock_sleep_us(uint64_t us);
/* So many microseconds from now, by CLOCK_MONOTONIC. */
struct timespec dcp_clock_after_us(uint64_t us);

#endif
