#include "term.h"

#include "base/mem.h"
#include "base/utf8.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value;
}

/* What the locale says; where it says nothing (containers), terminals are UTF-8. */
static bool locale_is_utf8(void)
{
    static const char *const variables[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (size_t i = 0; i < DCP_ARRAY_LEN(variables); i++)
        if (is_set(variables[i])) {
            const char *value = getenv(variables[i]);
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
        }
    return true;
}

static int columns_of(int fd)
{
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

void dcp_term_init(struct dcp_term *term, FILE *file, enum dcp_when color)
{
    int fd = fileno(file);
    const char *kind = getenv("TERM");
    bool tty = isatty(fd) == 1;
    bool plain = kind && strcmp(kind, "dumb") == 0;
    *term = (struct dcp_term){
        .file = file,
        .tty = tty && !plain,
        .color = color == DCP_WHEN_ALWAYS ||
                 (color == DCP_WHEN_AUTO && tty && !plain && !is_set("NO_COLOR")),
        .utf8 = locale_is_utf8(),
        .width = tty ? columns_of(fd) : 0,
    };
}

/* The signs that this project draws with, each as wide in ASCII, but for two arrows. */
static const char *ascii_of(uint32_t code)
{
    static const struct {
        uint32_t code;
        const char *ascii;
    } signs[] = {
        { 0x00b7, "." },   /* · */
        { 0x00d7, "x" },   /* × */
        { 0x2013, "-" },   /* – */
        { 0x2026, "~" },   /* … */
        { 0x2192, "->" },  /* → */
        { 0x2194, "<->" }, /* ↔ */
        { 0x2500, "-" },   /* ─ */
        { 0x2502, "|" },   /* │ */
        { 0x250c, "+" },   /* ┌ */
        { 0x2510, "+" },   /* ┐ */
        { 0x2514, "+" },   /* └ */
        { 0x2518, "+" },   /* ┘ */
        { 0x2581, "." },   /* ▁ */
        { 0x2582, ":" },   /* ▂ */
        { 0x2583, "-" },   /* ▃ */
        { 0x2584, "=" },   /* ▄ */
        { 0x2585, "+" },   /* ▅ */
        { 0x2586, "*" },   /* ▆ */
        { 0x2587, "%" },   /* ▇ */
        { 0x2588, "#" },   /* █ */
        { 0x258c, "#" },   /* ▌ */
    };
    for (size_t i = 0; i < DCP_ARRAY_LEN(signs); i++)
        if (signs[i].code == code)
            return signs[i].ascii;
    return NULL;
}

void dcp_term_put(const struct dcp_term *term, const char *text)
{
    if (term->utf8) {
        fputs(text, term->file);
        return;
    }
    for (size_t left = strlen(text), len; left; text += len, left -= len) {
        uint32_t code = 0;
        len = dcp_utf8_decode(text, left, &code);
        const char *ascii = len > 1 ? ascii_of(code) : NULL;
        len = len ? len : 1;
        if (ascii)
            fputs(ascii, term->file);
        else
            fwrite(text, 1, len, term->file);
    }
}

void dcp_term_printf(const struct dcp_term *term, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (term->utf8) {
        vfprintf(term->file, fmt, args);
    } else {
        DCP_CLEANUP_FREE char *text = NULL;
        if (vasprintf(&text, fmt, args) < 0)
            text = NULL; /* out of memory: show this help is lost, nothing else */
        else
            dcp_term_put(term, text);
    }
    va_end(args);
}

const char *dcp_term_style(const struct dcp_term *term, enum dcp_style style)
{
    static const char *const codes[DCP_N_STYLES] = {
        [DCP_STYLE_OFF] = "\033[0m",    [DCP_STYLE_BOLD] = "\033[1m",
        [DCP_STYLE_DIM] = "\033[2m",    [DCP_STYLE_GOOD] = "\033[32m",
        [DCP_STYLE_BAD] = "\033[1;31m", [DCP_STYLE_NOTE] = "\033[33m",
        [DCP_STYLE_NAME] = "\033[36m",
    };
    return term->color ? codes[style] : "";
}

const char *dcp_term_hue(const struct dcp_term *term, int i)
{
    /* Twelve calm backgrounds of the 256-colour palette, neighbours far apart, each with
     * letters that can be read on it. */
    static const char *const codes[] = {
        "\033[38;5;231;48;5;25m",  "\033[38;5;16;48;5;179m", "\033[38;5;231;48;5;29m",
        "\033[38;5;231;48;5;131m", "\033[38;5;16;48;5;110m", "\033[38;5;231;48;5;60m",
        "\033[38;5;16;48;5;150m",  "\033[38;5;231;48;5;96m", "\033[38;5;16;48;5;152m",
        "\033[38;5;231;48;5;94m",  "\033[38;5;16;48;5;181m", "\033[38;5;231;48;5;66m",
    };
    return term->color && i >= 0 ? codes[(size_t)i % DCP_ARRAY_LEN(codes)] : "";
}
