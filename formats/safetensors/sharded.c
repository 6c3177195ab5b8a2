/* sharded: folders with an index, and the format of those that hold safetensors. */
#include "sharded.h"
#include "base/arena.h"
#include "base/json_walk.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/merge.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include "parts.h"
#include "safetensors.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define STEM "model"
#define ADAPTER_CONFIG "adapter_config.json"

enum { BID = 64, NAME_BYTES = 64 };

/* -- reading ------------------------------------------------------------------------- */

/* What the index says: which file has a tensor. */
struct map {
    const char *shown;
    struct dcp_json_span doc, part; /* its text */
    struct dcp_arena *texts;
    struct dcp_map tensors, files; /* by name; to the number of a file */
    const char **names;            /* of files */
    size_t n_files, cap_files;
};

/* Takes from a shard what the map gives to it, or to none: who loads the shard would have
 * that, too. What it gives to another file is there twice: others load the last. */
struct shard {
    const struct map *map;
    const char *file;
    int64_t number;
    size_t n_taken;
    const char *again, *in; /* the first such tensor, and this file of it; or NULL */
};

static const char *take_mapped(void *self, const struct dcp_tensor *tensor)
{
    struct shard *shard = self;
    int64_t file = dcp_map_find(&shard->map->tensors, tensor->name, strlen(tensor->name));

    if (file >= 0 && file != shard->number) {
        if (!shard->again) {
            shard->again = dcp_arena_text(shard->map->texts, tensor->name);
            shard->in = shard->file;
        }
        return NULL;
    }
    if (tensor->tied_to)
        return tensor->name; /* the map knows the other name */
    shard->n_taken += file >= 0;
    return tensor->name;
}

static int in_natural_order(const void *p, const void *q)
{
    return dcp_str_natural_cmp(*(const char *const *)p, *(const char *const *)q);
}

/* The number of a file, which gets one the first time; -1 with err set. */
static int64_t number_of(struct map *map, const char *name, struct dcp_error *err)
{
    int64_t number = dcp_map_find(&map->files, name, strlen(name));

    if (number >= 0)
        return number;
    if (!dcp_store_name_ok(name) || strchr(name, '/') || strchr(name, '\\'))
        return dcp_error_set(
            err, DCP_E_CORRUPT,
            "'%s' names a shard by something else than a plain file name", map->shown);
    char *kept = dcp_arena_text(map->texts, name);
    const char **names =
        dcp_mem_grow(map->names, &map->cap_files, map->n_files + 1, sizeof *names);
    if (names)
        map->names = names;
    if (!kept || !names ||
        !dcp_map_set(&map->files, kept, strlen(kept), (int64_t)map->n_files))
        return dcp_error_memory(err, "the index of shards");
    names[map->n_files] = kept;
    return (int64_t)map->n_files++;
}

static int add_tensor(struct map *map, const char *name, const json_t *value,
                      struct dcp_error *err)
{
    const char *file = json_string_value(value), *kept;
    int64_t number = number_of(map, file ? file : "", err);

    if (number < 0)
        return (int)number;
    if (dcp_map_find(&map->tensors, name, strlen(name)) >= 0)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has the tensor '%s' twice",
                             map->shown, DCP_SHOWN(name));
    kept = dcp_arena_text(map->texts, name);
    return kept && dcp_map_set(&map->tensors, kept, strlen(kept), number)
               ? DCP_OK
               : dcp_error_memory(err, "the index of shards");
}

static int read_map(struct map *map, struct dcp_error *err)
{
    static const char *const large[] = { "weight_map", NULL };
    DCP_CLEANUP_WALK struct dcp_json_walk walk = { 0 };
    DCP_CLEANUP_JSON json_t *root = NULL;

    map->texts = dcp_arena_new();
    if (!map->texts)
        return dcp_error_memory(err, "the index of shards");
    DCP_TRY(dcp_json_walk_root(map->doc, map->shown, large, &map->part, &root, err));
    DCP_TRY(
        dcp_json_walk_member(&walk, map->doc, map->part, '{', large[0], map->shown, err));
    while (dcp_json_walk_next(&walk, err)) {
        DCP_CLEANUP_JSON json_t *value = NULL;
        DCP_TRY(dcp_json_walk_parse(&walk, &value, err));
        DCP_TRY(add_tensor(map, dcp_json_walk_key(&walk), value, err));
    }
    return walk.rc;
}

static void free_map(struct map *map)
{
    dcp_map_fini(&map->tensors);
    dcp_map_fini(&map->files);
    dcp_arena_free(map->texts);
    free(map->names);
}

/* A tensor that the index promises and no file holds. */
static int missing(const struct map *map, const struct dcp_catalog *catalog,
                   struct dcp_error *err)
{
    DCP_CLEANUP_WALK struct dcp_json_walk walk;

    DCP_TRY(dcp_json_walk_init(&walk, map->doc, map->part, '{', map->shown, err));
    while (dcp_json_walk_next(&walk, err)) {
        const char *name = dcp_json_walk_key(&walk);
        if (dcp_catalog_find(catalog, name) < 0)
            return dcp_error_of_tensor(
                err, DCP_E_CORRUPT, name,
                "'%s' lists a tensor '%s' that is not in its shard", map->shown,
                DCP_SHOWN(name));
    }
    return walk.rc;
}

/* What "model-00002-of-00003.safetensors" has in common with the others of its set: how
 * many bytes before the number; *out_rest is what follows it. 0: it is of no set. */
static size_t set_of(const char *name, const char **out_rest)
{
    const char *of = strstr(name, "-of-"), *at = of;

    while (at && at > name && isdigit((unsigned char)at[-1]))
        at--;
    *out_rest = of;
    return at && at < of ? (size_t)(at - name) : 0;
}

/* A shard of the same set that the index does not name: of another save, or the index is.
 */
static int check_left_out(const struct map *map, const char *name, struct dcp_error *err)
{
    const char *rest, *other_rest;
    size_t n = set_of(name, &rest);

    if (!n || dcp_map_find(&map->files, name, strlen(name)) >= 0)
        return DCP_OK;
    for (size_t i = 0; i < map->n_files; i++) {
        if (set_of(map->names[i], &other_rest) != n || strcmp(rest, other_rest) != 0 ||
            strncmp(name, map->names[i], n) != 0)
            continue;
        dcp_error_set(err, DCP_E_CORRUPT, "'%s' does not name '%s', which is beside it",
                      map->shown, DCP_SHOWN(name));
        dcp_error_hint(err, "remove the one that is of an older save");
        return DCP_E_CORRUPT;
    }
    return DCP_OK;
}

static int check_set(const struct map *map, const struct dcp_source *source,
                     struct dcp_error *err)
{
    struct dcp_store_entry *entries = NULL;
    size_t n = 0;
    int rc =
        source->store->ops->list(source->store->self, source->name, &entries, &n, err);

    for (size_t i = 0; i < n && !rc; i++)
        rc = check_left_out(map, entries[i].name, err);
    dcp_store_list_free(entries, n);
    return rc;
}

/* A tensor that the index gives to one file, and that another one has, too. */
static int refuse_again(const struct shard *shard, struct dcp_error *err)
{
    const struct map *map = shard->map;
    int64_t file = dcp_map_find(&map->tensors, shard->again, strlen(shard->again));
    const char *first = "?";

    for (size_t i = 0; i < map->n_files; i++)
        if (dcp_map_find(&map->files, map->names[i], strlen(map->names[i])) == file)
            first = map->names[i];
    dcp_error_of_tensor(err, DCP_E_CORRUPT, shard->again,
                        "'%s' and '%s' both hold a tensor '%s'", DCP_SHOWN(first),
                        DCP_SHOWN(shard->in), DCP_SHOWN(shard->again));
    dcp_error_hint(err,
                   "'%s' means the first, transformers loads the last: remove the one "
                   "that is of another save",
                   map->shown);
    return DCP_E_CORRUPT;
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
        rc = dcp_parts_refuse(own, err);
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
    struct map map = { .shown = index_name };
    size_t size_bytes;

    int rc = dcp_source_read(source, index_name, DCP_FORMAT_JSON_MAX_BYTES, &text,
                             &size_bytes, err);
    if (!rc) {
        map.doc = (struct dcp_json_span){ text, size_bytes };
        rc = read_map(&map, err);
    }
    struct shard shard = { .map = &map };
    if (map.n_files)
        qsort(map.names, map.n_files, sizeof *map.names, in_natural_order);
    for (size_t i = 0; i < map.n_files && !rc; i++) {
        shard.file = map.names[i];
        shard.number = number_of(&map, shard.file, err);
        rc = index_shard(source, &shard, index_file, catalog, err);
    }
    if (!rc && shard.n_taken != map.tensors.n)
        rc = missing(&map, catalog, err);
    if (!rc && shard.again)
        rc = refuse_again(&shard, err);
    if (!rc)
        rc = check_set(&map, source, err);
    free_map(&map);
    return rc;
}

/* The model's own names, those of PEFT and of diffusers; the first that is there. */
static const char *const stems[] = { STEM, "adapter_model", "diffusion_pytorch_model" };

static bool find(const struct dcp_source *source, char out[NAME_BYTES],
                 bool *out_is_index)
{
    for (size_t i = 0; i < DCP_ARRAY_LEN(stems); i++)
        for (int is_index = 0; is_index < 2; is_index++) {
            snprintf(out, NAME_BYTES, "%s.safetensors%s", stems[i],
                     is_index ? ".index.json" : "");
            *out_is_index = is_index;
            if (dcp_source_has(source, out))
                return true;
        }
    return false;
}

static bool probe_one(const struct dcp_source *source, const char *name)
{
    DCP_CLEANUP_FREE char *path = dcp_source_path(source, name);
    const struct dcp_source one = { .store = source->store, .name = path ? path : "" };

    return path && dcp_format_safetensors.probe(&one) > 0;
}

static int probe(const struct dcp_source *source)
{
    char name[NAME_BYTES];
    bool is_index;

    return source->is_dir && find(source, name, &is_index) &&
                   (is_index || probe_one(source, name))
               ? BID
               : 0;
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
    DCP_TRY(dcp_source_read(source, ADAPTER_CONFIG, DCP_FORMAT_JSON_MAX_BYTES, &text, &n,
                            err));
    DCP_TRY(dcp_json_parse(text, n, ADAPTER_CONFIG, &config, err));
    return dcp_training_add(catalog, "adapter_config", json_incref(config), err);
}

static int index_files(const struct dcp_source *source, struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    char name[NAME_BYTES];
    bool is_index;

    if (!find(source, name, &is_index))
        return dcp_error_set(err, DCP_E_NOT_FOUND,
                             "neither '" STEM ".safetensors' nor its index");
    if (is_index)
        return dcp_sharded_index(source, name, dcp_safetensors_index_file, catalog, err);
    DCP_TRY(dcp_safetensors_index_file(source, name, catalog, err));
    return dcp_parts_refuse(catalog, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    int rc = index_files(source, catalog, err);

    catalog->format = dcp_format_safetensors_sharded.name;
    if (!rc)
        rc = dcp_roles_find_plain(catalog, err);
    return rc ? rc : add_adapter_config(source, catalog, err);
}

/* -- writing ------------------------------------------------------------------------- */

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    return dcp_safetensors_assign_folder(target, STEM, err);
}

const struct dcp_format dcp_format_safetensors_sharded = {
    .name = "safetensors-sharded",
    .help = "folder of safetensors files with model.safetensors.index.json",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM | DCP_FORMAT_IS_DIR |
             DCP_FORMAT_TIES,
    .probe = probe,
    .index = index_source,
    .partition = dcp_partition_whole,
    .assign = assign,
};
