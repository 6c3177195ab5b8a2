#include "settings.h"

#include "base/fs.h"
#include "base/mem.h"
#include "base/str.h"
#include <stdio.h>
#include <string.h>

#define MAX_RULES_BYTES ((size_t)1 << 20)

enum { MOST_PARTS = 65536 };

static int check_layout(const char *layout, struct dcp_error *err)
{
    const char *const *names = dcp_layout_names();
    for (size_t i = 0; names[i]; i++)
        if (strcmp(names[i], layout) == 0)
            return DCP_OK;
    char all[256] = "";
    for (size_t i = 0, used = 0; names[i] && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "",
                                 names[i]);
    dcp_error_set(err, DCP_E_USAGE, "there is no layout '%s'; there are %s", layout, all);
    const char *near = dcp_str_nearest(layout, names);
    if (near)
        dcp_error_hint(err, "did you mean '--layout %s'?", near);
    return DCP_E_USAGE;
}

static int check_format(const char *name, struct dcp_error *err)
{
    const struct dcp_format *const *formats = dcp_formats();
    const struct dcp_format *format = dcp_format_find(name);
    const char *names[33];
    size_t n = 0;
    if (format && (format->flags & DCP_FORMAT_WRITES))
        return DCP_OK;
    for (size_t i = 0; formats[i] && n < 32; i++)
        if (formats[i]->flags & DCP_FORMAT_WRITES)
            names[n++] = formats[i]->name;
    names[n] = NULL;
    if (format)
        dcp_error_set(err, DCP_E_UNSUPPORTED, "the format '%s' can be read, not written",
                      name);
    else
        dcp_error_set(err, DCP_E_USAGE, "there is no format '%s'", name);
    const char *near = dcp_str_nearest(name, names);
    if (near)
        dcp_error_hint(err, "did you mean '--to %s'?", near);
    else
        dcp_error_hint(err, "'dcp-reshard formats' lists them");
    return format ? DCP_E_UNSUPPORTED : DCP_E_USAGE;
}

static int check_dtype(const char *text, int *out, struct dcp_error *err)
{
    *out = dcp_dtype_parse(text);
    if (*out < 0 || !dcp_dtype_is_float((enum dcp_dtype) * out)) {
        dcp_error_set(err, DCP_E_USAGE, "'--dtype' takes a floating type, not '%s'",
                      text);
        dcp_error_hint(err, "bf16, fp16 and fp32 are the usual ones");
        return DCP_E_USAGE;
    }
    return DCP_OK;
}

/* --world, or --dp × --tp × --pp; both when they agree. */
static int check_mesh(const struct reshard_settings *s, struct dcp_reshard_options *out,
                      struct dcp_error *err)
{
    int64_t dp = s->dp ? s->dp : 1, tp = s->tp ? s->tp : 1, pp = s->pp ? s->pp : 1;
    bool meshed = s->dp || s->tp || s->pp;
    int64_t ranks = dp * tp * pp; /* each is at most 65536 */
    if (tp > 1 || pp > 1)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "tensor and pipeline parallel targets (--tp, --pp) are not "
                             "in this version; --dp and --world are");
    if (meshed && s->world_size && s->world_size != ranks)
        return dcp_error_set(err, DCP_E_USAGE,
                             "--world %lld is not --dp × --tp × --pp, which is %lld",
                             (long long)s->world_size, (long long)ranks);
    out->world_size = (int)(meshed ? ranks : s->world_size);
    if (meshed)
        out->mesh = (struct dcp_mesh){ (int)dp, (int)tp, (int)pp };
    return DCP_OK;
}

/* "3/16", from 1. */
static int check_part(const struct reshard_settings *s, struct dcp_reshard_options *out,
                      struct dcp_error *err)
{
    const char *slash = s->part ? strchr(s->part, '/') : NULL;
    DCP_CLEANUP_FREE char *first =
        slash ? strndup(s->part, (size_t)(slash - s->part)) : NULL;
    int64_t part = 0, n = 0;
    out->finish = s->finish;
    if (!s->part)
        return DCP_OK;
    if (slash && !first)
        return dcp_error_memory(err, "a part");
    if (!slash || !dcp_str_parse_i64(first, &part) || !dcp_str_parse_i64(slash + 1, &n) ||
        part < 1 || n < part || n > MOST_PARTS) {
        dcp_error_set(err, DCP_E_USAGE,
                      "'--part' takes a part and how many there are, as 3/16, not '%s'",
                      s->part);
        dcp_error_hint(err, "parts are counted from 1, and there are %d at most",
                       MOST_PARTS);
        return DCP_E_USAGE;
    }
    out->part = (int)part;
    out->n_parts = (int)n;
    if (!s->finish)
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "--part and --finish are two commands");
    dcp_error_hint(err, "run --finish alone when all parts have ended");
    return DCP_E_USAGE;
}

/* A preset by its name, or a file of rules. */
static int read_rename(const char *given, struct dcp_reshard_options *out,
                       struct dcp_error *err)
{
    const struct dcp_name_preset *const *presets = dcp_name_presets();
    DCP_CLEANUP_FREE void *text = NULL;
    char preset[64] = "";
    size_t n;
    for (size_t i = 0; presets[i]; i++)
        if (strcmp(presets[i]->name, given) == 0)
            snprintf(preset, sizeof preset, "preset %s", given);
    if (!preset[0])
        DCP_TRY(dcp_fs_read_file(given, MAX_RULES_BYTES, &text, &n, err));
    return dcp_rename_new(preset[0] ? preset : text, given, &out->rename, err);
}

/* How a distributed checkpoint spells its keys. */
static int check_spelling(const struct reshard_settings *s,
                          struct dcp_target_options *out, struct dcp_error *err)
{
    static const char *const names[] = { NULL, "nested", "flat", "torchtitan", "kept" };
    out->spelling = names[s->spelling];
    out->prefix = s->prefix;
    if ((!out->spelling && !out->prefix) ||
        (s->to && dcp_format_find(s->to) == dcp_format_find("torch-dist")))
        return DCP_OK;
    dcp_error_set(err, DCP_E_USAGE, "'--%s' is for keys of a target of format torch-dist",
                  out->spelling ? "spelling" : "prefix");
    dcp_error_hint(err, "add --to torch-dist; other formats have --rename");
    return DCP_E_USAGE;
}

int reshard_settings_check(const struct reshard_settings *s,
                           struct dcp_reshard_options *out, struct dcp_error *err)
{
    int rc = DCP_OK;
    *out = (struct dcp_reshard_options){
        .layout = s->layout,
        .format = s->to,
        .dtype = -1,
        .select = s->select.items,
        .only = (enum dcp_only)s->only,
        .weights = (enum dcp_weights)s->weights,
        .codec = (enum dcp_codec)s->codec,
        .parity = (int)s->parity,
        .memory_bytes = s->memory_bytes,
        .no_verify = s->no_verify,
        .force = s->force,
        .lossy = s->lossy,
        .trust = s->trust.items,
        .keep_unsafe = s->keep_unsafe,
        .reflink = s->reflink,
        .target = { .max_shard_size_bytes = s->max_shard_bytes, .untie = s->untie },
    };
    rc = check_mesh(s, out, err);
    if (rc == DCP_OK && s->layout)
        rc = check_layout(s->layout, err);
    if (rc == DCP_OK && s->to)
        rc = check_format(s->to, err);
    if (rc == DCP_OK && s->dtype)
        rc = check_dtype(s->dtype, &out->dtype, err);
    if (rc == DCP_OK)
        rc = check_spelling(s, &out->target, err);
    if (rc == DCP_OK)
        rc = check_part(s, out, err);
    if (rc == DCP_OK && s->rename)
        rc = read_rename(s->rename, out, err);
    return rc;
}
