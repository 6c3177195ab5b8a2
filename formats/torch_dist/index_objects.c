/* index_objects: what a distributed checkpoint holds beside tensors. PyTorch takes
 * dicts apart and stores each value under a key of its own; those of the optimizer, and
 * of objects that this library took apart, are put together again. */
#include "base/hex.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/optim.h"
#include "formats/common/training.h"
#include "formats/pickle/py.h"
#include "formats/state_dict/keys.h"
#include "reading.h"
#include <stdio.h>
#include <string.h>

enum { MAX_JOINED = 4096 };

static int no_memory(struct dcp_error *err)
{
    return dcp_error_memory(err, "the objects of a checkpoint");
}

static int by_place(const void *a, const void *b, void *arg)
{
    const struct dcp_torch_dist_metadata *meta = arg;

    return dcp_torch_dist_part_order(
        &meta->parts[meta->objects[*(const size_t *)a].part],
        &meta->parts[meta->objects[*(const size_t *)b].part]);
}

static int read_entries(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    size_t n = r->meta.n_objects;
    DCP_CLEANUP_FREE size_t *order = dcp_mem_calloc(n, sizeof *order);

    r->entries = dcp_mem_calloc(n, sizeof *r->entries);
    if (!r->entries || !order)
        return no_memory(err);
    r->n_entries = n;
    for (size_t o = 0; o < n; o++)
        order[o] = o;
    qsort_r(order, n, sizeof *order, by_place, &r->meta);
    for (size_t i = 0; i < n; i++) {
        const struct dcp_torch_dist_object *object = &r->meta.objects[order[i]];
        struct dcp_entry *entry = &r->entries[order[i]];
        *entry = (struct dcp_entry){ .name = object->name,
                                     .path = object->path,
                                     .rank = object->rank };
        DCP_TRY(dcp_torch_dist_items_object(&r->items, object, &entry->value, &entry->raw,
                                            err));
    }
    return DCP_OK;
}

/* -- the optimizer ------------------------------------------------------------------- */

/* P.state.<param>.step, whatever the parameter. */
static bool is_step(const struct dcp_torch_dist_reader *r, const char *name)
{
    const char *rest = dcp_keys_inside(r->keys.optim, name);

    return rest && dcp_str_starts(rest, "state.") && dcp_str_ends(rest, ".step");
}

/* The updates of each parameter: tiny tensors, or numbers of older versions. */
static int read_steps(struct dcp_torch_dist_reader *r, struct dcp_optim_counts *out,
                      struct dcp_error *err)
{
    for (size_t e = 0; e < r->n_entries; e++)
        if (is_step(r, r->entries[e].name) && json_is_number(r->entries[e].value))
            dcp_optim_count(out,
                            dcp_optim_updates(json_number_value(r->entries[e].value)));
    for (size_t t = 0; t < r->meta.n_tensors; t++) {
        const struct dcp_torch_dist_tensor *tensor = &r->meta.tensors[t];
        const struct dcp_torch_dist_part *part = &r->meta.parts[tensor->first_part];
        unsigned char data[16] = { 0 };
        double number;
        size_t n = dcp_dtype_size(tensor->dtype);
        if (!is_step(r, tensor->name) || tensor->ndim || !tensor->n_parts ||
            part->file < 0)
            continue;
        DCP_TRY(dcp_torch_dist_items_read(&r->items, part, data, n, err));
        if (dcp_optim_number(tensor->dtype, data, &number))
            dcp_optim_count(out, dcp_optim_updates(number));
    }
    return DCP_OK;
}

/* Groups without any state stay what they are: keys of their own. */
static int take_optimizer(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *groups = NULL;
    json_t *kept = json_object_get(r->meta.ours, DCP_TRAINING_OPTIMIZER);
    struct dcp_optim_counts updates = { 0 };

    if (!r->has_optim && !kept)
        return DCP_OK;
    DCP_TRY(
        dcp_optim_groups(&r->keys, r->catalog, r->entries, r->n_entries, &groups, err));
    if (groups)
        DCP_TRY(dcp_optim_mark(r->catalog, groups, err));
    if (!kept) {
        DCP_TRY(read_steps(r, &updates, err));
        return groups || updates.any ? dcp_optim_add(r->catalog, dcp_optim_type(groups),
                                                     updates, groups, err)
                                     : DCP_OK;
    }
    DCP_CLEANUP_JSON json_t *optimizer = json_deep_copy(kept);
    if (!optimizer || (groups && json_object_set(optimizer, "param_groups", groups)))
        return no_memory(err);
    return dcp_training_add(r->catalog, DCP_TRAINING_OPTIMIZER, json_incref(optimizer),
                            err);
}

/* -- objects that were taken apart --------------------------------------------------- */

/* What stands in a container under a part of a path; takes `fresh` for what is not there.
 * NULL: it does not fit, or out of memory. */
static json_t *step_into(json_t *container, const char *part, size_t n, bool index,
                         json_t *fresh)
{
    DCP_CLEANUP_JSON json_t *made = fresh;

    if (index) {
        size_t at = (size_t)strtoull(part, NULL, 10);
        if (json_array_size(container) == at && json_array_append(container, made))
            return NULL;
        return json_array_get(container, at);
    }
    DCP_CLEANUP_FREE char *key = strndup(part, n);
    json_t *known = key ? json_object_get(container, key) : NULL;
    if (known || !key)
        return known;
    return json_object_set(container, key, made) ? NULL : made;
}

/* Sets the value at the path below `root`. False when that does not go together. */
static bool put_value(json_t *root, const char *path, json_t *value)
{
    static const char marks[] = { DCP_PATH_KEY, DCP_PATH_INDEX, '\0' };

    while (root && *path) {
        bool index = *path++ == DCP_PATH_INDEX;
        size_t n = strcspn(path, marks);
        json_t *fresh = !path[n]                    ? json_incref(value)
                        : path[n] == DCP_PATH_INDEX ? json_array()
                                                    : json_object();
        if (!fresh || json_is_array(root) != index) {
            json_decref(fresh);
            return false;
        }
        root = step_into(root, path, n, index, fresh);
        path += n;
    }
    return root != NULL;
}

/* An object in parts: entries whose paths begin with its own, which is its name when the
 * note says no other. */
static int join_tree(struct dcp_torch_dist_reader *r, const char *name, const char *path,
                     struct dcp_error *err)
{
    json_t *root = NULL;
    size_t n = strlen(path);

    for (size_t e = 0; e < r->n_entries; e++) {
        struct dcp_entry *entry = &r->entries[e];
        bool index = false, inside = !strncmp(entry->path, path, n) && !entry->taken;
        if (inside)
            index = entry->path[n] == DCP_PATH_INDEX;
        if (!inside || !entry->value || (!index && entry->path[n] != DCP_PATH_KEY))
            continue;
        if (!root)
            root = index ? json_array() : json_object();
        entry->taken = true;
        if (!put_value(root, entry->path + n, entry->value)) {
            json_decref(root);
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "the parts of the object '%s' do not go together", name);
        }
    }
    return root ? dcp_training_add(r->catalog, name, root, err) : DCP_OK;
}

/* Hexadecimal to an object of bytes. */
static int add_bytes(struct dcp_torch_dist_reader *r, const char *name, const char *hex,
                     struct dcp_error *err)
{
    size_t n = strlen(hex) / 2;
    DCP_CLEANUP_FREE unsigned char *data = dcp_mem_calloc(n, 1);

    if (!data)
        return no_memory(err);
    if (!dcp_hex_parse_all(hex, data))
        return dcp_error_set(err, DCP_E_CORRUPT, "the object '%s' is not hexadecimal",
                             name);
    const struct dcp_object object = {
        .name = name, .kind = DCP_OBJECT_BYTES, .data = data, .size_bytes = n
    };
    return dcp_catalog_add_object(r->catalog, &object, err);
}

/* An object that is one text, or bytes. */
static int join_whole(struct dcp_torch_dist_reader *r, const char *name,
                      struct dcp_error *err)
{
    for (size_t e = 0; e < r->n_entries; e++) {
        struct dcp_entry *entry = &r->entries[e];
        const char *text = json_string_value(entry->value);
        const char *hex = json_string_value(json_object_get(entry->value, DCP_PY_BYTES));
        if (strcmp(entry->name, name) != 0 || entry->taken || (!text && !hex))
            continue;
        entry->taken = true;
        if (hex)
            return add_bytes(r, name, hex, err);
        const struct dcp_object object = { .name = name,
                                           .kind = DCP_OBJECT_JSON,
                                           .data = text,
                                           .size_bytes = strlen(text) };
        return dcp_catalog_add_object(r->catalog, &object, err);
    }
    return DCP_OK;
}

/* An object of a state dict, [path] or [path, value]: its entries have that path, or one
 * below it. */
static int join_placed(struct dcp_torch_dist_reader *r, const char *name, json_t *note,
                       struct dcp_error *err)
{
    const char *path = json_string_value(json_array_get(note, 0));
    json_t *value = json_array_get(note, 1);
    size_t n = path ? strlen(path) : 0;

    if (path && (!dcp_keys_learn_path(&r->keys, name, path, false) ||
                 !dcp_keys_learn_item(&r->keys, name, "placed")))
        return no_memory(err);
    if (!path || !value)
        return path ? join_tree(r, name, path, err) : DCP_OK;
    for (size_t e = 0; e < r->n_entries; e++) {
        const char *rest = r->entries[e].path + n;
        if (!strncmp(r->entries[e].path, path, n) &&
            (!*rest || *rest == DCP_PATH_KEY || *rest == DCP_PATH_INDEX))
            r->entries[e].taken = true;
    }
    return dcp_training_add(r->catalog, name, json_incref(value), err);
}

/* {"trainer": "tree", "torch.tree": "whole", "a.b": [path]} */
static int join_objects(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    json_t *objects = json_object_get(r->meta.ours, "objects"), *value;
    const char *name;

    if (json_object_size(objects) > MAX_JOINED)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "there are over %d objects in parts",
                             MAX_JOINED);
    json_object_foreach(objects, name, value)
    {
        const char *kind = json_string_value(value);
        if (json_is_array(value))
            DCP_TRY(join_placed(r, name, value, err));
        if (kind)
            DCP_TRY(!strcmp(kind, "tree") ? join_tree(r, name, name, err)
                                          : join_whole(r, name, err));
    }
    return DCP_OK;
}

/* -- the rest ------------------------------------------------------------------------ */

/* The name of an entry in the catalog: ranks that saved alone may hold different values
 * under one key. NULL: it is there already. */
static const char *name_of(const struct dcp_torch_dist_reader *r,
                           const struct dcp_entry *entry, const char *text, size_t n)
{
    int known = dcp_catalog_find_object(r->catalog, entry->name);
    size_t cap = strlen(entry->name) + 32;

    if (known < 0)
        return entry->name;
    const struct dcp_object *object = &r->catalog->objects[known];
    if (object->size_bytes == n && !memcmp(object->data, text, n))
        return NULL;
    char *name = dcp_catalog_alloc(r->catalog, cap, 1);
    if (name)
        snprintf(name, cap, "%s#rank%d", entry->name, entry->rank);
    return name ? name : entry->name;
}

static int add_entry(struct dcp_torch_dist_reader *r, const struct dcp_entry *entry,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *text = entry->value ? dcp_json_text(entry->value, 0) : NULL;
    struct dcp_object object = { .kind =
                                     entry->value ? DCP_OBJECT_JSON : DCP_OBJECT_BYTES };
    bool dict = json_object_size(entry->value) && dcp_py_is_dict(entry->value);

    if (entry->value && !text)
        return no_memory(err);
    object.data = entry->value ? (const void *)text : entry->raw.data;
    object.size_bytes = entry->value ? strlen(text) : entry->raw.size_bytes;
    object.name = name_of(r, entry, object.data, object.size_bytes);
    if (!object.name)
        return DCP_OK;
    DCP_TRY(dcp_catalog_add_object(r->catalog, &object, err));
    bool ok = (entry->value && !dict) ||
              dcp_keys_learn_item(&r->keys, object.name, dict ? "value" : "archive");
    if (entry->path != entry->name && object.name == entry->name)
        ok = ok && dcp_keys_learn_path(&r->keys, entry->name, entry->path, false);
    return ok ? DCP_OK : no_memory(err);
}

/* The step of training, from the key where people keep it. */
static void find_step(struct dcp_torch_dist_reader *r)
{
    static const char *const names[] = { "step", "global_step", "train_state.step",
                                         "app.step", "trainer.step" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(names) && r->catalog->step < 0; i++)
        for (size_t e = 0; e < r->n_entries; e++)
            if (!strcmp(r->entries[e].name, names[i]))
                r->catalog->step = dcp_training_step(r->entries[e].value);
}

int dcp_reading_objects(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    DCP_TRY(read_entries(r, err));
    find_step(r);
    DCP_TRY(join_objects(r, err));
    DCP_TRY(take_optimizer(r, err));
    for (size_t e = 0; e < r->n_entries; e++)
        if (!r->entries[e].taken)
            DCP_TRY(add_entry(r, &r->entries[e], err));
    if (r->meta.extra)
        r->keys.attributes = json_incref(r->meta.extra);
    return DCP_OK;
}
