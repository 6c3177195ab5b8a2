#include <dcp/error.h>

#include "mem.h"
#include "str.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int code, exit;
    const char *name, *text;
} table[] = {
#define DCP_X(code, value, exit, text) { value, exit, #code, text },
    DCP_ERROR_TABLE(DCP_X)
#undef DCP_X
};

/* Names from files reach messages, so every text is escaped here again: what is escaped
 * already passes unchanged. Room for four times the longest text keeps a cut visible. */
#define RAW_BYTES 1024

static void format_text(char *out, size_t cap, const char *fmt, va_list args)
{
    char raw[RAW_BYTES];
    int n = vsnprintf(raw, sizeof raw, fmt, args);
    dcp_str_escape(out, cap, n < 0 ? fmt : raw);
}

/* `reserve` bytes of the message stay free. */
static void set_text(struct dcp_error *err, int code, int sys_errno, size_t reserve,
                     const char *fmt, va_list args)
{
    struct dcp_error fresh = { .code = code, .sys_errno = sys_errno, .rank = -1 };
    memcpy(fresh.tensor, err->tensor, sizeof fresh.tensor);
    memcpy(fresh.file, err->file, sizeof fresh.file);
    *err = fresh;
    format_text(err->message, sizeof err->message - reserve, fmt, args);
}

static void set_first(struct dcp_error *err, int code, const char *fmt, va_list args)
{
    if (err && !err->code && code)
        set_text(err, code, 0, 0, fmt, args);
}

int dcp_error_set(struct dcp_error *err, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set_first(err, code, fmt, args);
    va_end(args);
    return code;
}

static int code_of_errno(int code, int sys_errno)
{
    switch (sys_errno) {
    case ENOENT:
        return DCP_E_NOT_FOUND;
    case ENOSPC:
    case EDQUOT:
        return DCP_E_NO_SPACE;
    case ENOMEM:
        return DCP_E_MEMORY;
    default:
        return code;
    }
}

int dcp_error_sys(struct dcp_error *err, int code, int sys_errno, const char *fmt, ...)
{
    code = code_of_errno(code, sys_errno);
    if (!err || err->code || !code)
        return code;
    char buf[128];
    const char *why = strerror_r(sys_errno, buf, sizeof buf);
    va_list args;
    va_start(args, fmt);
    set_text(err, code, sys_errno, strlen(why) + 2, fmt,
             args); /* the reason is not cut */
    va_end(args);
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof err->message - used, ": %s", why);
    return code;
}

int dcp_error_memory(struct dcp_error *err, const char *what)
{
    return dcp_error_set(err, DCP_E_MEMORY, "out of memory for %s", what);
}

void dcp_error_hint(struct dcp_error *err, const char *fmt, ...)
{
    if (!err || !err->code)
        return;
    va_list args;
    va_start(args, fmt);
    format_text(err->hint, sizeof err->hint, fmt, args);
    va_end(args);
}

void dcp_error_tensor(struct dcp_error *err, const char *name)
{
    if (err)
        dcp_str_escape(err->tensor, sizeof err->tensor, name);
}

void dcp_error_file(struct dcp_error *err, const char *name)
{
    if (err)
        dcp_str_escape(err->file, sizeof err->file, name);
}

int dcp_error_of_tensor(struct dcp_error *err, int code, const char *name,
                        const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set_first(err, code, fmt, args);
    va_end(args);
    dcp_error_tensor(err, name);
    return code;
}

void dcp_error_prefix(struct dcp_error *err, const char *fmt, ...)
{
    if (!err || !err->code)
        return;
    char prefix[sizeof err->message], whole[2 * sizeof err->message + 2];
    va_list args;
    va_start(args, fmt);
    format_text(prefix, sizeof prefix, fmt, args);
    va_end(args);
    snprintf(whole, sizeof whole, "%s: %s", prefix, err->message);
    dcp_str_escape(err->message, sizeof err->message, whole);
}

const char *dcp_error_name(int code)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(table); i++)
        if (table[i].code == code)
            return table[i].name;
    return "UNKNOWN";
}

const char *dcp_error_text(int code)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(table); i++)
        if (table[i].code == code)
            return table[i].text;
    return "an unknown error";
}

int dcp_error_exit(int code)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(table); i++)
        if (table[i].code == code)
            return table[i].exit;
    return dcp_error_exit(DCP_E_IO); /* never mistaken for success or for "no" */
}
