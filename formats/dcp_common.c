/* dcp_common: common.pt, which Megatron-LM writes beside a distributed checkpoint: one
 * PyTorch file with what is equal on all ranks (arguments, iteration, scheduler). Its
 * values are kept as objects "common.<path>". */
#include "base/mem.h"
#include "dcp.h"
#include "merge.h"
#include "torch.h"
#include <stdio.h>
#include <string.h>

#define COMMON_NAME "common.pt"
#define MARK_NAME "metadata.json" /* {"sharded_backend": "torch_dist", …} */
#define PREFIX "common."

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
    for (size_t t = first; t < catalog->n_tensors && !rc; t++)
        catalog->tensors[t].role = DCP_ROLE_OTHER;
    for (size_t o = 0; o < own->n_objects && !rc; o++) {
        struct dcp_object object = own->objects[o];
        if (!strcmp(object.name, DCP_TORCH_TREE))
            continue; /* it speaks of names that are no more */
        if (!strcmp(object.name, "iteration") && catalog->step < 0 &&
            object.kind == DCP_OBJECT_JSON)
            catalog->step = strtoll(object.data, NULL, 10);
        object.name = prefixed(catalog, object.name);
        rc = object.name ? dcp_catalog_add_object(catalog, &object, err)
                         : dcp_error_memory(err, "an object");
    }
    return rc ? rc : dcp_catalog_sort(catalog, err);
}

int dcp_reading_common(struct dcp_reading *r, struct dcp_error *err)
{
    struct dcp_catalog *own = NULL;

    if (!dcp_source_has(r->source, COMMON_NAME) || !dcp_source_has(r->source, MARK_NAME))
        return DCP_OK;
    int rc = dcp_catalog_new(&own, err);
    if (!rc)
        rc = dcp_torch_index_file(r->source, COMMON_NAME, own, err);
    if (!rc)
        rc = take(r->catalog, own, err);
    dcp_catalog_free(own);
    return rc;
}
