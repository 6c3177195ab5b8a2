#include "rename.h"
#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/training.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 4096, N_GROUPS = 10 };

enum kind { STRIP, PREFIX, SUBSTITUTE, PRESET };

struct rule {
    enum kind kind;
    char *text; /* of strip, prefix; what a match becomes */
    regex_t regex;
    bool has_regex, every;
    const struct dcp_name_preset *preset;
};

struct dcp_rename_rules {
    struct rule *rules;
    size_t n, cap;
};

void dcp_rename_free(struct dcp_rename_rules *rename)
{
    if (!rename)
        return;
    for (size_t i = 0; i < rename->n; i++) {
        free(rename->rules[i].text);
        if (rename->rules[i].has_regex)
            regfree(&rename->rules[i].regex);
    }
    free(rename->rules);
    free(rename);
}

/* -- reading rules ------------------------------------------------------------------- */

/* Up to the next unescaped delimiter; "\/" becomes "/", other escapes stay. Moves *at
 * behind the delimiter. NULL: there is none. */
static char *take_part(const char **at, char delimiter)
{
    char *part = strdup(*at);
    size_t n = 0;
    const char *p = *at;

    for (; part && *p && *p != delimiter; p++) {
        if (*p == '\\' && p[1] == delimiter)
            p++;
        else if (*p == '\\' && p[1])
            part[n++] = *p++;
        part[n++] = *p;
    }
    if (!part || !*p) {
        free(part);
        return NULL;
    }
    part[n] = '\0';
    *at = p + 1;
    return part;
}

static int parse_substitute(const char *line, struct rule *rule, char *why, size_t cap)
{
    const char *at = line + 2;
    DCP_CLEANUP_FREE char *regex = take_part(&at, line[1]);

    rule->kind = SUBSTITUTE;
    rule->text = regex ? take_part(&at, line[1]) : NULL;
    if (!rule->text || (*at && strcmp(at, "g") != 0)) {
        snprintf(why, cap, "is not s/REGEX/TEXT/");
        return -1;
    }
    rule->every = *at == 'g';
    int code = regcomp(&rule->regex, regex, REG_EXTENDED);
    if (code) {
        char message[80];
        regerror(code, &rule->regex, message, sizeof message);
        snprintf(why, cap, "has a bad regular expression: %s", message);
        return -1;
    }
    rule->has_regex = true;
    return 0;
}

static int parse_preset(const char *name, struct rule *rule, char *why, size_t cap)
{
    const struct dcp_name_preset *const *presets = dcp_name_presets();

    rule->kind = PRESET;
    for (size_t i = 0; presets[i]; i++)
        if (!strcmp(presets[i]->name, name))
            rule->preset = presets[i];
    if (rule->preset)
        return 0;
    size_t n = (size_t)snprintf(why, cap, "names no preset; there are");
    for (size_t i = 0; presets[i] && n < cap; i++)
        n += (size_t)snprintf(why + n, cap - n, " %s", presets[i]->name);
    return -1;
}

static int parse_line(const char *line, struct rule *rule, char *why, size_t cap)
{
    size_t word = strcspn(line, " \t");
    const char *rest = line + word + strspn(line + word, " \t");

    if (line[0] == 's' && line[1] && !strchr(" \ttrp\\", line[1]))
        return parse_substitute(line, rule, why, cap);
    if (*rest && dcp_str_starts(line, "preset") && word == 6)
        return parse_preset(rest, rule, why, cap);
    if (*rest && ((dcp_str_starts(line, "strip") && word == 5) ||
                  (dcp_str_starts(line, "prefix") && word == 6))) {
        rule->kind = line[0] == 's' ? STRIP : PREFIX;
        rule->text = strdup(rest);
        return 0;
    }
    snprintf(why, cap,
             "is no rule; there are: strip TEXT, prefix TEXT, s/REGEX/TEXT/, "
             "preset NAME");
    return -1;
}

static int add_line(struct dcp_rename_rules *rename, const char *line, int number,
                    const char *what, struct dcp_error *err)
{
    char why[256];
    struct rule *rules =
        dcp_mem_grow(rename->rules, &rename->cap, rename->n + 1, sizeof *rules);

    if (!rules)
        return dcp_error_memory(err, "rules for names");
    rename->rules = rules;
    rules[rename->n] = (struct rule){ .kind = STRIP };
    if (parse_line(line, &rules[rename->n++], why, sizeof why))
        return dcp_error_set(err, DCP_E_USAGE, "%s, line %d: '%s' %s", what, number,
                             DCP_SHOWN(line), why);
    const struct rule *rule = &rules[rename->n - 1];
    return rule->text || rule->preset ? DCP_OK : dcp_error_memory(err, "rules for names");
}

int dcp_rename_new(const char *text, const char *what,
                   struct dcp_rename_rules **out_rename, struct dcp_error *err)
{
    struct dcp_rename_rules *rename = calloc(1, sizeof *rename);
    DCP_CLEANUP_FREE char *copy = strdup(text);
    int number = 0,
        rc = rename && copy ? DCP_OK : dcp_error_memory(err, "rules for names");
    char *rest = copy, *line;

    *out_rename = NULL;
    while (!rc && (line = strsep(&rest, "\n"))) {
        number++;
        line += strspn(line, " \t");
        size_t n = strlen(line);
        while (n > 0 && line[n - 1] == '\r')
            line[--n] = '\0';
        if (*line && *line != '#')
            rc = add_line(rename, line, number, what, err);
    }
    if (rc) {
        dcp_rename_free(rename);
        return rc;
    }
    *out_rename = rename;
    return DCP_OK;
}

/* -- applying them ------------------------------------------------------------------- */

/* The text of a rule with its groups filled in. */
static void add_match(struct dcp_buf *buf, const char *text, const char *at,
                      const regmatch_t groups[N_GROUPS])
{
    for (; *text; text++) {
        if (*text != '\\' || !text[1]) {
            dcp_buf_add_u8(buf, (uint8_t)*text);
        } else if (*++text >= '0' && *text <= '9') {
            const regmatch_t *group = &groups[*text - '0'];
            if (group->rm_so >= 0)
                dcp_buf_add(buf, at + group->rm_so,
                            (size_t)(group->rm_eo - group->rm_so));
        } else {
            dcp_buf_add_u8(buf, (uint8_t)*text);
        }
    }
}

static void substitute(const struct rule *rule, const char *name, struct dcp_buf *buf)
{
    regmatch_t groups[N_GROUPS];
    const char *at = name;

    while (!regexec(&rule->regex, at, N_GROUPS, groups, at == name ? 0 : REG_NOTBOL)) {
        dcp_buf_add(buf, at, (size_t)groups[0].rm_so);
        add_match(buf, rule->text, at, groups);
        at += groups[0].rm_eo;
        if (groups[0].rm_so == groups[0].rm_eo) { /* an empty match: go on behind it */
            if (*at)
                dcp_buf_add_u8(buf, (uint8_t)*at);
            at += *at != '\0';
        }
        if (!rule->every || !*at)
            break;
    }
    dcp_buf_add_text(buf, at);
}

static void apply(const struct rule *rule, const char *name, struct dcp_buf *buf)
{
    char out[MAX_NAME];

    switch (rule->kind) {
    case STRIP:
        dcp_buf_add_text(buf, dcp_str_starts(name, rule->text) ? name + strlen(rule->text)
                                                               : name);
        break;
    case PREFIX:
        dcp_buf_add_text(buf, rule->text);
        dcp_buf_add_text(buf, name);
        break;
    case SUBSTITUTE:
        substitute(rule, name, buf);
        break;
    case PRESET:
        dcp_buf_add_text(buf, rule->preset->rename(name, out, sizeof out) ? out : name);
        break;
    }
    dcp_buf_add_u8(buf, 0);
}

int dcp_rename_apply(const struct dcp_rename_rules *rename, const char *name,
                     char **out_name, struct dcp_error *err)
{
    char *now = strdup(name), shown[160];

    *out_name = NULL;
    for (size_t i = 0; now && i < rename->n; i++) {
        DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
        apply(&rename->rules[i], now, &buf);
        free(now);
        now = buf.failed ? NULL : strdup((const char *)buf.data);
    }
    if (!now)
        return dcp_error_memory(err, "a name");
    if (!now[0]) {
        free(now);
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "the rules leave nothing of the name '%s'",
                             dcp_str_escape(shown, sizeof shown, name));
    }
    *out_name = now;
    return DCP_OK;
}

/* -- tensors and objects ------------------------------------------------------------- */

/* The new name in the target's memory. */
static int renamed(const struct dcp_rename_rules *rename, struct dcp_catalog *target,
                   const char *name, const char **out, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *now = NULL;
    int rc = dcp_rename_apply(rename, name, &now, err);

    if (!rc && !(*out = dcp_catalog_text(target, now)))
        rc = dcp_error_memory(err, "a name");
    return rc;
}

int dcp_rename_tensor(const struct dcp_rename_rules *rename, struct dcp_catalog *target,
                      struct dcp_tensor *tensor, struct dcp_error *err)
{
    const char *usual = dcp_tensor_default_name(target, tensor->role, tensor->param);
    bool named_after = usual && !strcmp(usual, tensor->name);

    DCP_TRY(usual ? renamed(rename, target, tensor->param, &tensor->param, err)
                  : dcp_error_memory(err, "a name"));
    if (!named_after)
        return renamed(rename, target, tensor->name, &tensor->name, err);
    tensor->name = dcp_tensor_default_name(target, tensor->role, tensor->param);
    return tensor->name ? DCP_OK : dcp_error_memory(err, "a name");
}

static int rename_texts(const struct dcp_rename_rules *rename, json_t *names,
                        struct dcp_error *err)
{
    json_t *name;
    size_t i;

    json_array_foreach(names, i, name)
    {
        DCP_CLEANUP_FREE char *now = NULL;
        if (!json_is_string(name))
            continue;
        DCP_TRY(dcp_rename_apply(rename, json_string_value(name), &now, err));
        if (json_array_set_new(names, i, json_string(now)))
            return dcp_error_memory(err, "an object");
    }
    return DCP_OK;
}

static int rename_params(const struct dcp_rename_rules *rename, json_t *groups,
                         struct dcp_error *err)
{
    json_t *group;
    size_t g;

    json_array_foreach(groups, g, group)
    {
        DCP_TRY(rename_texts(rename, json_object_get(group, "params"), err));
        DCP_TRY(rename_texts(rename, json_object_get(group, "param_names"), err));
    }
    return DCP_OK;
}

int dcp_rename_object(const struct dcp_rename_rules *rename, struct dcp_catalog *target,
                      const struct dcp_object *object, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *value = NULL;
    struct dcp_object now = *object;

    if (strcmp(object->name, DCP_TRAINING_OPTIMIZER) != 0 ||
        object->kind != DCP_OBJECT_JSON)
        return dcp_catalog_add_object(target, object, err);
    int rc = dcp_json_parse(object->data, object->size_bytes, object->name, &value, err);
    if (!rc)
        rc = rename_params(rename, json_object_get(value, "param_groups"), err);
    DCP_CLEANUP_FREE char *text = rc ? NULL : dcp_json_text(value, 0);
    if (!text)
        return rc ? rc : dcp_error_memory(err, "an object");
    now.data = text;
    now.size_bytes = strlen(text);
    return dcp_catalog_add_object(target, &now, err);
}
