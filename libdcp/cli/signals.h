/* signals: how a user stops a program. */
#ifndef DCP_CLI_SIGNALS_H
#define DCP_CLI_SIGNALS_H

#include <stdbool.h>

/* From now on SIGINT, SIGTERM and SIGHUP, where they are not ignored, end the process
 * with status 130: with `stops` the second of them, else the first. Call on the main
 * thread; the others must block these signals if they run kernels of oneDNN. */
void dcp_signals_watch(bool stops);
/* Whether the first has come. */
bool dcp_signals_stopped(void);

#endif
