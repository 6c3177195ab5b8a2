#include "parsed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct settings got;
struct dcp_error why;
char logged[8192];

static void keep(void *self, enum dcp_log_level level, const char *message)
{
    (void)self;
    size_t used = strlen(logged);
    snprintf(logged + used, sizeof logged - used, "%c %s\n", "EWID"[level], message);
}

const struct dcp_log keep_log = { .write = keep, .level = DCP_LOG_INFO };

int forget_parsed(void **state)
{
    (void)state;
    settings_fini(&got);
    why = (struct dcp_error){ 0 };
    logged[0] = '\0';
    return 0;
}

int read_settings(const char *text, const char *const *overrides, int world_size)
{
    forget_parsed(NULL);
    return settings_parse(text, strlen(text), "c.json", "/srv/conf", overrides,
                          world_size, &keep_log, &got, &why);
}

void expect_read_by(const char *text, int world_size)
{
    if (read_settings(text, NULL, world_size))
        fail_msg("%s\n%s", text, why.message);
}

void expect_read(const char *text)
{
    expect_read_by(text, 1);
}

void expect_refused(const char *text, int code, const char *message, const char *hint)
{
    if (read_settings(text, NULL, 2) != code || why.code != code ||
        !strstr(why.message, message) || !strstr(why.hint, hint))
        fail_msg("%s\n%s: %s\n  hint: %s", text, dcp_error_name(why.code), why.message,
                 why.hint);
    assert_null(got.text);
}

bool is(double a, double b)
{
    return a >= b && a <= b;
}
