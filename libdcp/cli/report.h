/* report: failures and messages on stderr, for people or, with --json, one line of JSON.
 */
#ifndef DCP_CLI_REPORT_H
#define DCP_CLI_REPORT_H

#include "program.h"

/* What failed, where, why, and the next act. A code without a message says its name in
 * the table of errors, except DIFFERS, which is an answer. */
void dcp_report_error(struct dcp_main *m, int code, const struct dcp_error *err);

/* A dcp_log sink; self is the struct dcp_main. */
void dcp_report_log(void *self, enum dcp_log_level level, const char *message);

#endif
