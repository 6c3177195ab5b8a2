#include "complete.h"

static void add_values(struct dcp_buf *out, const char *function,
                       const struct dcp_opt *opts)
{
    for (; opts && opts->name; opts++) {
        DCP_CLEANUP_BUF struct dcp_buf words = { 0 };
        bool tensors = opts->values == DCP_VALUES_TENSORS;
        dcp_complete_words(&words, opts);
        if (opts->hidden || words.failed || (!words.size_bytes && !tensors))
            continue;
        dcp_buf_add_fmt(out, "    (--%s", opts->name);
        if (opts->letter)
            dcp_buf_add_fmt(out, "|-%c", opts->letter);
        if (tensors)
            dcp_buf_add_fmt(out, ") %s_tensors; return ;;\n", function);
        else
            dcp_buf_add_fmt(out, ") compadd -- %s%s", (const char *)words.data,
                            opts->values == DCP_VALUES_PRESETS ? " ;;\n"
                                                               : "; return ;;\n");
    }
}

static void add_head(struct dcp_buf *out, const struct dcp_program *program,
                     const char *function)
{
    dcp_buf_add_fmt(
        out,
        "#compdef %s\n"
        "# zsh completion of %s; as a file _%s in a folder of $fpath, or:\n"
        "#   source <(%s --help-complete zsh)\n"
        "%s_tensors() {\n"
        "    local file # path is $PATH\n"
        "    for file in ${words[2,CURRENT-1]}; do\n"
        "        [[ -e $file ]] || continue\n"
        "        compadd -- \"${(@f)$(%s --help-tensors $file 2>/dev/null)}\"\n"
        "        return\n"
        "    done\n"
        "}\n"
        "%s() {\n"
        "    local -a options verbs\n"
        "    options=(",
        program->name, program->name, program->name, program->name, function,
        program->name, function);
}

void dcp_complete_zsh(struct dcp_buf *out, const struct dcp_program *program,
                      const struct dcp_opt *common)
{
    const struct dcp_command *const *commands = program->commands;
    DCP_CLEANUP_BUF struct dcp_buf name = { 0 };
    dcp_buf_add_text(&name, "_");
    dcp_complete_identifier(&name, program->name);
    const char *function = name.failed ? "_" : (const char *)name.data;
    add_head(out, program, function);
    dcp_complete_options(out, common);
    dcp_buf_add_text(out, ")\n    verbs=(");
    dcp_complete_verbs(out, commands);
    dcp_buf_add_text(out, ")\n    case $words[2] in\n");
    for (size_t i = 1; commands[i]; i++) {
        dcp_buf_add_fmt(out, "    (%s) options+=(", commands[i]->name);
        dcp_complete_options(out, commands[i]->opts);
        dcp_buf_add_text(out, ") ;;\n");
    }
    dcp_buf_add_text(out, "    (*) options+=(");
    dcp_complete_options(out, commands[0]->opts);
    dcp_buf_add_text(out, ") ;;\n    esac\n    case $words[CURRENT-1] in\n");
    for (size_t i = 0; commands[i]; i++)
        add_values(out, function, commands[i]->opts);
    add_values(out, function, common);
    dcp_buf_add_text(out, "    esac\n"
                          "    if [[ $words[CURRENT] == -* ]]; then\n"
                          "        compadd -- $options\n"
                          "        return\n"
                          "    fi\n");
    for (size_t i = 0; commands[i]; i++)
        if (commands[i]->name && dcp_complete_names(commands[i]))
            dcp_buf_add_fmt(out,
                            "    if [[ $words[2] == %s ]] && ((CURRENT > 3)); then\n"
                            "        %s_tensors\n        return\n    fi\n",
                            commands[i]->name, function);
    dcp_buf_add_fmt(out,
                    "    ((CURRENT == 2)) && compadd -- $verbs\n"
                    "    _files\n"
                    "}\n"
                    "if [[ $funcstack[1] == _%s ]]; then\n"
                    "    %s\n"
                    "else\n"
                    "    compdef %s %s\n"
                    "fi\n",
                    program->name, function, function, program->name);
}
