#include <dcp/log.h>

#include "str.h"
#include <stdarg.h>
#include <stdio.h>

void dcp_log_write(const struct dcp_log *log, enum dcp_log_level level, const char *fmt,
                   ...)
{
    if (!log || !log->write || level > log->level)
        return;
    char raw[2048], line[2048];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(raw, sizeof raw, fmt, args);
    va_end(args);
    log->write(log->self, level, dcp_str_escape(line, sizeof line, n < 0 ? fmt : raw));
}
