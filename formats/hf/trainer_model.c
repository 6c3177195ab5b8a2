/* trainer_model: the weights of a folder, in whatever form they are. */
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/merge.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/sharded.h"
#include "formats/torch_dist/reading.h"
#include "hf.h"
#include "trainer.h"
#include "weights.h"

#define FSDP_FOLDER "pytorch_model_fsdp_0"

/* Whether a folder of the source is a distributed checkpoint. */
static bool has_dcp(const struct dcp_source *source, const char *folder)
{
    DCP_CLEANUP_FREE char *path = dcp_source_path(source, folder);
    const struct dcp_source sub = { source->store, path, true };

    return path && dcp_source_has(&sub, DCP_TORCH_DIST_METADATA_NAME);
}

bool dcp_hf_trainer_has_optimizer(const struct dcp_source *source)
{
    return dcp_source_has(source, "optimizer.pt") ||
           dcp_source_has(source, "optimizer.bin") || has_dcp(source, "optimizer_0");
}

bool dcp_hf_trainer_has_model(const struct dcp_source *source)
{
    return dcp_weights_find(source, DCP_WEIGHTS_TRAINER) || has_dcp(source, FSDP_FOLDER);
}

int dcp_hf_trainer_nest(struct dcp_catalog *catalog, size_t first, const char *folder,
                        struct dcp_error *err)
{
    for (size_t f = first; f < catalog->n_files; f++) {
        DCP_CLEANUP_FREE char *slash = dcp_str_join(folder, "/", "");
        DCP_CLEANUP_FREE char *name =
            slash ? dcp_str_join(slash, catalog->files[f].name, "") : NULL;
        catalog->files[f].name = name ? dcp_catalog_text(catalog, name) : NULL;
        if (!catalog->files[f].name)
            return dcp_error_memory(err, "a file name");
    }
    return DCP_OK;
}

/* Takes over all that was read, but how its names were spelled: the optimizer's are not
 * among them. */
static int adopt(struct dcp_catalog *catalog, const struct dcp_catalog *own,
                 struct dcp_error *err)
{
    DCP_TRY(dcp_merge(catalog, own, NULL, err));
    for (size_t o = 0; o < own->n_objects; o++)
        if (!dcp_object_is_spelling(own->objects[o].name))
            DCP_TRY(dcp_merge_object(catalog, own, own->objects[o].name, err));
    return DCP_OK;
}

int dcp_hf_trainer_dcp(const struct dcp_source *source, const char *folder,
                       struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE char *path = dcp_source_path(source, folder);
    const struct dcp_source sub = { source->store, path, true };
    struct dcp_catalog *own = NULL;
    size_t first = catalog->n_files;

    int rc = path ? dcp_catalog_new(&own, err) : dcp_error_memory(err, "a file name");
    if (!rc)
        rc = dcp_torch_dist_index(&sub, own, err);
    if (!rc)
        rc = adopt(catalog, own, err);
    if (!rc)
        rc = dcp_hf_trainer_nest(catalog, first, folder, err);
    if (!rc) {
        catalog->world_size = own->world_size;
        catalog->layout = dcp_catalog_text(catalog, own->layout);
        catalog->version = "FSDP";
        rc = catalog->layout ? DCP_OK : dcp_error_memory(err, "a layout");
    }
    dcp_catalog_free(own);
    return rc;
}

/* As the format has it that knows most of them. */
static int index_weights(const struct dcp_source *source,
                         const struct dcp_weights *weights, struct dcp_catalog *catalog,
                         struct dcp_error *err)
{
    if (dcp_format_hf.probe(source) > 1) /* a config.json, with weights */
        return dcp_format_hf.index(source, catalog, err);
    return weights->index_file == dcp_safetensors_index_file
               ? dcp_format_safetensors_sharded.index(source, catalog, err)
               : dcp_weights_index(source, weights, catalog, err);
}

int dcp_hf_trainer_model(const struct dcp_source *source, struct dcp_catalog *catalog,
                         bool *out_ordered, struct dcp_error *err)
{
    const struct dcp_weights *weights = dcp_weights_find(source, DCP_WEIGHTS_TRAINER);
    struct dcp_catalog *own = NULL;

    *out_ordered = !weights || weights->ordered;
    if (!weights)
        return dcp_hf_trainer_dcp(source, FSDP_FOLDER, catalog, err);
    int rc = dcp_catalog_new(&own, err);
    if (!rc)
        rc = index_weights(source, weights, own, err);
    if (!rc)
        rc = adopt(catalog, own, err);
    catalog->version = weights->name;
    dcp_catalog_free(own);
    return rc;
}
