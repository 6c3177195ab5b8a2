#include "opt.h"

#include <string.h>

/* "dcp-inspect" as part of a shell function's name. */
static void add_identifier(struct dcp_buf *out, const char *name)
{
    for (; *name; name++)
        dcp_buf_add(out, *name == '-' ? "_" : name, 1);
}

static void add_names(struct dcp_buf *out, const struct dcp_opt *opts)
{
    for (; opts && opts->name; opts++) {
        if (opts->hidden)
            continue;
        dcp_buf_add_fmt(out, " --%s", opts->name);
        if (opts->letter)
            dcp_buf_add_fmt(out, " -%c", opts->letter);
    }
}

static void add_pattern(struct dcp_buf *out, const struct dcp_opt *opt)
{
    dcp_buf_add_fmt(out, "--%s", opt->name);
    if (opt->letter)
        dcp_buf_add_fmt(out, "|-%c", opt->letter);
}

/* What may follow an option: the words of a choice; nothing known of other values but
 * that they may be files. */
static void add_values(struct dcp_buf *out, const struct dcp_opt *opts)
{
    for (; opts && opts->name; opts++) {
        if (opts->hidden || opts->kind != DCP_OPT_CHOICE)
            continue;
        dcp_buf_add_text(out, "    ");
        add_pattern(out, opts);
        dcp_buf_add_text(out, ") mapfile -t COMPREPLY < <(compgen -W '");
        for (const char *c = opts->arg; *c; c++)
            dcp_buf_add(out, *c == '|' ? " " : c, 1);
        dcp_buf_add_text(out, "' -- \"$word\"); return ;;\n");
    }
}

void dcp_complete_bash(struct dcp_buf *out, const struct dcp_program *program,
                       const struct dcp_opt *common)
{
    const struct dcp_command *const *commands = program->commands;
    dcp_buf_add_fmt(out,
                    "# bash completion of %s; load it with:\n"
                    "#   source <(%s --help-complete bash)\n_",
                    program->name, program->name);
    add_identifier(out, program->name);
    dcp_buf_add_text(out, "() {\n"
                          "    local word=${COMP_WORDS[COMP_CWORD]}\n"
                          "    local before=${COMP_WORDS[COMP_CWORD - 1]}\n"
                          "    local options='");
    add_names(out, common);
    dcp_buf_add_text(out, "' verbs='");
    for (size_t i = 0; commands[i]; i++)
        if (commands[i]->name)
            dcp_buf_add_fmt(out, " %s", commands[i]->name);
    dcp_buf_add_text(out, "'\n    COMPREPLY=()\n"
                          "    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 1; commands[i]; i++) {
        dcp_buf_add_fmt(out, "    %s) options+='", commands[i]->name);
        add_names(out, commands[i]->opts);
        dcp_buf_add_text(out, "' ;;\n");
    }
    dcp_buf_add_text(out, "    *) options+='");
    add_names(out, commands[0]->opts);
    dcp_buf_add_text(out, "' ;;\n    esac\n    case $before in\n");
    add_values(out, common);
    for (size_t i = 0; commands[i]; i++)
        add_values(out, commands[i]->opts);
    dcp_buf_add_text(
        out, "    esac\n"
             "    if [[ $word == -* ]]; then\n"
             "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
             "        return\n"
             "    fi\n"
             "    compopt -o filenames 2>/dev/null\n"
             "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
             "    if ((COMP_CWORD == 1)); then\n"
             "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY \\\n"
             "            < <(compgen -W \"$verbs\" -- \"$word\")\n"
             "    fi\n"
             "}\n"
             "complete -F _");
    add_identifier(out, program->name);
    dcp_buf_add_fmt(out, " %s\n", program->name);
}
