/* lightning: meta.pt as an object. */
#include "lightning.h"
#include "base/json.h"
#include "formats/common/input.h"
#include "formats/common/training.h"
#include "formats/fsdp/fsdp.h"
#include "reading.h"

#define META_NAME "meta.pt"
#define OBJECT "lightning"

int dcp_torch_dist_lightning_index(const struct dcp_source *source,
                                   struct dcp_catalog *catalog, struct dcp_error *err)
{
    struct dcp_fsdp_reader r = { .catalog = catalog,
                                 .folder = { .source = *source, .world_size = 1 } };
    DCP_CLEANUP_JSON json_t *meta = NULL;
    int rc = dcp_torch_dist_index(source, catalog, err);

    if (rc || !dcp_source_has(source, META_NAME))
        return rc;
    rc = dcp_fsdp_index_value(&r, META_NAME, OBJECT, 0, err);
    if (!rc)
        rc = dcp_training_read(catalog, OBJECT, &meta, err);
    if (catalog->step < 0)
        catalog->step = dcp_training_step(json_object_get(meta, "global_step"));
    free(r.known);
    return rc;
}
