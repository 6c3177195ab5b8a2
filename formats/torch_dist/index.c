/* index: the files of a distributed checkpoint, to a catalog. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include "formats/state_dict/keys.h"
#include "hf_shards.h"
#include "reading.h"
#include "torch_dist.h"
#include <stdio.h>
#include <string.h>

/* -- files --------------------------------------------------------------------------- */

/* [size, crc64] of a file, when this library wrote it. */
static void take_digest(const struct dcp_torch_dist_reader *r, struct dcp_file *file)
{
    json_t *known = json_object_get(json_object_get(r->meta.ours, "files"), file->name);
    json_t *crc = json_array_get(known, 1);

    file->has_crc = json_is_integer(crc);
    file->crc = (uint64_t)json_integer_value(crc);
}

static int add_files(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    const struct dcp_store *store = r->source->store;
    int rc = DCP_OK;

    for (size_t f = 0; f < r->meta.n_files && !rc; f++) {
        struct dcp_file file = { .name = r->meta.files[f] };
        DCP_CLEANUP_FREE char *path = dcp_source_path(r->source, file.name);
        bool is_dir = false;
        if (!path)
            return dcp_error_memory(err, "a file name");
        const char *shown = DCP_SHOWN(file.name);
        struct dcp_error why = { 0 };
        rc = store->ops->stat(store->self, path, &is_dir, &file.size_bytes, &why);
        if (rc == DCP_E_NOT_FOUND || (!rc && is_dir))
            return dcp_error_set(err, DCP_E_CORRUPT, "'%s' of the checkpoint is missing",
                                 shown);
        if (rc && err)
            *err = why;
        int rank = dcp_torch_dist_file_rank(file.name);
        file.rank = rank >= 0 ? rank : f < DCP_TORCH_DIST_MAX_RANK ? (int)f : 0;
        take_digest(r, &file);
        if (!rc)
            rc = dcp_catalog_add_file(r->catalog, &file, NULL, err);
        if (file.rank >= r->catalog->world_size)
            r->catalog->world_size = file.rank + 1;
    }
    return rc;
}

/* -- tensors ------------------------------------------------------------------------- */

/* The tensor whose second name it is, or NULL. */
static const char *tied_to(const struct dcp_torch_dist_reader *r, const char *name)
{
    return json_string_value(
        json_object_get(json_object_get(r->meta.ours, "tied"), name));
}

/* What this library made for PyTorch to find: steps, and names of tied weights. */
static bool was_made(const struct dcp_torch_dist_reader *r, const char *name)
{
    const char *optim = json_string_value(json_object_get(r->meta.ours, "steps"));
    const char *state = optim ? dcp_keys_inside(optim, name) : NULL;

    return (state && dcp_str_starts(state, "state.") && dcp_str_ends(name, ".step")) ||
           json_object_get(json_object_get(r->meta.ours, "made"), name);
}

static int add_tensors(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    r->tensor_of = dcp_mem_calloc(r->meta.n_tensors, sizeof *r->tensor_of);
    r->meta_of = dcp_mem_calloc(r->meta.n_tensors, sizeof *r->meta_of);
    if (!r->tensor_of || !r->meta_of)
        return dcp_error_memory(err, "the tensors of a checkpoint");
    for (size_t t = 0; t < r->meta.n_tensors; t++) {
        const struct dcp_torch_dist_tensor *from = &r->meta.tensors[t];
        const struct dcp_tensor tensor = { .name = from->name,
                                           .dtype = from->dtype,
                                           .ndim = from->ndim,
                                           .shape = from->shape,
                                           .has_fingerprint = from->has_fingerprint,
                                           .fingerprint = from->fingerprint };
        r->tensor_of[t] = -1;
        if (was_made(r, from->name) || tied_to(r, from->name))
            continue;
        DCP_TRY(dcp_catalog_add_tensor(r->catalog, &tensor, &r->tensor_of[t], err));
        r->meta_of[r->tensor_of[t]] = t;
    }
    return DCP_OK;
}

/* Second names, once the pieces are there. */
static int add_tied(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    struct dcp_catalog *catalog = r->catalog;

    for (size_t t = 0; t < r->meta.n_tensors; t++) {
        const char *name = r->meta.tensors[t].name, *other = tied_to(r, name);
        int kept = other ? dcp_catalog_find(catalog, other) : -1;
        if (!other || was_made(r, name))
            continue;
        if (kept < 0)
            return dcp_error_set(err, DCP_E_CORRUPT, "a tie leads to no tensor");
        DCP_TRY(dcp_catalog_add_alias(catalog, name, kept, err));
        r->meta_of[catalog->n_tensors - 1] = t;
    }
    return dcp_catalog_sort(catalog, err);
}

/* -- pieces -------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b, void *arg)
{
    const struct dcp_torch_dist_metadata *meta = arg;

    return dcp_torch_dist_part_order(&meta->parts[*(const size_t *)a],
                                     &meta->parts[*(const size_t *)b]);
}

static int64_t part_elems(const struct dcp_torch_dist_metadata *meta,
                          const struct dcp_torch_dist_part *part)
{
    const struct dcp_torch_dist_tensor *tensor = &meta->tensors[part->tensor];
    int64_t n = 1;

    for (int d = 0; d < tensor->ndim; d++)
        if (!part->box[1 + tensor->ndim + d])
            return 0;
    for (int d = 0; d < tensor->ndim; d++)
        n *= part->box[1 + tensor->ndim + d]; /* no more than the tensor's */
    return n;
}

/* Empty shards hold nothing, and of an empty tensor one is enough. */
static bool is_wanted(const struct dcp_torch_dist_reader *r,
                      const struct dcp_torch_dist_part *part)
{
    if (part->tensor < 0 || part->file < 0 || r->tensor_of[part->tensor] < 0)
        return false;
    const struct dcp_tensor *tensor = &r->catalog->tensors[r->tensor_of[part->tensor]];
    const struct dcp_torch_dist_tensor *from = &r->meta.tensors[part->tensor];
    return tensor->n_elems ? part_elems(&r->meta, part) > 0
                           : part == &r->meta.parts[from->first_part];
}

static int add_piece(struct dcp_torch_dist_reader *r,
                     const struct dcp_torch_dist_part *part,
                     const struct dcp_torch_dist_item_location *place,
                     struct dcp_error *err)
{
    int ndim = r->meta.tensors[part->tensor].ndim;
    struct dcp_piece piece = {
        .tensor = r->tensor_of[part->tensor],
        .rank = r->catalog->files[part->file].rank,
        .region = { .kind = DCP_BOX,
                    .offset = part->box + 1,
                    .size = part->box + 1 + ndim },
        .file = part->file,
        .codec = place->codec,
        .offset = place->offset,
        .stored_size = place->stored_size,
        .skip = place->skip,
        .stride = place->stride,
        .has_crc = part->has_crc,
        .crc = part->crc,
    };
    struct dcp_record record = place->record;

    record.file = part->file;
    int rc =
        record.size_bytes ? dcp_catalog_add_record(r->catalog, &record, err) : DCP_OK;

    if (!r->catalog->tensors[piece.tensor].n_elems || !ndim)
        piece.region = (struct dcp_region){ .kind = DCP_WHOLE };
    return rc ? rc : dcp_catalog_add_piece(r->catalog, &piece, err);
}

/* Items are read from front to back, pieces added tensor by tensor. */
static int add_pieces(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    size_t n = 0;
    DCP_CLEANUP_FREE size_t *order = dcp_mem_calloc(r->meta.n_parts, sizeof *order);
    DCP_CLEANUP_FREE struct dcp_torch_dist_item_location *places =
        dcp_mem_calloc(r->meta.n_parts, sizeof *places);

    if (!order || !places)
        return dcp_error_memory(err, "the items of a checkpoint");
    for (size_t p = 0; p < r->meta.n_parts; p++)
        if (is_wanted(r, &r->meta.parts[p]))
            order[n++] = p;
    qsort_r(order, n, sizeof *order, by_place, &r->meta);
    for (size_t i = 0; i < n; i++)
        DCP_TRY(dcp_torch_dist_items_locate(&r->items, &r->meta.parts[order[i]],
                                            &places[order[i]], err));
    for (size_t p = 0; p < r->meta.n_parts; p++)
        if (is_wanted(r, &r->meta.parts[p]))
            DCP_TRY(add_piece(r, &r->meta.parts[p], &places[p], err));
    return dcp_catalog_sort(r->catalog, err);
}

/* "dim0" when what is cut is cut in rows, "replicated" when several ranks cut nothing. */
static const char *layout_of(const struct dcp_catalog *catalog)
{
    bool cut = false;

    for (size_t p = 0; p < catalog->n_pieces; p++) {
        const struct dcp_region *region = &catalog->pieces[p].region;
        const struct dcp_tensor *tensor = &catalog->tensors[catalog->pieces[p].tensor];
        if (region->kind != DCP_BOX)
            continue;
        cut = true;
        for (int d = 1; d < tensor->ndim; d++)
            if (region->size[d] != tensor->shape[d])
                return "";
    }
    return cut ? "dim0" : catalog->world_size > 1 ? "replicated" : "";
}

/* -- what names say ------------------------------------------------------------------ */

static bool is_joint(void *self, int tensor, size_t at)
{
    const struct dcp_torch_dist_reader *r = self;
    const struct dcp_torch_dist_tensor *from = &r->meta.tensors[r->meta_of[tensor]];

    /* The same pointer: there is no path. */
    return from->path == from->name || from->path[at] == DCP_PATH_KEY ||
           from->path[at] == DCP_PATH_INDEX;
}

/* What the keys of a tree did not tell. */
static int take_params(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    json_t *params = json_object_get(r->meta.ours, "params"), *facts;
    const char *name;

    json_object_foreach(params, name, facts)
    {
        const char *role = json_string_value(json_array_get(facts, 0)),
                   *param = json_string_value(json_array_get(facts, 1));
        int at = dcp_catalog_find(r->catalog, name),
            known = role ? dcp_role_parse(role) : -1;
        if (at < 0 || known < 0 || !param)
            continue;
        r->catalog->tensors[at].role = (enum dcp_role)known;
        r->catalog->tensors[at].param = dcp_catalog_text(r->catalog, param);
        if (!r->catalog->tensors[at].param)
            return dcp_error_memory(err, "the roles of tensors");
    }
    return DCP_OK;
}

static int set_roles(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    const char **beside = dcp_mem_calloc(r->meta.n_objects, sizeof *beside);
    struct dcp_roles roles = { 0 };

    if (!beside)
        return dcp_error_memory(err, "the roles of tensors");
    for (size_t o = 0; o < r->meta.n_objects; o++)
        beside[o] = r->meta.objects[o].name;
    const struct dcp_roles_hints hints = {
        .beside = beside, .n_beside = r->meta.n_objects, .is_joint = is_joint, .self = r
    };
    int rc = dcp_roles_find(r->catalog, &hints, &roles, err);
    free(beside);
    if (rc)
        return rc;
    r->keys.model = roles.model;
    r->has_optim = roles.optim != NULL;
    if (roles.optim)
        r->keys.optim = roles.optim;
    const char *of = json_string_value(json_object_get(
        json_object_get(r->meta.ours, DCP_TRAINING_OPTIMIZER), "container"));
    if (of && !(r->keys.optim = dcp_catalog_text(r->catalog, of)))
        return dcp_error_memory(err, "the keys of a checkpoint");
    for (size_t t = 0; t < r->catalog->n_tensors; t++) {
        struct dcp_tensor *tensor = &r->catalog->tensors[t];
        int role = r->meta.tensors[r->meta_of[t]].role;
        if (role < 0 || dcp_role_is_optim(tensor->role) ||
            dcp_role_is_optim((enum dcp_role)role))
            continue;
        tensor->role = (enum dcp_role)role;
        if (role == DCP_ROLE_OTHER)
            tensor->param = tensor->name;
    }
    return take_params(r, err);
}

/* Keys and paths that are not what they would be made as. */
static int learn_keys(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    bool ok = true;

    for (size_t t = 0; t < r->catalog->n_tensors && ok; t++) {
        const struct dcp_tensor *tensor = &r->catalog->tensors[t];
        const struct dcp_torch_dist_tensor *from = &r->meta.tensors[r->meta_of[t]];
        const char *made = dcp_keys_made(&r->keys, r->catalog, tensor);
        bool weight = tensor->role == DCP_ROLE_MODEL || tensor->role == DCP_ROLE_BUFFER;
        ok = made && dcp_keys_learn_name(&r->keys, made, from->name) &&
             (from->path == from->name ||
              dcp_keys_learn_path(&r->keys, from->name, from->path, weight));
    }
    return ok ? DCP_OK : dcp_error_memory(err, "the keys of a checkpoint");
}

/* -- the whole ----------------------------------------------------------------------- */

static int set_facts(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    struct dcp_catalog *catalog = r->catalog;
    json_t *ours = r->meta.ours;
    json_int_t world_size = json_integer_value(json_object_get(ours, "world"));
    const json_t *step = json_object_get(ours, "step");
    const char *layout = json_string_value(json_object_get(ours, "layout"));

    catalog->version = dcp_catalog_text(catalog, r->meta.version);
    catalog->producer = ours ? "libdcp" : "PyTorch";
    if (world_size > catalog->world_size && world_size <= DCP_TORCH_DIST_MAX_RANK)
        catalog->world_size = (int)world_size;
    catalog->mesh = (struct dcp_mesh){ catalog->world_size, 1, 1 };
    if (step)
        catalog->step = dcp_training_step(step);
    catalog->layout = dcp_catalog_text(catalog, layout ? layout : layout_of(catalog));
    return catalog->version && catalog->layout
               ? DCP_OK
               : dcp_error_memory(err, "the index of a checkpoint");
}

/* Whether the keys are said to be paths. */
static bool has_paths(const struct dcp_torch_dist_metadata *meta)
{
    for (size_t t = 0; t < meta->n_tensors; t++)
        if (meta->tensors[t].path != meta->tensors[t].name)
            return true;
    return false;
}

static int read_all(struct dcp_torch_dist_reader *r, struct dcp_error *err)
{
    int rc = dcp_torch_dist_metadata_read(r->source, &r->meta, err);

    if (!rc)
        rc = add_files(r, err);
    if (!rc)
        rc = add_tensors(r, err);
    dcp_torch_dist_items_init(&r->items, r->source, &r->meta);
    if (!rc)
        rc = add_pieces(r, err);
    r->keys.style = r->items.style;
    r->keys.old_classes = r->meta.old_classes;
    r->keys.is_dict = true;
    r->keys.flat = !has_paths(&r->meta) || json_object_get(r->meta.ours, "flat");
    if (!rc)
        rc = add_tied(r, err);
    if (!rc)
        rc = set_facts(r, err);
    if (!rc)
        rc = set_roles(r, err);
    if (!rc)
        rc = dcp_reading_objects(r, err);
    if (!rc && !r->meta.ours) /* our own files say what tensors are */
        rc = dcp_roles_find_buffers(r->catalog, err);
    if (!rc)
        rc = learn_keys(r, err);
    if (!rc)
        rc = dcp_reading_common(r, err);
    return rc ? rc : dcp_keys_save(&r->keys, r->catalog, err);
}

int dcp_torch_dist_index(const struct dcp_source *source, struct dcp_catalog *catalog,
                         struct dcp_error *err)
{
    struct dcp_torch_dist_reader r = { .source = source, .catalog = catalog };

    catalog->format = dcp_format_torch_dist.name;
    if (dcp_torch_dist_shards_probe(source))
        return dcp_shards_index(source, catalog, err);
    dcp_keys_init(&r.keys);
    int rc = read_all(&r, err);
    for (size_t e = 0; e < r.n_entries; e++) {
        json_decref(r.entries[e].value);
        dcp_buf_fini(&r.entries[e].raw);
    }
    free(r.entries);
    free(r.tensor_of);
    free(r.meta_of);
    dcp_torch_dist_items_fini(&r.items);
    dcp_keys_fini(&r.keys);
    dcp_torch_dist_metadata_fini(&r.meta);
    return rc;
}
