#include "complete.h"

static void add_pattern(struct dcp_buf *out, const struct dcp_opt *opt)
{
    dcp_buf_add_fmt(out, "    --%s", opt->name);
    if (opt->letter)
        dcp_buf_add_fmt(out, "|-%c", opt->letter);
    dcp_buf_add_text(out, ") ");
}

/* What may follow an option: words, names of tensors, or files. */
static void add_values(struct dcp_buf *out, const char *function,
                       const struct dcp_opt *opts)
{
    for (; opts && opts->name; opts++) {
        DCP_CLEANUP_BUF struct dcp_buf words = { 0 };
        dcp_complete_words(&words, opts);
        if (opts->hidden || words.failed ||
            (!words.size_bytes && opts->values != DCP_VALUES_TENSORS))
            continue;
        add_pattern(out, opts);
        if (opts->values == DCP_VALUES_TENSORS)
            dcp_buf_add_fmt(out, "%s_tensors; return ;;\n", function);
        else
            dcp_buf_add_fmt(
                out, "mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\")%s",
                (const char *)words.data,
                opts->values == DCP_VALUES_PRESETS ? " ;;\n" : "; return ;;\n");
    }
}

static void add_head(struct dcp_buf *out, const struct dcp_program *program,
                     const char *function)
{
    dcp_buf_add_fmt(out,
                    "# bash completion of %s; load it with:\n"
                    "#   source <(%s --help-complete bash)\n"
                    "%s_tensors() {\n"
                    "    local name path\n"
                    "    for path in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
                    "        [[ -e $path ]] || continue\n"
                    "        while IFS= read -r name; do\n"
                    "            [[ $name == \"$word\"* ]] && COMPREPLY+=(\"$(printf %%q "
                    "\"$name\")\")\n"
                    "        done < <(%s --help-tensors \"$path\" 2>/dev/null)\n"
                    "        return\n"
                    "    done\n"
                    "}\n"
                    "%s() {\n"
                    "    local word=${COMP_WORDS[COMP_CWORD]}\n"
                    "    local before=${COMP_WORDS[COMP_CWORD - 1]}\n",
                    program->name, program->name, function, program->name, function);
}

static void add_verbs(struct dcp_buf *out, const char *function,
                      const struct dcp_command *const *commands)
{
    dcp_buf_add_text(out, "    COMPREPLY=()\n    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 1; commands[i]; i++) {
        dcp_buf_add_fmt(out, "    %s) options+='", commands[i]->name);
        dcp_complete_options(out, commands[i]->opts);
        dcp_buf_add_text(out, "' ;;\n");
    }
    dcp_buf_add_text(out, "    *) options+='");
    dcp_complete_options(out, commands[0]->opts);
    dcp_buf_add_text(out, "' ;;\n    esac\n    case $before in\n");
    for (size_t i = 0; commands[i]; i++)
        add_values(out, function, commands[i]->opts);
}

static void add_operands(struct dcp_buf *out, const char *function,
                         const struct dcp_command *const *commands)
{
    dcp_buf_add_text(
        out, "    esac\n"
             "    if [[ $word == -* ]]; then\n"
             "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
             "        return\n"
             "    fi\n");
    for (size_t i = 0; commands[i]; i++)
        if (commands[i]->name && dcp_complete_names(commands[i]))
            dcp_buf_add_fmt(out,
                            "    if [[ ${COMP_WORDS[1]} == %s ]] && ((COMP_CWORD > 2)); "
                            "then\n        %s_tensors\n        return\n    fi\n",
                            commands[i]->name, function);
    dcp_buf_add_text(
        out, "    compopt -o filenames 2>/dev/null\n"
             "    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$word\")\n"
             "    if ((COMP_CWORD == 1)); then\n"
             "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY \\\n"
             "            < <(compgen -W \"$verbs\" -- \"$word\")\n"
             "    fi\n"
             "}\n");
}

void dcp_complete_bash(struct dcp_buf *out, const struct dcp_program *program,
                       const struct dcp_opt *common)
{
    const struct dcp_command *const *commands = program->commands;
    DCP_CLEANUP_BUF struct dcp_buf name = { 0 };
    dcp_buf_add_text(&name, "_");
    dcp_complete_identifier(&name, program->name);
    const char *function = name.failed ? "_" : (const char *)name.data;
    add_head(out, program, function);
    dcp_buf_add_text(out, "    local options='");
    dcp_complete_options(out, common);
    dcp_buf_add_text(out, "' verbs='");
    dcp_complete_verbs(out, commands);
    dcp_buf_add_text(out, "'\n");
    add_verbs(out, function, commands);
    add_values(out, function, common);
    add_operands(out, function, commands);
    dcp_buf_add_fmt(out, "complete -F %s %s\n", function, program->name);
}
