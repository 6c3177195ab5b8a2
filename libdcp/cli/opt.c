#include "opt.h"

#include "base/mem.h"
#include "base/size.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

#define WORD_MAX 64  /* of a choice */
#define NAMES_MAX 64 /* options of one command */

int dcp_opt_list_add(struct dcp_opt_list *list, const char *item, struct dcp_error *err)
{
    const char **items =
        dcp_mem_grow(list->items, &list->cap, list->n + 2, sizeof *items);
    if (!items)
        return dcp_error_memory(err, "the arguments");
    items[list->n++] = item;
    items[list->n] = NULL;
    list->items = items;
    return DCP_OK;
}

void dcp_opt_free(const struct dcp_opt *opts, void *settings)
{
    for (; opts && opts->name; opts++)
        if (opts->kind == DCP_OPT_LIST) {
            struct dcp_opt_list *list = (void *)((char *)settings + opts->at);
            free(list->items);
            *list = (struct dcp_opt_list){ 0 };
        }
}

/* The next word of "a|b|c" copied to out; what follows it, or NULL at the end. */
static const char *next_word(const char *words, char out[WORD_MAX])
{
    size_t n = strcspn(words, "|");
    if (n >= WORD_MAX)
        n = WORD_MAX - 1;
    memcpy(out, words, n);
    out[n] = '\0';
    words += strcspn(words, "|");
    return *words ? words + 1 : NULL;
}

int dcp_opt_choice(const char *words, const char *text)
{
    char word[WORD_MAX];
    for (int i = 0; words; i++) {
        words = next_word(words, word);
        if (strcmp(word, text) == 0)
            return i;
    }
    return -1;
}

static bool takes_value(const struct dcp_opt *opt)
{
    return opt->kind != DCP_OPT_FLAG && opt->kind != DCP_OPT_COUNT;
}

/* An option that was found: its row and where its value goes. */
struct found {
    const struct dcp_opt *opt;
    void *field;
};

static struct found find(const struct dcp_opt_table *tables, size_t n_tables,
                         const char *name, size_t n, char letter)
{
    for (size_t i = 0; i < n_tables; i++)
        for (const struct dcp_opt *o = tables[i].opts; o && o->name; o++)
            if (name ? strncmp(o->name, name, n) == 0 && !o->name[n]
                     : o->letter == letter)
                return (struct found){ o, (char *)tables[i].settings + o->at };
    return (struct found){ 0 };
}

static int unknown(const struct dcp_opt_table *tables, size_t n_tables, const char *name,
                   size_t n, struct dcp_error *err)
{
    const char *names[NAMES_MAX + 1];
    size_t n_names = 0;
    for (size_t i = 0; i < n_tables; i++)
        for (const struct dcp_opt *o = tables[i].opts; o && o->name; o++)
            if (n_names < NAMES_MAX && !o->hidden)
                names[n_names++] = o->name;
    names[n_names] = NULL;
    char text[WORD_MAX * 2];
    snprintf(text, sizeof text, "%.*s", (int)n, name);
    dcp_error_set(err, DCP_E_USAGE, "unknown option '--%s'", text);
    const char *near = dcp_str_nearest(text, names);
    if (near)
        dcp_error_hint(err, "did you mean '--%s'?", near);
    return DCP_E_USAGE;
}

static int bad_choice(const struct dcp_opt *opt, const char *value, struct dcp_error *err)
{
    char words[16][WORD_MAX], all[256] = "";
    const char *list[17], *rest = opt->arg;
    size_t n = 0;
    while (rest && n < DCP_ARRAY_LEN(words)) {
        rest = next_word(rest, words[n]);
        list[n] = words[n];
        n++;
    }
    list[n] = NULL;
    for (size_t i = 0, used = 0; i < n && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s",
                                 i == 0       ? ""
                                 : i + 1 == n ? " or "
                                              : ", ",
                                 list[i]);
    dcp_error_set(err, DCP_E_USAGE, "'--%s' takes %s, not '%s'", opt->name, all, value);
    const char *near = dcp_str_nearest(value, list);
    if (near)
        dcp_error_hint(err, "did you mean '--%s %s'?", opt->name, near);
    return DCP_E_USAGE;
}

static int bad_number(const struct dcp_opt *opt, const char *value, struct dcp_error *err)
{
    if (opt->min == 0 && opt->max == 0)
        return dcp_error_set(err, DCP_E_USAGE, "'--%s' takes a whole number, not '%s'",
                             opt->name, value);
    if (opt->max == INT64_MAX)
        return dcp_error_set(err, DCP_E_USAGE,
                             "'--%s' takes a whole number, %lld or more, not '%s'",
                             opt->name, (long long)opt->min, value);
    return dcp_error_set(err, DCP_E_USAGE,
                         "'--%s' takes a whole number from %lld to %lld, not '%s'",
                         opt->name, (long long)opt->min, (long long)opt->max, value);
}

static bool in_range(const struct dcp_opt *opt, int64_t v)
{
    return (opt->min == 0 && opt->max == 0) || (v >= opt->min && v <= opt->max);
}

static int check_least(const struct dcp_opt *opt, uint64_t v, const char *value,
                       struct dcp_error *err)
{
    char least[DCP_SIZE_CAP];
    if (v >= (uint64_t)opt->min)
        return DCP_OK;
    return dcp_error_set(err, DCP_E_USAGE, "'--%s' must be %s or more, not '%s'",
                         opt->name, dcp_size_format(least, (uint64_t)opt->min), value);
}

/* Puts a value (NULL for FLAG and COUNT) into its field. */
static int store(struct found to, const char *value, struct dcp_error *err)
{
    const struct dcp_opt *opt = to.opt;
    switch (opt->kind) {
    case DCP_OPT_FLAG:
        *(bool *)to.field = true;
        return DCP_OK;
    case DCP_OPT_COUNT:
        *(int *)to.field += 1;
        return DCP_OK;
    case DCP_OPT_TEXT:
        *(const char **)to.field = value;
        return DCP_OK;
    case DCP_OPT_LIST:
        return dcp_opt_list_add(to.field, value, err);
    case DCP_OPT_INT: {
        int64_t v;
        if (!dcp_str_parse_i64(value, &v) || !in_range(opt, v))
            return bad_number(opt, value, err);
        *(int64_t *)to.field = v;
        return DCP_OK;
    }
    case DCP_OPT_REAL:
        if (dcp_str_parse_f64(value, to.field))
            return DCP_OK;
        return dcp_error_set(err, DCP_E_USAGE, "'--%s' takes a number, not '%s'",
                             opt->name, value);
    case DCP_OPT_SIZE:
        if (dcp_str_parse_size(value, to.field))
            return check_least(opt, *(uint64_t *)to.field, value, err);
        return dcp_error_set(err, DCP_E_USAGE,
                             "'--%s' takes a size such as 256M or 1.5GiB, not '%s'",
                             opt->name, value);
    case DCP_OPT_CHOICE: {
        int i = dcp_opt_choice(opt->arg, value);
        if (i < 0)
            return bad_choice(opt, value, err);
        *(int *)to.field = i;
        return DCP_OK;
    }
    }
    return DCP_OK;
}

/* The words that are still to be read. */
struct words {
    char *const *argv;
    int n, at;
};

/* The value of an option that has none attached: the next word. */
static int next_value(struct words *words, const struct dcp_opt *opt, const char **out,
                      struct dcp_error *err)
{
    if (words->at >= words->n)
        return dcp_error_set(err, DCP_E_USAGE, "'--%s' needs a value: --%s %s", opt->name,
                             opt->name, opt->arg);
    *out = words->argv[words->at++];
    return DCP_OK;
}

/* "--name", "--name=value", "--name" "value"; text is behind the dashes. */
static int read_long(const struct dcp_opt_table *tables, size_t n_tables,
                     const char *text, struct words *words, struct dcp_error *err)
{
    size_t n = strcspn(text, "=");
    const char *value = text[n] ? text + n + 1 : NULL;
    struct found to = find(tables, n_tables, text, n, 0);
    if (!to.opt)
        return unknown(tables, n_tables, text, n, err);
    if (value && !takes_value(to.opt))
        return dcp_error_set(err, DCP_E_USAGE, "'--%s' takes no value", to.opt->name);
    if (!value && takes_value(to.opt))
        DCP_TRY(next_value(words, to.opt, &value, err));
    return store(to, value, err);
}

/* "-nq", "-t*.weight", "-t" "*.weight"; text is behind the dash. */
static int read_letters(const struct dcp_opt_table *tables, size_t n_tables,
                        const char *text, struct words *words, struct dcp_error *err)
{
    for (; *text; text++) {
        struct found to = find(tables, n_tables, NULL, 0, *text);
        if (!to.opt)
            return dcp_error_set(err, DCP_E_USAGE, "unknown option '-%c'", *text);
        const char *value = NULL;
        if (!takes_value(to.opt)) {
            DCP_TRY(store(to, NULL, err));
            continue;
        }
        if (text[1])
            value = text + 1;
        else
            DCP_TRY(next_value(words, to.opt, &value, err));
        return store(to, value, err);
    }
    return DCP_OK;
}

int dcp_opt_parse(const struct dcp_opt_table *tables, size_t n_tables, int argc,
                  char *const *argv, struct dcp_opt_list *out_operands,
                  struct dcp_error *err)
{
    struct words words = { .argv = argv, .n = argc };
    bool ended = false; /* by "--" */
    int rc = DCP_OK;
    while (rc == DCP_OK && words.at < words.n) {
        const char *word = argv[words.at++];
        if (ended || word[0] != '-' || !word[1])
            rc = dcp_opt_list_add(out_operands, word, err);
        else if (strcmp(word, "--") == 0)
            ended = true;
        else if (word[1] == '-')
            rc = read_long(tables, n_tables, word + 2, &words, err);
        else
            rc = read_letters(tables, n_tables, word + 1, &words, err);
    }
    return rc;
}
