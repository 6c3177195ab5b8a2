#include "complete.h"

/* A text in single quotes. */
static void add_quoted(struct dcp_buf *out, const char *text)
{
    dcp_buf_add_text(out, "'");
    for (; *text; text++)
        dcp_buf_add_fmt(out, *text == '\'' || *text == '\\' ? "\\%c" : "%c", *text);
    dcp_buf_add_text(out, "'");
}

/* When the options of a command are offered: behind its verb, or without one. */
static void add_condition(struct dcp_buf *out, const struct dcp_command *const *commands,
                          const struct dcp_command *command)
{
    if (!command || !commands[1])
        return;
    dcp_buf_add_fmt(out, " -n '%s__fish_seen_subcommand_from",
                    command->name ? "" : "not ");
    for (size_t i = 0; commands[i]; i++)
        if (commands[i]->name && (commands[i] == command || !command->name))
            dcp_buf_add_fmt(out, " %s", commands[i]->name);
    dcp_buf_add_text(out, "'");
}

static void add_options(struct dcp_buf *out, const struct dcp_program *program,
                        const char *function, const struct dcp_command *command,
                        const struct dcp_opt *opts)
{
    for (; opts && opts->name; opts++) {
        DCP_CLEANUP_BUF struct dcp_buf words = { 0 };
        dcp_complete_words(&words, opts);
        if (opts->hidden || words.failed)
            continue;
        dcp_buf_add_fmt(out, "complete -c %s", program->name);
        add_condition(out, program->commands, command);
        dcp_buf_add_fmt(out, " -l %s", opts->name);
        if (opts->letter)
            dcp_buf_add_fmt(out, " -s %c", opts->letter);
        if (opts->values == DCP_VALUES_TENSORS)
            dcp_buf_add_fmt(out, " -x -a '(%s_tensors)'", function);
        else if (words.size_bytes)
            dcp_buf_add_fmt(out, " -%s -a '%s'",
                            opts->values == DCP_VALUES_PRESETS ? "r" : "x",
                            (const char *)words.data);
        else if (opts->arg)
            dcp_buf_add_text(out, " -r");
        dcp_buf_add_text(out, " -d ");
        add_quoted(out, opts->help);
        dcp_buf_add_text(out, "\n");
    }
}

void dcp_complete_fish(struct dcp_buf *out, const struct dcp_program *program,
                       const struct dcp_opt *common)
{
    const struct dcp_command *const *commands = program->commands;
    DCP_CLEANUP_BUF struct dcp_buf name = { 0 };
    dcp_buf_add_text(&name, "__");
    dcp_complete_identifier(&name, program->name);
    const char *function = name.failed ? "__" : (const char *)name.data;
    dcp_buf_add_fmt(out,
                    "# fish completion of %s; load it with:\n"
                    "#   %s --help-complete fish | source\n"
                    "function %s_tensors\n"
                    "    for path in (commandline -opc)[2..]\n"
                    "        if test -e $path\n"
                    "            %s --help-tensors $path 2>/dev/null\n"
                    "            return\n"
                    "        end\n"
                    "    end\n"
                    "end\n",
                    program->name, program->name, function, program->name);
    for (size_t i = 0; commands[i]; i++) {
        if (commands[i]->name && commands[1]) {
            dcp_buf_add_fmt(out, "complete -c %s -n __fish_use_subcommand -a %s -d ",
                            program->name, commands[i]->name);
            add_quoted(out, commands[i]->purpose);
            dcp_buf_add_text(out, "\n");
        }
        add_options(out, program, function, commands[i], commands[i]->opts);
        if (commands[i]->name && dcp_complete_names(commands[i]))
            dcp_buf_add_fmt(out,
                            "complete -c %s -n '__fish_seen_subcommand_from %s' "
                            "-a '(%s_tensors)'\n",
                            program->name, commands[i]->name, function);
    }
    add_options(out, program, function, NULL, common);
}
