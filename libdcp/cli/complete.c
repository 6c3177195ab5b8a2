#include "complete.h"

#include "base/mem.h"
#include "base/str.h"
#include "source.h"
#include <dcp/dcp.h>
#include <string.h>

#define SHOWN_BYTES 4096

const struct dcp_complete_shell dcp_complete_shells[] = {
    { "bash", dcp_complete_bash },
    { "zsh", dcp_complete_zsh },
    { "fish", dcp_complete_fish },
    { 0 },
};

void dcp_complete_options(struct dcp_buf *out, const struct dcp_opt *opts)
{
    for (; opts && opts->name; opts++) {
        if (opts->hidden)
            continue;
        dcp_buf_add_fmt(out, " --%s", opts->name);
        if (opts->letter)
            dcp_buf_add_fmt(out, " -%c", opts->letter);
    }
}

void dcp_complete_verbs(struct dcp_buf *out, const struct dcp_command *const *commands)
{
    for (; *commands; commands++)
        if ((*commands)->name)
            dcp_buf_add_fmt(out, " %s", (*commands)->name);
}

void dcp_complete_identifier(struct dcp_buf *out, const char *name)
{
    for (; *name; name++)
        dcp_buf_add(out, *name == '-' ? "_" : name, 1);
}

static void add_word(struct dcp_buf *out, const char *word)
{
    dcp_buf_add_fmt(out, "%s%s", out->size_bytes ? " " : "", word);
}

static void add_formats(struct dcp_buf *out)
{
    for (const struct dcp_format *const *f = dcp_formats(); *f; f++)
        if ((*f)->flags & DCP_FORMAT_WRITES)
            add_word(out, (*f)->name);
}

static void add_dtypes(struct dcp_buf *out)
{
    add_word(out, "bf16 fp16 fp32");
    for (int d = 0; d < DCP_N_DTYPES; d++)
        if (dcp_dtype_is_float((enum dcp_dtype)d))
            add_word(out, dcp_dtype_name((enum dcp_dtype)d));
}

void dcp_complete_words(struct dcp_buf *out, const struct dcp_opt *opt)
{
    if (opt->kind == DCP_OPT_CHOICE)
        for (const char *c = opt->arg; *c; c++)
            dcp_buf_add(out, *c == '|' ? " " : c, 1);
    else if (opt->values == DCP_VALUES_FORMATS)
        add_formats(out);
    else if (opt->values == DCP_VALUES_DTYPES)
        add_dtypes(out);
    else if (opt->values == DCP_VALUES_LAYOUTS)
        for (const char *const *l = dcp_layout_names(); *l; l++)
            add_word(out, *l);
    else if (opt->values == DCP_VALUES_PRESETS)
        for (const struct dcp_name_preset *const *p = dcp_name_presets(); *p; p++)
            add_word(out, (*p)->name);
    dcp_buf_add_text(out, "");
}

bool dcp_complete_names(const struct dcp_command *command)
{
    return strstr(command->operands, "NAME") != NULL;
}

int dcp_complete_tensors(struct dcp_main *m, const char *path, struct dcp_buf *out,
                         struct dcp_error *err)
{
    struct dcp_location location;
    struct dcp_catalog *catalog = NULL;
    char shown[SHOWN_BYTES];
    DCP_TRY(dcp_source_open(m, path, &location, err));
    int rc = dcp_location_index(&location, &catalog, err);
    for (size_t t = 0; !rc && t < catalog->n_tensors; t++) {
        const char *name = catalog->tensors[t].name;
        if (!strcmp(dcp_str_escape(shown, sizeof shown, name), name))
            dcp_buf_add_fmt(out, "%s\n", name);
    }
    dcp_buf_add_text(out, "");
    dcp_catalog_free(catalog);
    dcp_location_close(&location);
    return rc;
}
