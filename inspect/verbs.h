/* verbs: one table for each, in a file of its own. */
#ifndef INSPECT_VERBS_H
#define INSPECT_VERBS_H

#include "cli/opt.h"

extern const struct dcp_command inspect_show;
extern const struct dcp_command inspect_ls;
extern const struct dcp_command inspect_map;
extern const struct dcp_command inspect_stats;
extern const struct dcp_command inspect_diff;
extern const struct dcp_command inspect_verify;
extern const struct dcp_command inspect_dump;
extern const struct dcp_command inspect_scan;
extern const struct dcp_command inspect_steps;

#define INSPECT_ABOUT_PATH                                                              \
    "PATH is a run folder (its newest complete step), one step, any file or folder of " \
    "a known format, which is told by its content, or a tar archive (.tar, .tar.zst) "  \
    "of such a folder."

/* Exit statuses of verbs that look and say, and the rows that all verbs have. */
extern const struct dcp_exit inspect_exits[];
#define INSPECT_EXITS_FAILED                                                         \
    { 2, "wrong usage" }, { 3, "not found" }, { 4, "corrupt" }, { 6, "I/O error" },  \
        { 8, "not a known format" }, { 9, "out of memory" }, { 130, "interrupted" }, \
    {                                                                                \
        0                                                                            \
    }

#endif
