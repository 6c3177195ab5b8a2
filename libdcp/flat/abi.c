#include "abi.h"

#include <dcp/error.h>
#include <stdio.h>
#include <string.h>

void dcp_flat_take(void *ours, size_t size, const void *theirs)
{
    size_t known = 0;

    memset(ours, 0, size);
    if (theirs)
        memcpy(&known, theirs, sizeof known);
    if (known)
        memcpy(ours, theirs, known < size ? known : size);
}

void dcp_flat_give(void *theirs, const void *ours, size_t size)
{
    size_t known = 0;

    if (!theirs)
        return;
    memcpy(&known, theirs, sizeof known);
    if (known > size) /* of a newer caller */
        memset((unsigned char *)theirs + size, 0, known - size);
    if (known > sizeof known)
        memcpy((unsigned char *)theirs + sizeof known,
               (const unsigned char *)ours + sizeof known,
               (known < size ? known : size) - sizeof known);
}

int32_t dcp_flat_fail(struct dcp_flat_error *out, int rc, const struct dcp_error *err)
{
    struct dcp_flat_error told = { 0 };

    if (!rc || !out)
        return rc;
    told.code = rc;
    told.exit_status = dcp_error_exit(rc);
    told.sys_errno = err->sys_errno;
    told.rank = err->rank;
    snprintf(told.name, sizeof told.name, "%s", dcp_error_name(rc));
    memcpy(told.file, err->file, sizeof told.file);
    memcpy(told.tensor, err->tensor, sizeof told.tensor);
    memcpy(told.hint, err->hint, sizeof told.hint);
    snprintf(told.message, sizeof told.message, "%s",
             err->message[0] ? err->message : dcp_error_text(rc));
    dcp_flat_give(out, &told, sizeof told);
    return rc;
}

int32_t dcp_flat_tell_object(const struct dcp_catalog *catalog, uint64_t i,
                             struct dcp_flat_object *out)
{
    if (i >= catalog->n_objects)
        return DCP_E_NOT_FOUND;
    const struct dcp_object *object = &catalog->objects[i];
    const struct dcp_flat_object told = { .name = object->name,
                                          .is_json = object->kind == DCP_OBJECT_JSON,
                                          .data = object->data,
                                          .size_bytes = object->size_bytes };
    dcp_flat_give(out, &told, sizeof told);
    return DCP_OK;
}

bool dcp_flat_cancelled(const struct dcp_flat_watch *watch)
{
    const int32_t *cancel = watch->hooks.cancel;

    return cancel && __atomic_load_n(cancel, __ATOMIC_RELAXED);
}

int dcp_flat_interrupted(struct dcp_error *err)
{
    return dcp_error_set(err, DCP_E_INTERRUPTED, "interrupted");
}

static bool report(void *self, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct dcp_flat_watch *watch = self;

    if (dcp_flat_cancelled(watch))
        return true;
    return watch->hooks.progress &&
           watch->hooks.progress(watch->hooks.self, done_bytes, total_bytes) != 0;
}

struct dcp_progress dcp_flat_watch(struct dcp_flat_watch *watch,
                                   const struct dcp_flat_hooks *hooks)
{
    dcp_flat_take(&watch->hooks, sizeof watch->hooks, hooks);
    return (struct dcp_progress){ report, watch };
}
