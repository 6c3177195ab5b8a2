#include "contents.h"
#include "base/mem.h"
#include "base/str.h"
#include "choose.h"
#include "core/catalog/objects.h"
#include "core/catalog/rename.h"
#include "layout.h"
#include <dcp/training.h>
#include <string.h>

/* Whether a blank-separated list has a word. */
static bool lists(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = words; *p; p += strcspn(p, " ")) {
        p += strspn(p, " ");
        if (strcspn(p, " ") == n && !memcmp(p, word, n))
            return true;
    }
    return false;
}

/* What was asked for; else the source's layout, where the format takes it; else the
 * format's default. */
static int choose_layout(const struct dcp_catalog *src, const struct dcp_format *format,
                         const struct dcp_reshard_options *options,
                         struct dcp_catalog *target, struct dcp_error *err)
{
    const char *known = format->layouts;
    const char *layout = options->layout ? options->layout : src->layout;
    char first[32] = "zero3";

    if (options->layout && known && !lists(known, layout)) {
        dcp_error_set(err, DCP_E_MISMATCH, "a target of format %s cannot hold: layout %s",
                      format->name, layout);
        dcp_error_hint(err, "its layouts are: %s", known);
        return DCP_E_MISMATCH;
    }
    if (known) {
        size_t n = strcspn(known, " ");
        memcpy(first, known, n < sizeof first ? n : sizeof first - 1);
        first[n < sizeof first ? n : sizeof first - 1] = '\0';
    }
    if (!layout[0] || (known && !lists(known, layout)))
        layout = first;
    target->layout = dcp_catalog_text(target, layout);
    return target->layout ? DCP_OK : dcp_error_memory(err, "a target");
}

/* What the model computes with: as asked for, as the source says, or as its weights are.
 */
static int weights_dtype(const struct dcp_catalog *src,
                         const struct dcp_reshard_options *options)
{
    if (options->dtype >= 0)
        return options->dtype;
    if (src->weights_dtype >= 0)
        return src->weights_dtype;
    for (size_t t = 0; t < src->n_tensors; t++)
        if (src->tensors[t].role == DCP_ROLE_MODEL &&
            dcp_dtype_is_float(src->tensors[t].dtype))
            return (int)src->tensors[t].dtype;
    return -1;
}

/* The shape of the target: format, layout, world size; no tensors yet. */
static int begin(const struct dcp_catalog *src, const struct dcp_format *format,
                 const struct dcp_reshard_options *options, struct dcp_catalog *target,
                 struct dcp_error *err)
{
    target->step = src->step;
    target->diverged = src->diverged;
    target->format = format->name;
    target->weights_dtype = weights_dtype(src, options);
    if (options->codec != DCP_CODEC_NONE && !(format->flags & DCP_FORMAT_CODECS))
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "a target of format %s cannot be compressed", format->name);
    if (format->flags & DCP_FORMAT_SHARDED) {
        target->world_size = options->world_size ? options->world_size : src->world_size;
        DCP_TRY(choose_layout(src, format, options, target, err));
        return dcp_layout_check(target->layout, target->world_size, err);
    }
    if (options->world_size > 1)
        return dcp_error_set(
            err, DCP_E_MISMATCH,
            "a target of format %s has no ranks: --world %d does not apply", format->name,
            options->world_size);
    target->world_size = 1;
    return DCP_OK;
}

static bool keeps_names(const struct dcp_catalog *src, const struct dcp_catalog *target,
                        const int *src_tensor)
{
    for (size_t t = 0; t < target->n_tensors; t++) {
        const struct dcp_tensor *from = &src->tensors[src_tensor[t]];
        if (from->role == target->tensors[t].role &&
            strcmp(from->name, target->tensors[t].name) != 0)
            return false;
    }
    return true;
}

/* A source whose optimizer keeps no tensors, as plain SGD, has it as an object alone. */
static bool has_optimizer(const struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (dcp_role_is_optim(catalog->tensors[t].role))
            return true;
    return false;
}

/* Groups of parameters go where the rest of the optimizer goes. */
static int check_optimizer(const struct dcp_catalog *src, const struct dcp_format *format,
                           const struct dcp_reshard_options *options, bool *out_take,
                           struct dcp_error *err)
{
    bool asked =
        options->only != DCP_ONLY_MODEL && !(options->select && options->select[0]);

    *out_take = has_optimizer(src) ? options->only != DCP_ONLY_MODEL : asked;
    if (!asked || has_optimizer(src) || options->lossy ||
        (format->flags & (DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS)) ||
        dcp_catalog_find_object(src, DCP_TRAINING_OPTIMIZER) < 0)
        return DCP_OK;
    dcp_error_set(err, DCP_E_MISMATCH,
                  "a target of format %s cannot hold: the optimizer's settings ('%s')",
                  format->name, DCP_TRAINING_OPTIMIZER);
    dcp_error_hint(err, "--only model leaves them out; --lossy leaves out whatever does "
                        "not fit");
    return DCP_E_MISMATCH;
}

static int add_objects(const struct dcp_catalog *src, const struct dcp_format *format,
                       const struct dcp_reshard_options *options,
                       struct dcp_catalog *target, const int *src_tensor,
                       struct dcp_error *err)
{
    bool same = keeps_names(src, target, src_tensor);
    bool groups = true;
    int rc = check_optimizer(src, format, options, &groups, err);

    for (size_t o = 0; o < src->n_objects && !rc; o++) {
        if (!groups && !strcmp(src->objects[o].name, DCP_TRAINING_OPTIMIZER))
            continue;
        if (!same && dcp_object_is_spelling(src->objects[o].name))
            continue;
        if (dcp_object_file(src->objects[o].name) && !(format->flags & DCP_FORMAT_FILES))
            continue;
        rc = options->rename
                 ? dcp_rename_object(options->rename, target, &src->objects[o], err)
                 : dcp_catalog_add_object(target, &src->objects[o], err);
    }
    return rc;
}

/* Whether it holds objects: some formats do so only beside an optimizer, unless the tree
 * that the objects stood in goes along. */
static bool holds_objects(const struct dcp_format *format,
                          const struct dcp_catalog *target)
{
    if (!(format->flags & DCP_FORMAT_OBJECTS) || !(format->flags & DCP_FORMAT_PLAIN))
        return format->flags & DCP_FORMAT_OBJECTS;
    for (size_t o = 0; o < target->n_objects; o++)
        if (dcp_object_is_spelling(target->objects[o].name))
            return true;
    return has_optimizer(target) ||
           dcp_catalog_find_object(target, DCP_TRAINING_OPTIMIZER) >= 0;
}

int dcp_contents_new(const struct dcp_catalog *src, const struct dcp_format *format,
                     const struct dcp_reshard_options *options,
                     struct dcp_reshard_plan *facts, struct dcp_catalog **out_target,
                     int **out_src_tensor, struct dcp_error *err)
{
    struct dcp_catalog *target = NULL;
    int *src_tensor = NULL;
    int rc = dcp_catalog_new(&target, err);

    *out_target = NULL;
    *out_src_tensor = NULL;
    if (!rc)
        rc = begin(src, format, options, target, err);
    if (!rc)
        rc = dcp_choose(src, format, options, target, &src_tensor, err);
    if (!rc)
        rc = add_objects(src, format, options, target, src_tensor, err);
    if (!rc && holds_objects(format, target))
        rc = dcp_objects_sift(format, options, target, facts, err);
    if (rc) {
        dcp_catalog_free(target);
        free(src_tensor);
        return rc;
    }
    *out_target = target;
    *out_src_tensor = src_tensor;
    return DCP_OK;
}

struct left {
    const struct dcp_catalog *src;
    struct dcp_catalog *target;
    const char **names; /* texts belong to the target */
    size_t n, cap;
};

static int add_left(void *self, const char *name, struct dcp_error *err)
{
    struct left *left = self;
    const char **grown =
        dcp_mem_grow(left->names, &left->cap, left->n + 1, sizeof *grown);
    const char *kept = grown ? dcp_catalog_text(left->target, name) : NULL;

    if (grown)
        left->names = grown;
    if (!kept)
        return dcp_error_memory(err, "a target");
    left->names[left->n++] = kept;
    return DCP_OK;
}

/* Of what a spelling keeps, that which is no object besides. */
static int add_kept(void *self, const char *name, struct dcp_error *err)
{
    const struct left *left = self;

    return dcp_catalog_find_object(left->src, name) >= 0 ? DCP_OK
                                                         : add_left(self, name, err);
}

/* What the reshard was not to take is not left out; what nobody may load is counted
 * apart. */
static bool is_left(const struct dcp_object *object, const struct dcp_format *format,
                    const struct dcp_catalog *target, bool same)
{
    int at = dcp_catalog_find_object(target, object->name);

    if (at >= 0)
        return !target->objects[at].held;
    return dcp_object_is_spelling(object->name)
               ? !same
               : dcp_object_file(object->name) && !(format->flags & DCP_FORMAT_FILES);
}

static int take_left(struct left *left, const struct dcp_object *object,
                     struct dcp_error *err)
{
    const struct dcp_value_listener listener = { add_kept, left };
    const char *file = dcp_object_file(object->name);

    if (!dcp_object_is_spelling(object->name))
        return add_left(left, file ? file : object->name, err);
    for (const struct dcp_format *const *format = dcp_formats(); *format; format++)
        if ((*format)->kept && lists((*format)->spelling, object->name))
            DCP_TRY((*format)->kept(object, &listener, err));
    return DCP_OK;
}

int dcp_contents_left(const struct dcp_catalog *src, const struct dcp_format *format,
                      struct dcp_catalog *target, const int *src_tensor,
                      const char *const **out, struct dcp_error *err)
{
    struct left left = { .src = src, .target = target };
    bool same = keeps_names(src, target, src_tensor);
    int rc = DCP_OK;

    *out = NULL;
    for (size_t o = 0; o < src->n_objects && !rc; o++)
        if (is_left(&src->objects[o], format, target, same))
            rc = take_left(&left, &src->objects[o], err);
    if (!rc && left.n) {
        const char **names = dcp_catalog_alloc(target, left.n + 1, sizeof *names);
        if (names)
            memcpy(names, left.names, left.n * sizeof *names);
        else
            rc = dcp_error_memory(err, "a target");
        *out = names;
    }
    free(left.names);
    return rc;
}
