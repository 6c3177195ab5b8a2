/* others: objects that DeepSpeed has no place for, random numbers and the data
 * cursor of this library's trainer, say, go along as one value of the client's state. */
#include "base/mem.h"
#include "formats/common/training.h"
#include "read.h"
#include "write.h"
#include <string.h>

/* What DeepSpeed's own values say, or what only tells how another file is spelled. */
static bool is_said(const char *name)
{
    static const char *const names[] = { DCP_TRAINING_OPTIMIZER,
                                         DCP_TRAINING_SCHEDULER,
                                         DCP_TRAINING_LOSS_SCALER,
                                         DCP_TRAINING_DEEPSPEED_CONFIG,
                                         DCP_DS_OBJECT,
                                         "torch.tree",
                                         "dcp.keys",
                                         "dcp.attributes" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name))
            return true;
    return dcp_object_is_spelling(name);
}

int dcp_ds_others(struct dcp_catalog *catalog, json_t **out, struct dcp_error *err)
{
    json_t *others = json_object();
    int rc = others ? DCP_OK : dcp_error_memory(err, "an object");

    for (size_t o = 0; o < catalog->n_objects && !rc; o++) {
        const char *name = catalog->objects[o].name;
        json_t *value = NULL;
        if (is_said(name) || catalog->objects[o].kind != DCP_OBJECT_JSON)
            continue;
        rc = dcp_training_read(catalog, name, &value, err);
        if (!rc && json_object_set_new(others, name, value))
            rc = dcp_error_memory(err, "an object");
        catalog->objects[o].held = true;
    }
    *out = others;
    return rc;
}

int dcp_ds_add_others(struct dcp_catalog *catalog, json_t *others, struct dcp_error *err)
{
    const char *name;
    json_t *value;

    json_object_foreach(others, name, value)
    {
        if (!is_said(name) && dcp_catalog_find_object(catalog, name) < 0)
            DCP_TRY(dcp_training_add(catalog, name, json_incref(value), err));
    }
    return DCP_OK;
}
