#include "objects.h"
#include "base/mem.h"
#include "base/str.h"
#include <dcp/globals.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN = 160 };

/* Whether a blank-separated list, which may be NULL, has the name. */
static bool lists(const char *names, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = names; at && *at; at += strcspn(at, " ")) {
        at += strspn(at, " ");
        if (strcspn(at, " ") == n && !memcmp(at, name, n))
            return true;
    }
    return false;
}

bool dcp_object_is_spelling(const char *name)
{
    const struct dcp_format *const *format = dcp_formats();

    while (*format && !lists((*format)->spelling, name))
        format++;
    return *format != NULL;
}

const char *dcp_object_file(const char *name)
{
    const char *file = NULL;

    for (const struct dcp_format *const *format = dcp_formats(); *format; format++)
        if ((*format)->beside && dcp_str_starts(name, (*format)->beside))
            file = name + strlen((*format)->beside);
    return file && file[0] && !strchr(file, '/') ? file : NULL;
}

/* The first name that is not known safe, preferably a dangerous one. */
struct found {
    const struct dcp_reshard_options *options;
    enum dcp_global_kind kind;
    char name[SHOWN], where[SHOWN];
};

/* Of dangerous names nobody can say that they are harmless. */
static bool is_trusted(const struct dcp_reshard_options *options,
                       const struct dcp_global *global)
{
    for (const char *const *glob = options->trust; glob && *glob; glob++)
        if (global->kind == DCP_GLOBAL_UNKNOWN && dcp_str_glob(*glob, global->name))
            return true;
    return false;
}

static int take(void *self, const struct dcp_global *global, struct dcp_error *err)
{
    struct found *found = self;

    (void)err;
    if (global->kind <= found->kind || is_trusted(found->options, global))
        return DCP_OK;
    found->kind = global->kind;
    dcp_str_escape(found->name, sizeof found->name, global->name);
    dcp_str_escape(found->where, sizeof found->where, global->where);
    return DCP_OK;
}

/* Where it stands, for people: the object, or a place in the whole tree. */
static void name_place(const struct dcp_object *object, const struct found *found,
                       char *out, size_t cap)
{
    bool whole = dcp_object_is_spelling(object->name);
    const char *name = DCP_SHOWN(object->name);

    if (whole)
        snprintf(out, cap, "%s", found->where[0] ? found->where : "the whole file");
    else
        snprintf(out, cap, "%s%s%s", name, found->where[0] ? "." : "", found->where);
}

static int refuse(const char *place, const struct found *found, struct dcp_error *err)
{
    bool dangerous = found->kind == DCP_GLOBAL_DANGEROUS;

    dcp_error_set(err, DCP_E_MISMATCH, "the object at '%s' names '%s', %s", place,
                  found->name,
                  dangerous ? "which can run any code when the target is loaded"
                            : "a class that is not known to be safe to load");
    if (dangerous)
        dcp_error_hint(err, "--lossy leaves it out, --keep-unsafe-objects keeps it; "
                            "'dcp-inspect scan' lists all that is named");
    else
        dcp_error_hint(err,
                       "--trust-global '%s' keeps it, if that class is yours; --lossy "
                       "leaves it out; --keep-unsafe-objects keeps whatever there is",
                       found->name);
    return DCP_E_MISMATCH;
}

/* An archive of torch.save, which only some formats can put where it is read again. */
static bool is_lost_archive(const struct dcp_object *object,
                            const struct dcp_format *format)
{
    return object->kind == DCP_OBJECT_BYTES && object->size_bytes > 4 &&
           !memcmp(object->data, "PK\3\4", 4) && !(format->flags & DCP_FORMAT_ARCHIVES);
}

static int refuse_archive(const struct dcp_format *format, const char *place,
                          struct dcp_error *err)
{
    dcp_error_set(err, DCP_E_MISMATCH,
                  "a target of format %s cannot hold: the object '%s', which is an "
                  "archive of torch.save",
                  format->name, place);
    dcp_error_hint(err, "--lossy leaves out whatever does not fit");
    return DCP_E_MISMATCH;
}

/* Whether a format writes what an object says; a tree means nothing to those that have a
 * nesting of their own. */
static bool is_written(const struct dcp_object *object, const struct dcp_format *format)
{
    return !dcp_object_is_spelling(object->name) ||
           (format->flags & (DCP_FORMAT_ARCHIVES | DCP_FORMAT_PLAIN));
}

struct sift {
    const struct dcp_format *format;
    const struct dcp_reshard_options *options;
    struct dcp_catalog *target;
    struct dcp_reshard_plan *facts;
};

/* Whether an object goes along: by what it names, and what was asked for. */
static int check(const struct sift *s, const struct dcp_object *object, bool *out_take,
                 struct dcp_error *err)
{
    const struct dcp_reshard_options *options = s->options;
    struct found found = { .options = options, .kind = DCP_GLOBAL_SAFE };
    const struct dcp_global_visit visit = { .take = take, .self = &found };
    bool lost = is_lost_archive(object, s->format);
    bool gives_up = options->lossy || options->only == DCP_ONLY_MODEL;
    char place[2 * SHOWN + 2], text[3 * SHOWN + 8];
    int rc =
        is_written(object, s->format) ? dcp_object_globals(object, &visit, err) : DCP_OK;

    bool safe = found.kind == DCP_GLOBAL_SAFE;
    *out_take = !lost && (safe || options->keep_unsafe);
    if (rc || (safe && !lost))
        return rc;
    name_place(object, &found, place, sizeof place);
    if (!*out_take && !gives_up)
        return lost ? refuse_archive(s->format, place, err) : refuse(place, &found, err);
    *(*out_take ? &s->facts->n_unsafe_kept : &s->facts->n_objects_left) += 1;
    if (s->facts->first_object)
        return DCP_OK;
    snprintf(text, sizeof text, "%s: %s", place, lost ? "an archive" : found.name);
    s->facts->first_object = dcp_catalog_text(s->target, text);
    return s->facts->first_object ? DCP_OK : dcp_error_memory(err, "a target");
}

int dcp_objects_sift(const struct dcp_format *format,
                     const struct dcp_reshard_options *options,
                     struct dcp_catalog *target, struct dcp_reshard_plan *facts,
                     struct dcp_error *err)
{
    const struct sift sift = { format, options, target, facts };
    size_t n = 0;

    for (size_t o = 0; o < target->n_objects; o++) {
        bool goes;
        DCP_TRY(check(&sift, &target->objects[o], &goes, err));
        if (goes)
            target->objects[n++] = target->objects[o];
    }
    target->n_objects = n;
    return DCP_OK;
}
