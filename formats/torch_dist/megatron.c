/* megatron: common.pt, which Megatron-LM writes beside a distributed checkpoint: one
 * PyTorch file with what is equal on all ranks (arguments, iteration, scheduler). Its
 * values are shown as objects "common.<path>"; the file itself, and metadata.json, which
 * says that the folder is Megatron's, are carried as objects, so that what is written
 * again is a folder that Megatron loads. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/merge.h"
#include "formats/common/training.h"
#include "formats/state_dict/carried.h"
#include "formats/torch/torch.h"
#include "formats/torch_save/torch_save.h"
#include "reading.h"
#include "write.h"
#include <stdio.h>
#include <string.h>

#define COMMON_NAME "common.pt"
#define MARK_NAME "metadata.json" /* {"sharded_backend": "torch_dist", …} */
#define PREFIX DCP_CARRIED_PREFIX

enum { MAX_FILE_BYTES = 64 << 20 }; /* arguments and the like take kilobytes */

/* The files, and the objects that carry them. */
static const struct {
    const char *file, *object;
} files[] = {
    { COMMON_NAME, DCP_CARRIED_COMMON },
    { MARK_NAME, DCP_CARRIED_METADATA },
};

struct renaming {
    struct dcp_catalog *catalog;
    bool failed; /* memory ran out */
};

static const char *prefixed(struct dcp_catalog *catalog, const char *name)
{
    size_t n = sizeof PREFIX + strlen(name);
    char *made = dcp_catalog_alloc(catalog, n, 1);

    if (made)
        snprintf(made, n, PREFIX "%s", name);
    return made;
}

static const char *name_tensor(void *self, const struct dcp_tensor *tensor)
{
    struct renaming *renaming = self;
    const char *name = prefixed(renaming->catalog, tensor->name);

    renaming->failed |= !name;
    return name;
}

static int take(struct dcp_catalog *catalog, const struct dcp_catalog *own,
                struct dcp_error *err)
{
    struct renaming renaming = { .catalog = catalog };
    const struct dcp_merge_rule rule = { .name = name_tensor, .self = &renaming };
    size_t first = catalog->n_tensors;
    int rc = dcp_merge(catalog, own, &rule, err);

    if (!rc && renaming.failed)
        rc = dcp_error_memory(err, "a tensor name");
    if (!rc && catalog->step < 0) {
        DCP_CLEANUP_JSON json_t *step = NULL;
        rc = dcp_training_read(own, "iteration", &step, err);
        catalog->step = dcp_training_step(step);
    }
    for (size_t t = first; t < catalog->n_tensors && !rc; t++)
        catalog->tensors[t].role = DCP_ROLE_OTHER;
    for (size_t o = 0; o < own->n_objects && !rc; o++) {
        struct dcp_object object = own->objects[o];
        if (!strcmp(object.name, DCP_TORCH_TREE))
            continue; /* it speaks of names that are no more */
        object.name = prefixed(catalog, object.name);
        rc = object.name ? dcp_catalog_add_object(catalog, &object, err)
                         : dcp_error_memory(err, "an object");
    }
    return rc ? rc : dcp_catalog_sort(catalog, err);
}

/* What goes along byte for byte is never read as tensors: all of it is checked here. */
static int check(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };

    DCP_TRY(dcp_torch_open(&file, r->source, COMMON_NAME, err));
    return file.form != DCP_TORCH_ZIP ? DCP_OK : dcp_zip_check(&file.in, &file.zip, err);
}

/* Megatron parses metadata.json, which says how the folder was written, before all else.
 */
static int check_mark(const struct dcp_object *object, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *mark = NULL;

    return dcp_json_parse(object->data, object->size_bytes, "'" MARK_NAME "'", &mark,
                          err);
}

static int carry(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t i = 0; i < DCP_ARRAY_LEN(files) && !rc; i++) {
        struct dcp_object object = { .name = files[i].object, .kind = DCP_OBJECT_BYTES };
        DCP_CLEANUP_FREE void *data = NULL;
        rc = dcp_source_read(r->source, files[i].file, MAX_FILE_BYTES, &data,
                             &object.size_bytes, err);
        object.data = data;
        if (!rc && !strcmp(files[i].file, MARK_NAME))
            rc = check_mark(&object, err);
        if (!rc)
            rc = dcp_catalog_add_object(r->catalog, &object, err);
    }
    return rc;
}

int dcp_reading_common(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    struct dcp_catalog *own = NULL;

    if (!dcp_source_has(r->source, COMMON_NAME) || !dcp_source_has(r->source, MARK_NAME))
        return DCP_OK;
    int rc = check(r, err);
    if (!rc)
        rc = dcp_catalog_new(&own, err);
    if (!rc)
        rc = dcp_torch_index_file(r->source, COMMON_NAME, own, err);
    if (!rc)
        rc = take(r->catalog, own, err);
    dcp_catalog_free(own);
    return rc ? rc : carry(r, err);
}

/* -- writing ------------------------------------------------------------------------- */

int dcp_common_write(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;

    for (size_t i = 0; i < DCP_ARRAY_LEN(files); i++) {
        int at = dcp_catalog_find_object(catalog, files[i].object), file;
        if (at < 0)
            continue;
        const struct dcp_object *object = &catalog->objects[at];
        DCP_TRY(dcp_catalog_add_file(
            catalog,
            &(struct dcp_file){ .name = files[i].file, .size_bytes = object->size_bytes },
            &file, err));
        DCP_TRY(
            dcp_target_literal(target, file, 0, object->data, object->size_bytes, err));
    }
    return DCP_OK;
}
