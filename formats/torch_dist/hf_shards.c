/* hf_shards: headers of all files first, then the sizes of tensors, then pieces. */
#include "hf_shards.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include "formats/safetensors/parts.h"
#include "formats/safetensors/safetensors.h"
#include "formats/state_dict/keys.h"
#include "metadata.h"
#include <string.h>

#define PREFIX "shard-"
#define SUFFIX ".safetensors"

enum {
    LENGTH_BYTES = 8,  /* of a header */
    HEAD_BYTES = 1024, /* the metadata stand first in it */
};

/* A file: its own catalog, and where its tensors begin in the whole ones. */
struct shard {
    struct dcp_catalog *catalog;
    json_t *offsets; /* {name: {"saved_offsets": […]}} */
};
struct shards {
    struct shard *items;
    size_t n, cap;
};

static void shards_fini(struct shards *shards)
{
    for (size_t i = 0; i < shards->n; i++) {
        dcp_catalog_free(shards->items[i].catalog);
        json_decref(shards->items[i].offsets);
    }
    free(shards->items);
}

static bool is_shard_name(const struct dcp_store_entry *entry)
{
    bool of_hf = dcp_str_starts(entry->name, PREFIX) && dcp_str_ends(entry->name, SUFFIX);
    bool of_items = dcp_torch_dist_file_rank(entry->name) >= 0 &&
                    dcp_str_ends(entry->name, DCP_TORCH_DIST_FILE_SUFFIX);

    return !entry->is_dir && (of_hf || of_items);
}

/* A header that begins with where its parts are. */
static bool is_shard(const struct dcp_source *source, const char *name)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    char head[HEAD_BYTES];

    if (dcp_input_open(&in, source, name, NULL))
        return false;
    size_t n = in.size_bytes < sizeof head ? (size_t)in.size_bytes : sizeof head;
    return n > LENGTH_BYTES && !dcp_input_read(&in, 0, head, n, NULL) &&
           head[LENGTH_BYTES] == '{' &&
           memmem(head, n, DCP_PARTS_INFO, sizeof DCP_PARTS_INFO - 1);
}

bool dcp_torch_dist_shards_probe(const struct dcp_source *source)
{
    struct dcp_store_entry *entries;
    size_t n;
    bool any = false, all = true;

    if (source->store->ops->list(source->store->self, source->name, &entries, &n, NULL))
        return false;
    for (size_t i = 0; i < n && all; i++) {
        if (!is_shard_name(&entries[i]))
            continue;
        any = true;
        all = is_shard(source, entries[i].name);
    }
    dcp_store_list_free(entries, n);
    return any && all;
}

/* -- headers ------------------------------------------------------------------------- */

static int read_shard(const struct dcp_source *source, const char *name,
                      struct shards *shards, struct dcp_error *err)
{
    struct shard *grown =
        dcp_mem_grow(shards->items, &shards->cap, shards->n + 1, sizeof *grown);

    if (!grown)
        return dcp_error_memory(err, "the shards of a checkpoint");
    shards->items = grown;
    struct shard *shard = &grown[shards->n];
    *shard = (struct shard){ 0 };
    DCP_TRY(dcp_catalog_new(&shard->catalog, err));
    shards->n++;
    DCP_TRY(dcp_safetensors_index_file(source, name, shard->catalog, err));
    DCP_TRY(dcp_parts_read(shard->catalog, &shard->offsets, err));
    if (!shard->offsets)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' has no " DCP_PARTS_INFO,
                             DCP_SHOWN(name));
    return DCP_OK;
}

/* -- tensors ------------------------------------------------------------------------- */

static int wrong(const struct dcp_tensor *part, const char *what, struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, part->name, "tensor '%s' %s",
                               DCP_SHOWN(part->name), what);
}

/* Grows the shape of a tensor, which `sizes` has by its name, to hold a part. */
static int grow_tensor(json_t *sizes, const struct shard *shard,
                       const struct dcp_tensor *part, struct dcp_error *err)
{
    int64_t offset[DCP_MAX_NDIM], end;
    json_t *shape = json_object_get(sizes, part->name);

    if (!dcp_parts_offset(shard->offsets, part, offset))
        return wrong(part, "has no valid place in " DCP_PARTS_INFO, err);
    if (!shape) {
        shape = json_array();
        if (json_object_set_new(sizes, part->name, shape))
            return dcp_error_memory(err, "the shards of a checkpoint");
        for (int d = 0; d < part->ndim; d++)
            json_array_append_new(shape, json_integer(0));
    }
    if (json_array_size(shape) != (size_t)part->ndim)
        return wrong(part, "differs between the shards", err);
    for (int d = 0; d < part->ndim; d++) {
        if (!dcp_add_i64(offset[d], part->shape[d], &end))
            return wrong(part, "has a size that overflows", err);
        json_t *size = json_array_get(shape, (size_t)d);
        if (json_integer_value(size) < end && json_integer_set(size, end))
            return dcp_error_memory(err, "the shards of a checkpoint");
    }
    return DCP_OK;
}

static int add_tensor(struct dcp_catalog *catalog, json_t *sizes,
                      const struct dcp_tensor *part, struct dcp_error *err)
{
    json_t *numbers = json_object_get(sizes, part->name);
    int known = dcp_catalog_find(catalog, part->name);
    int64_t shape[DCP_MAX_NDIM];

    if (known >= 0)
        return catalog->tensors[known].dtype == part->dtype
                   ? DCP_OK
                   : wrong(part, "has several dtypes", err);
    for (int d = 0; d < part->ndim; d++)
        shape[d] = json_integer_value(json_array_get(numbers, (size_t)d));
    return dcp_catalog_add_tensor(catalog,
                                  &(struct dcp_tensor){ .name = part->name,
                                                        .dtype = part->dtype,
                                                        .ndim = part->ndim,
                                                        .shape = shape },
                                  NULL, err);
}

static int add_part(struct dcp_catalog *catalog, const struct shard *shard, size_t t,
                    int file, struct dcp_error *err)
{
    const struct dcp_tensor *part = &shard->catalog->tensors[t];
    struct dcp_piece piece = shard->catalog->pieces[part->first_piece];
    int64_t offset[DCP_MAX_NDIM] = { 0 };

    piece.tensor = dcp_catalog_find(catalog, part->name);
    piece.file = file;
    piece.rank = file;
    dcp_parts_offset(shard->offsets, part, offset);
    piece.region =
        (struct dcp_region){ .kind = DCP_BOX, .offset = offset, .size = part->shape };
    const struct dcp_tensor *whole = &catalog->tensors[piece.tensor];
    if (!whole->n_elems || !whole->ndim)
        piece.region = (struct dcp_region){ .kind = DCP_WHOLE };
    else if (!part->n_elems)
        return DCP_OK;
    return dcp_catalog_add_piece(catalog, &piece, err);
}

static int join(const struct shards *shards, struct dcp_catalog *catalog,
                struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *sizes = json_object();
    int file, rc = sizes ? DCP_OK : dcp_error_memory(err, "the shards of a checkpoint");

    for (size_t s = 0; s < shards->n && !rc; s++) {
        const struct shard *shard = &shards->items[s];
        for (size_t t = 0; t < shard->catalog->n_tensors && !rc; t++)
            rc = grow_tensor(sizes, shard, &shard->catalog->tensors[t], err);
    }
    for (size_t s = 0; s < shards->n && !rc; s++) {
        const struct shard *shard = &shards->items[s];
        struct dcp_file entry = shard->catalog->files[0];
        entry.rank = (int)s;
        rc = dcp_catalog_sort(shard->catalog, err);
        if (!rc)
            rc = dcp_catalog_add_file(catalog, &entry, &file, err);
        for (size_t t = 0; t < shard->catalog->n_tensors && !rc; t++) {
            rc = add_tensor(catalog, sizes, &shard->catalog->tensors[t], err);
            if (!rc)
                rc = add_part(catalog, shard, t, file, err);
        }
    }
    return rc;
}

/* Where .metadata says what there is, all of it must be there. */
static int check_meta(const struct dcp_source *source, const struct dcp_catalog *catalog,
                      struct dcp_error *err)
{
    DCP_CLEANUP_TORCH_DIST_METADATA struct dcp_torch_dist_metadata meta = { 0 };

    if (!dcp_source_has(source, DCP_TORCH_DIST_METADATA_NAME))
        return DCP_OK;
    int rc = dcp_torch_dist_metadata_read(source, &meta, err);
    for (size_t t = 0; t < meta.n_tensors && !rc; t++) {
        const struct dcp_torch_dist_tensor *want = &meta.tensors[t];
        int at = dcp_catalog_find(catalog, want->name);
        const struct dcp_tensor *have = at < 0 ? NULL : &catalog->tensors[at];
        if (!have || have->ndim != want->ndim || have->dtype != want->dtype ||
            memcmp(have->shape, want->shape, (size_t)want->ndim * sizeof *want->shape) !=
                0)
            rc = dcp_error_set(
                err, DCP_E_CORRUPT,
                "tensor '%s' is not in the files as " DCP_TORCH_DIST_METADATA_NAME
                " has it: a file is missing, or of another checkpoint",
                DCP_SHOWN(want->name));
    }
    return rc;
}

int dcp_shards_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    DCP_CLEANUP(shards_fini) struct shards shards = { 0 };
    DCP_CLEANUP_KEYS struct dcp_keys keys = { 0 };
    struct dcp_store_entry *entries;
    size_t n;
    int rc =
        source->store->ops->list(source->store->self, source->name, &entries, &n, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++)
        if (is_shard_name(&entries[i]))
            rc = read_shard(source, entries[i].name, &shards, err);
    dcp_store_list_free(entries, n);
    if (!rc)
        rc = join(&shards, catalog, err);
    if (!rc)
        rc = check_meta(source, catalog, err);
    if (rc)
        return rc;
    catalog->version = "safetensors shards";
    catalog->producer = "PyTorch";
    catalog->world_size = shards.n ? (int)shards.n : 1;
    catalog->mesh = (struct dcp_mesh){ catalog->world_size, 1, 1 };
    dcp_keys_init(&keys);
    keys.model = ""; /* the keys are names of weights, and no paths */
    keys.is_dict = keys.flat = true;
    DCP_TRY(dcp_keys_save(&keys, catalog, err));
    DCP_TRY(dcp_roles_find_plain(catalog, err));
    return dcp_catalog_sort(catalog, err);
}
