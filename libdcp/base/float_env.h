/* float_env: floating-point arithmetic as this library means it, whatever the program
 * that it is in has set: PyTorch can flush subnormal numbers to zero, in which case a
 * half of 2^-24 would become 0, and threads inherit that. */
#ifndef DCP_BASE_FLOAT_ENV_H
#define DCP_BASE_FLOAT_ENV_H

#include <fenv.h>

/* Rounds to nearest and keeps subnormal numbers from here on, on this thread; `end` is
 * for what was before. About 50 ns both. */
static inline void dcp_float_env_begin(fenv_t *out_before)
{
    fegetenv(out_before);
    fesetenv(FE_DFL_ENV);
}
static inline void dcp_float_env_end(const fenv_t *before)
{
    fesetenv(before);
}

#endif
