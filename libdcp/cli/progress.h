/* progress: a bar on a terminal, a line now and then on a pipe. */
#ifndef DCP_CLI_PROGRESS_H
#define DCP_CLI_PROGRESS_H

#include "term.h"
#include <stdint.h>

struct dcp_progress_bar {
    const struct dcp_term *term;
    const char *label;      /* "resharding"; borrowed; NULL: no bar is running */
    bool drawn, lines;      /* drawn: it stands on the current line of the terminal */
    uint64_t begin_ns;      /* when the work began, */
    uint64_t moved_ns;      /* and the first bytes were done; 0: none were yet */
    uint64_t shown_ns;      /* when it was last shown */
    uint64_t seen_ns, seen; /* the last look at the rate */
    double rate;            /* bytes a second, smoothed */
};

/* `when`: AUTO draws on a terminal and writes lines elsewhere; NEVER does nothing. */
void dcp_progress_begin(struct dcp_progress_bar *bar, const struct dcp_term *term,
                        enum dcp_when when, const char *label);
/* Shows it when it is time to: after 0.5 s, six times a second (lines: every 10 s). How
 * long it will take is told once bytes were seen to be done for a while; what came before
 * them, planning, says nothing of that. */
void dcp_progress_show(struct dcp_progress_bar *bar, uint64_t done, uint64_t total);
/* The same at a time of dcp_clock_ns. */
void dcp_progress_show_at(struct dcp_progress_bar *bar, uint64_t now_ns, uint64_t done,
                          uint64_t total);
/* Takes the bar away, so that something else can be written. It comes back. */
void dcp_progress_hide(struct dcp_progress_bar *bar);
void dcp_progress_end(struct dcp_progress_bar *bar);

#endif
