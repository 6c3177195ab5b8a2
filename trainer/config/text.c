/* text: the resolved configuration as JSON, by the table of keys. */
#include "draft.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void add_real(struct dcp_buf *out, double value)
{
    char text[DCP_STR_F64_CAP];
    dcp_buf_add_text(out, dcp_str_format_f64(text, value));
}

static void add_list(struct dcp_buf *out, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dcp_buf_add_text(out, i ? ", " : "[");
        if (isnan(values[i]))
            dcp_buf_add_text(out, "null");
        else
            add_real(out, values[i]);
    }
    dcp_buf_add_text(out, "]");
}

static void add_string(struct dcp_buf *out, const char *text)
{
    DCP_CLEANUP_JSON json_t *string = json_string(text);
    DCP_CLEANUP_FREE char *quoted = string ? dcp_json_text(string, 0) : NULL;
    if (quoted)
        dcp_buf_add_text(out, quoted);
    else
        out->failed = true;
}

static void add_layers(struct dcp_buf *out, int layers)
{
    if (layers > LAYERS_ALL)
        dcp_buf_add_fmt(out, "%d", layers);
    else
        add_string(out, layers == LAYERS_ALL         ? "full"
                        : layers == LAYERS_SELECTIVE ? "selective"
                                                     : "none");
}

static void add_value(struct dcp_buf *out, const struct settings_draft *draft,
                      const struct settings_key *key)
{
    const void *at = (const char *)draft + key->at;
    switch (key->kind) {
    case KEY_FLAG:
        dcp_buf_add_text(out, *(const bool *)at ? "true" : "false");
        break;
    case KEY_SWITCH:
        dcp_buf_add_text(out, *(const int *)at ? "true" : "false");
        break;
    case KEY_INT:
        dcp_buf_add_fmt(out, "%d", *(const int *)at);
        break;
    case KEY_LONG:
        dcp_buf_add_fmt(out, "%" PRId64, *(const int64_t *)at);
        break;
    case KEY_SEED:
    case KEY_SIZE:
        dcp_buf_add_fmt(out, "%" PRIu64, *(const uint64_t *)at);
        break;
    case KEY_REAL:
        add_real(out, *(const double *)at);
        break;
    case KEY_PAIR:
        add_list(out, at, 2);
        break;
    case KEY_TRIPLE:
        add_list(out, at, 3);
        break;
    case KEY_TEXT:
        add_string(out, *(char *const *)at);
        break;
    case KEY_CHOICE:
        add_string(out, key->choices[*(const int *)at]);
        break;
    case KEY_DTYPE:
        add_string(out, dcp_dtype_torch_name((enum dcp_dtype) * (const int *)at));
        break;
    case KEY_LAYERS:
        add_layers(out, *(const int *)at);
        break;
    case KEY_SECTION:
    case KEY_ANY:
        break;
    }
}

bool settings_has_value(const struct settings_draft *draft,
                        const struct settings_key *key)
{
    const void *at = (const char *)draft + key->at;
    if (key->use != KEY_USED || key->alias || key->kind == KEY_ANY)
        return false;
    if (settings_is_others(draft, key))
        return false;
    if (key->kind == KEY_TEXT)
        return *(char *const *)at != NULL;
    if (key->kind == KEY_REAL && *(const double *)at < key->min)
        return false;
    if (key->kind == KEY_DTYPE || key->kind == KEY_SWITCH || key->kind == KEY_CHOICE)
        return *(const int *)at >= 0;
    return key->kind != KEY_LONG || key->fallback >= 0 || *(const int64_t *)at >= 0;
}

/* Adds the object of a section; false, and nothing added, when it would be empty. */
static bool add_section(struct dcp_buf *out, const struct settings_draft *draft,
                        const struct settings_key *keys, size_t depth)
{
    size_t begin = out->size_bytes, n = 0;
    dcp_buf_add_text(out, "{");
    for (const struct settings_key *key = keys; key->name; key++) {
        if (!settings_has_value(draft, key))
            continue;
        size_t before = out->size_bytes;
        dcp_buf_add_text(out, n ? ",\n" : "\n");
        dcp_buf_add_fill(out, ' ', 2 * depth + 2);
        dcp_buf_add_fmt(out, "\"%s\": ", key->name);
        if (key->kind != KEY_SECTION) {
            add_value(out, draft, key);
            n++;
        } else if (add_section(out, draft, key->keys, depth + 1)) {
            n++;
        } else {
            out->size_bytes = before;
        }
    }
    if (!n) {
        out->size_bytes = begin;
        return false;
    }
    dcp_buf_add_text(out, "\n");
    dcp_buf_add_fill(out, ' ', 2 * depth);
    dcp_buf_add_text(out, "}");
    return true;
}

char *settings_text(const struct settings_draft *draft)
{
    struct dcp_buf out = { 0 };
    add_section(&out, draft, settings_root, 0);
    if (dcp_buf_check(&out, NULL) != DCP_OK)
        dcp_buf_fini(&out);
    return (char *)out.data;
}

void settings_show(const struct settings_draft *draft, const struct settings_key *key,
                   char *out, size_t cap)
{
    DCP_CLEANUP_BUF struct dcp_buf text = { 0 };
    if (settings_has_value(draft, key))
        add_value(&text, draft, key);
    else
        dcp_buf_add_text(&text, "nothing");
    dcp_str_escape(out, cap, text.data ? (char *)text.data : "");
}
