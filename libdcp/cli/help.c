#include "opt.h"

#include "text.h"
#include <stdio.h>
#include <string.h>

#define WIDTH 80       /* lines end before this column */
#define COLUMN_MOST 30 /* where the text of options begins at most */

void dcp_help_name(struct dcp_buf *out, const struct dcp_program *program,
                   const struct dcp_command *command)
{
    dcp_buf_add_text(out, program->name);
    if (command && command->name)
        dcp_buf_add_fmt(out, " %s", command->name);
}

void dcp_help_usage(struct dcp_buf *out, const struct dcp_program *program,
                    const struct dcp_command *command)
{
    dcp_help_name(out, program, command);
    dcp_buf_add_text(out, " [OPTION]...");
    if (*command->operands)
        dcp_buf_add_fmt(out, " %s", command->operands);
}

static void add_heading(struct dcp_buf *out, const char *text,
                        const struct dcp_help_style *style)
{
    dcp_buf_add_fmt(out, "\n%s%s:%s\n", style->heading, text, style->off);
}

/* "  -t, --tensors GLOB" */
static void format_option(char *out, size_t cap, const struct dcp_opt *opt)
{
    char letter[8] = "    ";
    if (opt->letter)
        snprintf(letter, sizeof letter, "-%c, ", opt->letter);
    snprintf(out, cap, "  %s--%s%s%s", letter, opt->name, opt->arg ? " " : "",
             opt->arg ? opt->arg : "");
}

static int widest_option(const struct dcp_opt *opts)
{
    char text[128];
    int widest = 0;
    for (; opts && opts->name; opts++) {
        format_option(text, sizeof text, opts);
        int width = opts->hidden ? 0 : dcp_text_width(text) + 2;
        if (width > widest && width <= COLUMN_MOST)
            widest = width;
    }
    return widest;
}

/* A row with `text` on the left and its help beside it, or below where it is too long. */
static void add_row(struct dcp_buf *out, const char *text, const char *help, int column,
                    const struct dcp_help_style *style)
{
    int taken = dcp_text_width(text);
    dcp_buf_add_fmt(out, "%s%s%s", style->code, text, style->off);
    if (taken + 2 > column) {
        dcp_buf_add_text(out, "\n");
        taken = 0;
    }
    dcp_buf_add_fill(out, ' ', (size_t)(column - taken));
    dcp_text_add_wrapped(out, help, column, column, WIDTH);
    dcp_buf_add_text(out, "\n");
}

static void add_options(struct dcp_buf *out, const struct dcp_opt *opts,
                        const char *first_group, int column,
                        const struct dcp_help_style *style)
{
    const char *group = first_group;
    for (; opts && opts->name; opts++) {
        char text[128];
        if (opts->group)
            group = opts->group;
        if (opts->hidden)
            continue;
        if (group)
            add_heading(out, group, style);
        group = NULL;
        format_option(text, sizeof text, opts);
        add_row(out, text, opts->help, column, style);
    }
}

static void add_examples(struct dcp_buf *out, const struct dcp_example *examples,
                         const struct dcp_help_style *style)
{
    if (!examples)
        return;
    add_heading(out, "Examples", style);
    for (; examples->command; examples++) {
        dcp_buf_add_fmt(out, "  %s%s%s\n      ", style->code, examples->command,
                        style->off);
        dcp_text_add_wrapped(out, examples->what, 6, 6, WIDTH);
        dcp_buf_add_text(out, "\n");
    }
}

static void add_exits(struct dcp_buf *out, const struct dcp_exit *exits,
                      const struct dcp_help_style *style)
{
    if (!exits)
        return;
    add_heading(out, "Exit status", style);
    for (; exits->text; exits++) {
        char status[16];
        snprintf(status, sizeof status, "  %3d", exits->status);
        add_row(out, status, exits->text, 7, style);
    }
}

static void add_about(struct dcp_buf *out, const char *about)
{
    if (!about)
        return;
    dcp_buf_add_text(out, "\n");
    dcp_text_add_wrapped(out, about, 0, 0, WIDTH);
    dcp_buf_add_text(out, "\n");
}

static void add_verbs(struct dcp_buf *out, const struct dcp_program *program,
                      const struct dcp_help_style *style)
{
    bool begun = false;
    for (const struct dcp_command *const *c = program->commands; *c; c++) {
        char text[128], purpose[256];
        if (!(*c)->name)
            continue;
        if (!begun)
            add_heading(out, "Verbs", style);
        begun = true;
        snprintf(text, sizeof text, "  %s %s", (*c)->name, (*c)->operands);
        snprintf(purpose, sizeof purpose, "%s%s", (*c)->purpose,
                 c == program->commands ? " (the default)" : "");
        add_row(out, text, purpose, COLUMN_MOST, style);
    }
}

static void add_usage(struct dcp_buf *out, const struct dcp_program *program,
                      const struct dcp_command *command,
                      const struct dcp_help_style *style)
{
    dcp_buf_add_fmt(out, "\n%sUsage:%s ", style->heading, style->off);
    if (command) {
        dcp_help_usage(out, program, command);
        dcp_buf_add_text(out, "\n");
    } else {
        dcp_buf_add_fmt(out, "%s [VERB] [OPTION]... PATH...\n", program->name);
    }
}

/* "dcp-inspect ls: list the tensors" */
static void add_title(struct dcp_buf *out, const struct dcp_program *program,
                      const struct dcp_command *command,
                      const struct dcp_help_style *style)
{
    int taken = dcp_text_width(program->name) + 2;
    if (command && command->name)
        taken += 1 + dcp_text_width(command->name);
    dcp_buf_add_text(out, style->heading);
    dcp_help_name(out, program, command);
    dcp_buf_add_fmt(out, "%s: ", style->off);
    dcp_text_add_wrapped(out, command ? command->purpose : program->purpose, taken, 4,
                         WIDTH);
    dcp_buf_add_text(out, "\n");
}

void dcp_help(struct dcp_buf *out, const struct dcp_program *program,
              const struct dcp_command *command, const struct dcp_opt *common,
              const struct dcp_help_style *style)
{
    /* A program with an act of its own shows it as if it were asked for. */
    bool whole = !command;
    if (whole && !program->commands[0]->name)
        command = program->commands[0];
    add_title(out, program, command, style);
    add_usage(out, program, command, style);
    add_about(out, command ? command->about : program->about);
    if (whole)
        add_verbs(out, program, style);
    int column = widest_option(common);
    int own = widest_option(command ? command->opts : NULL);
    column = own > column ? own : column;
    add_options(out, command ? command->opts : NULL, "Options", column, style);
    add_options(out, common, "Common", column, style);
    add_examples(out, command ? command->examples : program->examples, style);
    add_exits(out, command ? command->exits : program->exits, style);
    dcp_buf_add_text(out, "\n");
    if (whole && program->commands[1]) {
        dcp_buf_add_fmt(out, "'%s VERB --help' says more about a verb.\n", program->name);
    }
}
