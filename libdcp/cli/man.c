#include "opt.h"

#include "base/mem.h"
#include <stdio.h>
#include <string.h>

/* Text with what roff would take as its own made harmless. */
static void add_roff(struct dcp_buf *out, const char *text)
{
    bool begins = true; /* a line */
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\''))
            dcp_buf_add_text(out, "\\&");
        begins = *text == '\n';
        if (*text == '\\')
            dcp_buf_add_text(out, "\\e");
        else if (*text == '-')
            dcp_buf_add_text(out, "\\-");
        else if (*text == '\n')
            dcp_buf_add_text(out, "\n.PP\n");
        else
            dcp_buf_add(out, text, 1);
    }
}

static void add_option(struct dcp_buf *out, const struct dcp_opt *opt)
{
    dcp_buf_add_text(out, ".TP\n.B ");
    if (opt->letter)
        dcp_buf_add_fmt(out, "\\-%c\\fR, \\fB", opt->letter);
    dcp_buf_add_text(out, "\\-\\-");
    add_roff(out, opt->name);
    if (opt->arg) {
        dcp_buf_add_text(out, " \\fI");
        add_roff(out, opt->arg);
    }
    dcp_buf_add_text(out, "\\fR\n");
    add_roff(out, opt->help);
    dcp_buf_add_text(out, ".\n");
}

static void add_options(struct dcp_buf *out, const struct dcp_opt *opts)
{
    for (; opts && opts->name; opts++)
        if (!opts->hidden)
            add_option(out, opts);
}

static void add_examples(struct dcp_buf *out, const struct dcp_example *examples)
{
    for (; examples && examples->command; examples++) {
        dcp_buf_add_text(out, ".TP\n.B ");
        add_roff(out, examples->command);
        dcp_buf_add_text(out, "\n");
        add_roff(out, examples->what);
        dcp_buf_add_text(out, ".\n");
    }
}

static void add_synopsis(struct dcp_buf *out, const struct dcp_program *program,
                         const struct dcp_command *command)
{
    dcp_buf_add_text(out, ".B ");
    add_roff(out, program->name);
    if (command->name) {
        dcp_buf_add_text(out, " ");
        add_roff(out, command->name);
    }
    dcp_buf_add_text(out, "\n[\\fIOPTION\\fR]...\n");
    if (*command->operands) {
        dcp_buf_add_text(out, ".I ");
        add_roff(out, command->operands);
        dcp_buf_add_text(out, "\n");
    }
    dcp_buf_add_text(out, ".br\n");
}

static void add_command(struct dcp_buf *out, const struct dcp_program *program,
                        const struct dcp_command *command)
{
    dcp_buf_add_text(out, ".SS ");
    add_roff(out, command->name ? command->name : program->name);
    dcp_buf_add_fmt(out, " %s\n", command->operands);
    add_roff(out, command->purpose);
    dcp_buf_add_text(out, ".\n");
    if (command->about) {
        dcp_buf_add_text(out, ".PP\n");
        add_roff(out, command->about);
        dcp_buf_add_text(out, "\n");
    }
    add_options(out, command->opts);
    if (command->examples) {
        dcp_buf_add_text(out, ".PP\nExamples:\n");
        add_examples(out, command->examples);
    }
}

/* The exit statuses of all commands in one list, each once, in order. */
static void add_exits(struct dcp_buf *out, const struct dcp_program *program)
{
    for (int status = 0; status < 256; status++) {
        const char *said[8];
        size_t n_said = 0;
        for (const struct dcp_command *const *c = program->commands; *c; c++)
            for (const struct dcp_exit *e = (*c)->exits; e && e->text; e++) {
                bool again = e->status != status;
                for (size_t i = 0; i < n_said && !again; i++)
                    again = strcmp(said[i], e->text) == 0;
                if (!again && n_said < 8)
                    said[n_said++] = e->text;
            }
        if (!n_said)
            continue;
        dcp_buf_add_fmt(out, ".TP\n.B %d\n", status);
        for (size_t i = 0; i < n_said; i++) {
            dcp_buf_add_text(out, i ? "; " : "");
            add_roff(out, said[i]);
        }
        dcp_buf_add_text(out, ".\n");
    }
}

/* A section of lines that stay as they are. */
static int add_section(struct dcp_buf *out, const struct dcp_program *program,
                       struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    DCP_TRY(program->text(&text, err));
    DCP_TRY(dcp_buf_check(&text, err));
    dcp_buf_add_fmt(out, ".SH %s\n.nf\n", program->section);
    for (char *line = (char *)text.data; *line;) {
        size_t n = strcspn(line, "\n");
        bool more = line[n] != '\0';
        line[n] = '\0';
        add_roff(out, line);
        dcp_buf_add_text(out, "\n");
        line += n + more;
    }
    dcp_buf_add_text(out, ".fi\n");
    return DCP_OK;
}

int dcp_man(struct dcp_buf *out, const struct dcp_program *program,
            const struct dcp_opt *common, const char *version, struct dcp_error *err)
{
    int rc = DCP_OK;
    dcp_buf_add_fmt(out, ".TH \"%s\" 1 \"\" \"libdcp %s\" \"User commands\"\n",
                    program->name, version);
    dcp_buf_add_text(out, ".SH NAME\n");
    add_roff(out, program->name);
    dcp_buf_add_text(out, " \\- ");
    add_roff(out, program->purpose);
    dcp_buf_add_text(out, "\n.SH SYNOPSIS\n");
    for (const struct dcp_command *const *c = program->commands; *c; c++)
        add_synopsis(out, program, *c);
    if (program->about) {
        dcp_buf_add_text(out, ".SH DESCRIPTION\n");
        add_roff(out, program->about);
        dcp_buf_add_text(out, "\n");
    }
    dcp_buf_add_text(out, ".SH COMMANDS\n");
    for (const struct dcp_command *const *c = program->commands; *c; c++)
        add_command(out, program, *c);
    dcp_buf_add_text(out, ".SH COMMON OPTIONS\n");
    add_options(out, common);
    if (program->examples) {
        dcp_buf_add_text(out, ".SH EXAMPLES\n");
        add_examples(out, program->examples);
    }
    if (program->section)
        rc = add_section(out, program, err);
    dcp_buf_add_text(out, ".SH EXIT STATUS\n");
    add_exits(out, program);
    dcp_buf_add_text(out, ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\n"
                          "When set, and not empty, nothing is coloured, but by "
                          "\\fB\\-\\-color always\\fR.\n"
                          ".TP\n.B LC_ALL\\fR, \\fBLC_CTYPE\\fR, \\fBLANG\n"
                          "Outside UTF\\-8, drawing signs are written as ASCII.\n");
    return rc;
}
