/* parsed: a configuration of the trainer as a text, and what came of reading it. */
#ifndef TESTS_LIB_PARSED_H
#define TESTS_LIB_PARSED_H

#include "trainer/config/settings.h"

/* What a configuration cannot be without. */
#define NEEDED "\"data\": {\"train\": \"a.txt\"}, "
#define BATCH "\"train_batch_size\": 16, "

/* Of the last text: its settings, why it was refused, and a line for each message, such
 * as "W c.json: …". They are this library's own. */
extern struct settings got;
extern struct dcp_error why;
extern char logged[8192];

/* Logs into `logged`. */
extern const struct dcp_log keep_log;

/* Reads the text as /srv/conf/c.json. Overrides end with NULL, or are NULL. */
int read_settings(const char *text, const char *const *overrides, int world_size);
/* The test fails unless the text is read; on one rank. */
void expect_read(const char *text);
void expect_read_by(const char *text, int world_size);
/* The test fails unless the text is refused on 2 ranks, with these in message and hint.
 */
void expect_refused(const char *text, int code, const char *message, const char *hint);
/* A teardown: frees the settings. */
int forget_parsed(void **state);

bool is(double a, double b);

#endif
