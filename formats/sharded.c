/* sharded: folders with an index, and the format of those that hold safetensors. */
#include "sharded.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "dcp_shards.h"
#include "formats.h"
#include "input.h"
#include "merge.h"
#include "roles.h"
#include "safetensors.h"
#include "training.h"
#include <string.h>

#define STEM "model"
#define ADAPTER_CONFIG "adapter_config.json"

/* What a folder's weights are called: one file, or the index of many. */
static const struct {
    const char *one, *index;
} stems[] = {
    { STEM ".safetensors", STEM ".safetensors.index.json" },
    { "adapter_model.safetensors", "adapter_model.safetensors.index.json" }, /* PEFT */
    { "diffusion_pytorch_model.safetensors",
      "diffusion_pytorch_model.safetensors.index.json" }, /* a model of diffusers */
};

enum { BID = 64 };

/* -- reading ------------------------------------------------------------------------- */

/* Takes from a shard what the map gives to it. */
struct shard {
    const json_t *map;
    const char *file;
    size_t n_taken;
};

static const char *take_mapped(void *self, const struct dcp_tensor *tensor)
{
    struct shard *shard = self;
    const char *file = json_string_value(json_object_get(shard->map, tensor->name));

    if (tensor->tied_to)
        return tensor->name; /* the map knows the other name */
    if (!file || strcmp(file, shard->file))
        return NULL;
    shard->n_taken++;
    return tensor->name;
}

static int in_natural_order(const void *p, const void *q)
{
    return dcp_str_natural_cmp(*(const char *const *)p, *(const char *const *)q);
}

/* The files the map names, each once, in natural order. */
static int list_files(json_t *map, const char *shown, const char ***out, size_t *out_n,
                      struct dcp_error *err)
{
    const char **files = dcp_mem_calloc(json_object_size(map), sizeof *files), *key;
    DCP_CLEANUP_JSON json_t *seen = json_object();
    json_t *value;
    size_t n = 0;
    int rc = files && seen ? DCP_OK : dcp_error_memory(err, "the index of shards");

    json_object_foreach(map, key, value)
    {
        const char *name = json_string_value(value);
        if (rc || (name && json_object_get(seen, name)))
            continue;
        if (!name || !dcp_store_name_ok(name) || strchr(name, '/') || strchr(name, '\\'))
            rc = dcp_error_set(err, DCP_E_CORRUPT,
                               "'%s' names a shard that is no plain file name", shown);
        else if (json_object_set_new(seen, name, json_true()))
            rc = dcp_error_memory(err, "the index of shards");
        else
            files[n++] = name;
    }
    if (n)
        qsort(files, n, sizeof *files, in_natural_order);
    *out = files;
    *out_n = n;
    return rc;
}

/* A tensor that the index promises and no file holds. */
static int missing(json_t *map, const struct dcp_catalog *catalog, const char *shown,
                   struct dcp_error *err)
{
    const char *name;
    char shown_name[160];
    json_t *file;

    json_object_foreach(map, name, file)
    {
        if (dcp_catalog_find(catalog, name) < 0) {
            dcp_error_set(err, DCP_E_CORRUPT,
                          "'%s' promises a tensor '%s' that is not in "
                          "its shard",
                          shown, dcp_str_escape(shown_name, sizeof shown_name, name));
            dcp_error_tensor(err, name);
            return DCP_E_CORRUPT;
        }
    }
    return DCP_OK;
}

static int index_shard(const struct dcp_source *source, struct shard *shard,
                       int (*index_file)(const struct dcp_source *source,
                                         const char *name, struct dcp_catalog *catalog,
                                         struct dcp_error *err),
                       struct dcp_catalog *catalog, struct dcp_error *err)
{
    const struct dcp_merge_rule rule = { .name = take_mapped, .self = shard };
    struct dcp_catalog *own = NULL;

    int rc = dcp_catalog_new(&own, err);
    if (!rc)
        rc = index_file(source, shard->file, own, err);
    if (!rc)
        rc = dcp_shards_refuse(own, err);
    if (!rc)
        rc = dcp_merge(catalog, own, &rule, err);
    if (!rc)
        rc = dcp_merge_object(catalog, own, DCP_SAFETENSORS_METADATA, err);
    dcp_catalog_free(own);
    return rc;
}

int dcp_sharded_index(const struct dcp_source *source, const char *index_name,
                      int (*index_file)(const struct dcp_source *source, const char *name,
                                        struct dcp_catalog *catalog,
                                        struct dcp_error *err),
                      struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_FREE const char **files = NULL;
    DCP_CLEANUP_JSON json_t *index = NULL;
    json_t *map = NULL;
    size_t size_bytes, n_files = 0;

    int rc = dcp_source_read(source, index_name, DCP_FORMAT_JSON_MAX_BYTES, &text,
                             &size_bytes, err);
    if (!rc)
        rc = dcp_json_parse(text, size_bytes, index_name, &index, err);
    if (!rc)
        rc = dcp_json_get_object(index, "weight_map", index_name, &map, err);
    if (!rc)
        rc = list_files(map, index_name, &files, &n_files, err);
    struct shard shard = { .map = map };
    for (size_t i = 0; i < n_files && !rc; i++) {
        shard.file = files[i];
        rc = index_shard(source, &shard, index_file, catalog, err);
    }
    if (!rc && shard.n_taken != json_object_size(map))
        rc = missing(map, catalog, index_name, err);
    return rc;
}

static bool probe_one(const struct dcp_source *source, const char *name)
{
    DCP_CLEANUP_FREE char *path = dcp_source_path(source, name);
    const struct dcp_source one = { .store = source->store, .name = path ? path : "" };

    return path && dcp_source_has(source, name) && dcp_format_safetensors.probe(&one) > 0;
}

static int probe(const struct dcp_source *source)
{
    for (size_t i = 0; source->is_dir && i < DCP_ARRAY_LEN(stems); i++)
        if (dcp_source_has(source, stems[i].index) || probe_one(source, stems[i].one))
            return BID;
    return 0;
}

/* The configuration of an adapter says what its weights are added to. */
static int add_adapter_config(const struct dcp_source *source,
                              struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_JSON json_t *config = NULL;
    size_t n;

    if (!dcp_source_has(source, ADAPTER_CONFIG))
        return DCP_OK;
    int rc = dcp_source_read(source, ADAPTER_CONFIG, DCP_FORMAT_JSON_MAX_BYTES, &text, &n,
                             err);
    if (!rc)
        rc = dcp_json_parse(text, n, ADAPTER_CONFIG, &config, err);
    return rc ? rc
              : dcp_training_add(catalog, "adapter_config", json_incref(config), err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    size_t i = 0;

    catalog->format = dcp_format_safetensors_sharded.name;
    while (i + 1 < DCP_ARRAY_LEN(stems) && !dcp_source_has(source, stems[i].index) &&
           !dcp_source_has(source, stems[i].one))
        i++;
    int rc = dcp_source_has(source, stems[i].index)
                 ? dcp_sharded_index(source, stems[i].index, dcp_safetensors_index_file,
                                     catalog, err)
                 : dcp_safetensors_index_file(source, stems[i].one, catalog, err);
    if (!rc)
        rc = dcp_roles_find_plain(catalog, err);
    return rc ? rc : add_adapter_config(source, catalog, err);
}

/* -- writing ------------------------------------------------------------------------- */

static int layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                  struct dcp_literals *literals, struct dcp_error *err)
{
    uint64_t max_bytes = options->max_shard_size_bytes;
    int rc = dcp_catalog_sort(catalog, err);

    if (!rc)
        rc = dcp_check_whole(catalog, "a folder of safetensors files", err);
    return rc ? rc
              : dcp_safetensors_layout_folder(
                    catalog, STEM, max_bytes ? max_bytes : DCP_SAFETENSORS_SHARD_BYTES,
                    literals, err);
}

const struct dcp_format dcp_format_safetensors_sharded = {
    .name = "safetensors-sharded",
    .help = "folder of safetensors files with model.safetensors.index.json",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM | DCP_FORMAT_IS_DIR |
             DCP_FORMAT_TIES,
    .probe = probe,
    .index = index_source,
    .layout = layout,
};
