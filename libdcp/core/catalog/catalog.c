/* catalog: adding to it, sorting and finding. Whatever is added is checked here once, so
 * that no later code meets a size that overflows or a region outside its tensor. */
#include "base/arena.h"
#include "base/mem.h"
#include "base/str.h"
#include "names.h"
#include "region.h"
#include <dcp/checkpoint.h>
#include <dcp/training.h>
#include <stdio.h>
#include <string.h>

int dcp_catalog_new(struct dcp_catalog **out_catalog, struct dcp_error *err)
{
    struct dcp_catalog *catalog = calloc(1, sizeof *catalog);

    *out_catalog = NULL;
    if (!catalog)
        return dcp_error_memory(err, "a catalog");
    catalog->arena = dcp_arena_new();
    catalog->index = calloc(1, sizeof *catalog->index);
    if (!catalog->arena || !catalog->index) {
        dcp_catalog_free(catalog);
        return dcp_error_memory(err, "a catalog");
    }
    catalog->format = catalog->version = catalog->layout = catalog->producer = "";
    catalog->step = -1;
    catalog->world_size = 1;
    catalog->weights_dtype = -1;
    *out_catalog = catalog;
    return DCP_OK;
}

void dcp_catalog_free(struct dcp_catalog *catalog)
{
    if (!catalog)
        return;
    if (catalog->index)
        dcp_names_fini(catalog->index);
    free(catalog->index);
    free(catalog->tensors);
    free(catalog->pieces);
    free(catalog->files);
    free(catalog->records);
    free(catalog->objects);
    dcp_arena_free(catalog->arena);
    free(catalog);
}

void *dcp_catalog_alloc(struct dcp_catalog *catalog, size_t n, size_t size_bytes)
{
    return dcp_arena_alloc(catalog->arena, n, size_bytes);
}

const char *dcp_catalog_text(struct dcp_catalog *catalog, const char *text)
{
    return dcp_arena_text(catalog->arena, text ? text : "");
}

int dcp_catalog_find(const struct dcp_catalog *catalog, const char *name)
{
    return dcp_names_find(catalog->index, catalog->tensors, name);
}

int dcp_catalog_find_object(const struct dcp_catalog *catalog, const char *name)
{
    for (size_t i = 0; i < catalog->n_objects; i++)
        if (!strcmp(catalog->objects[i].name, name))
            return (int)i;
    return -1;
}

static int check_shape(const struct dcp_tensor *tensor, int64_t *out_elems,
                       struct dcp_error *err)
{
    int64_t n = 1;
    bool zero = false;

    if (tensor->ndim < 0 || tensor->ndim > DCP_MAX_NDIM)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "tensor '%s' has %d dimensions; at most %d are supported",
                             DCP_SHOWN(tensor->name), tensor->ndim, DCP_MAX_NDIM);
    for (int d = 0; d < tensor->ndim; d++)
        zero |= tensor->shape[d] == 0;
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->shape[d] < 0)
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "tensor '%s' has a negative dimension",
                                 DCP_SHOWN(tensor->name));
        if (!zero && !dcp_mul_i64(n, tensor->shape[d], &n))
            n = -1;
        if (n < 0 || n > INT64_MAX / 16)
            return dcp_error_set(err, DCP_E_CORRUPT, "the size of tensor '%s' overflows",
                                 DCP_SHOWN(tensor->name));
    }
    *out_elems = zero ? 0 : n;
    return DCP_OK;
}

int dcp_catalog_reserve(struct dcp_catalog *catalog, size_t n_tensors, size_t n_pieces,
                        struct dcp_error *err)
{
    struct dcp_tensor *tensors = NULL;
    struct dcp_piece *pieces = NULL;

    if (n_tensors <= SIZE_MAX - catalog->n_tensors)
        tensors = dcp_mem_grow(catalog->tensors, &catalog->cap_tensors,
                               catalog->n_tensors + n_tensors, sizeof *tensors);
    catalog->tensors = tensors ? tensors : catalog->tensors;
    if (n_pieces <= SIZE_MAX - catalog->n_pieces)
        pieces = dcp_mem_grow(catalog->pieces, &catalog->cap_pieces,
                              catalog->n_pieces + n_pieces, sizeof *pieces);
    catalog->pieces = pieces ? pieces : catalog->pieces;
    if (!tensors || !pieces || !dcp_names_reserve(catalog->index, n_tensors))
        return dcp_error_memory(err, "a catalog");
    return DCP_OK;
}

int dcp_catalog_add_tensor(struct dcp_catalog *catalog, const struct dcp_tensor *tensor,
                           int *out_index, struct dcp_error *err)
{
    struct dcp_tensor t = *tensor;

    if (!t.name || !t.name[0])
        return dcp_error_set(err, DCP_E_CORRUPT, "a tensor has no name");
    if (!dcp_str_utf8_ok(t.name, strlen(t.name)))
        return dcp_error_set(err, DCP_E_CORRUPT, "the tensor name '%s' is not UTF-8",
                             DCP_SHOWN(t.name));
    if (t.param && t.param != t.name && !dcp_str_utf8_ok(t.param, strlen(t.param)))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the parameter's name of tensor '%s' is not UTF-8",
                             DCP_SHOWN(t.name));
    if ((unsigned)t.dtype >= DCP_N_DTYPES || (unsigned)t.role >= DCP_N_ROLES ||
        t.group < 0)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "tensor '%s' has no known dtype, role or group",
                             DCP_SHOWN(t.name));
    if (catalog->n_tensors >= INT32_MAX - 1)
        return dcp_error_set(err, DCP_E_UNSUPPORTED, "there are over 2^31 tensors");
    DCP_TRY(check_shape(&t, &t.n_elems, err));
    struct dcp_tensor *tensors = dcp_mem_grow(catalog->tensors, &catalog->cap_tensors,
                                              catalog->n_tensors + 1, sizeof t);
    if (!tensors)
        return dcp_error_memory(err, "the catalog's tensors");
    catalog->tensors = tensors;
    bool is_param = !t.param || t.param == t.name || !strcmp(t.param, t.name);
    t.name = dcp_arena_text(catalog->arena, t.name);
    t.param = is_param ? t.name : dcp_arena_text(catalog->arena, t.param);
    t.shape = dcp_arena_copy(catalog->arena, t.shape, (size_t)t.ndim * sizeof *t.shape);
    t.tied_to = t.tied_to ? dcp_arena_text(catalog->arena, t.tied_to) : NULL;
    t.quantized = t.quantized ? dcp_arena_text(catalog->arena, t.quantized) : NULL;
    if (!t.name || !t.param || !t.shape || !t.tied_to != !tensor->tied_to ||
        !t.quantized != !tensor->quantized)
        return dcp_error_memory(err, "the catalog's tensors");
    t.first_piece = t.n_pieces = 0;
    t.grid = NULL; /* that of another catalog */
    int index = (int)catalog->n_tensors, named = -1;
    tensors[index] = t;
    if (!dcp_names_add(catalog->index, tensors, index, &named))
        return dcp_error_memory(err, "the catalog's tensors");
    if (named != index)
        return dcp_error_set(err, DCP_E_CORRUPT, "there are two tensors named '%s'",
                             DCP_SHOWN(t.name));
    catalog->n_tensors++;
    catalog->sorted = false;
    if (out_index)
        *out_index = index;
    return DCP_OK;
}

int dcp_catalog_add_piece(struct dcp_catalog *catalog, const struct dcp_piece *piece,
                          struct dcp_error *err)
{
    struct dcp_piece p = *piece;

    if (p.tensor < 0 || (size_t)p.tensor >= catalog->n_tensors)
        return dcp_error_set(err, DCP_E_CORRUPT, "a piece belongs to no tensor");
    const struct dcp_tensor *tensor = &catalog->tensors[p.tensor];
    size_t dims_bytes = (size_t)tensor->ndim * sizeof(int64_t);
    DCP_TRY(dcp_region_check(tensor, &p.region, err));
    if (p.file >= (int)catalog->n_files || (unsigned)p.codec > DCP_CODEC_DEFLATE_STREAM ||
        p.rank < 0)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "a piece lies in no file of the checkpoint");
    struct dcp_piece *pieces = dcp_mem_grow(catalog->pieces, &catalog->cap_pieces,
                                            catalog->n_pieces + 1, sizeof p);
    if (!pieces)
        return dcp_error_memory(err, "the catalog's pieces");
    catalog->pieces = pieces;
    /* One spelling: what covers its tensor is the whole tensor. */
    if (dcp_region_elems(tensor, &p.region) == tensor->n_elems && tensor->n_elems)
        p.region = (struct dcp_region){ .kind = DCP_WHOLE };
    if (p.region.kind == DCP_BOX) {
        p.region.offset = dcp_arena_copy(catalog->arena, p.region.offset, dims_bytes);
        p.region.size = dcp_arena_copy(catalog->arena, p.region.size, dims_bytes);
        if (!p.region.offset || !p.region.size)
            return dcp_error_memory(err, "the catalog's pieces");
    } else {
        p.region.offset = p.region.size = NULL;
    }
    if (p.stride && !(p.stride = dcp_arena_copy(catalog->arena, p.stride, dims_bytes)))
        return dcp_error_memory(err, "the catalog's pieces");
    if (p.blocks && !(p.blocks = dcp_arena_copy(catalog->arena, p.blocks,
                                                p.n_blocks * sizeof *p.blocks)))
        return dcp_error_memory(err, "the catalog's blocks");
    pieces[catalog->n_pieces++] = p;
    catalog->sorted = false;
    return DCP_OK;
}

int dcp_catalog_add_alias(struct dcp_catalog *catalog, const char *name, int tensor,
                          struct dcp_error *err)
{
    struct dcp_tensor alias = catalog->tensors[tensor];
    size_t n_pieces = catalog->n_pieces;
    int index;

    alias.tied_to = alias.tied_to ? alias.tied_to : alias.name;
    alias.name = name;
    alias.param = NULL;
    int rc = dcp_catalog_add_tensor(catalog, &alias, &index, err);
    if (!rc)
        catalog->tensors[index].grid = catalog->tensors[tensor].grid;
    for (size_t p = 0; p < n_pieces && !rc; p++) {
        struct dcp_piece piece = catalog->pieces[p];
        if (piece.tensor != tensor)
            continue;
        piece.tensor = index;
        rc = dcp_catalog_add_piece(catalog, &piece, err);
    }
    return rc;
}

int dcp_catalog_add_file(struct dcp_catalog *catalog, const struct dcp_file *file,
                         int *out_index, struct dcp_error *err)
{
    struct dcp_file f = *file;
    struct dcp_file *files =
        dcp_mem_grow(catalog->files, &catalog->cap_files, catalog->n_files + 1, sizeof f);

    if (!files)
        return dcp_error_memory(err, "the catalog's files");
    catalog->files = files;
    f.name = dcp_arena_text(catalog->arena, f.name);
    if (!f.name)
        return dcp_error_memory(err, "the catalog's files");
    files[catalog->n_files++] = f;
    if (out_index)
        *out_index = (int)catalog->n_files - 1;
    return DCP_OK;
}

int dcp_catalog_add_record(struct dcp_catalog *catalog, const struct dcp_record *record,
                           struct dcp_error *err)
{
    struct dcp_record r = *record;
    struct dcp_record *records = dcp_mem_grow(catalog->records, &catalog->cap_records,
                                              catalog->n_records + 1, sizeof r);

    if (!records)
        return dcp_error_memory(err, "the catalog's records");
    catalog->records = records;
    r.name = dcp_arena_text(catalog->arena, r.name);
    if (!r.name)
        return dcp_error_memory(err, "the catalog's records");
    records[catalog->n_records++] = r;
    return DCP_OK;
}

void dcp_catalog_mark_stored(struct dcp_catalog *catalog, const char *name)
{
    for (size_t o = 0; o < catalog->n_objects; o++)
        if (!name || !strcmp(catalog->objects[o].name, name))
            catalog->objects[o].held = true;
}

int dcp_catalog_add_object(struct dcp_catalog *catalog, const struct dcp_object *object,
                           struct dcp_error *err)
{
    struct dcp_object o = *object;

    o.held = false;
    if (!o.name || !dcp_str_utf8_ok(o.name, strlen(o.name)))
        return dcp_error_set(err, DCP_E_CORRUPT, "the name of an object is not UTF-8");
    if (dcp_catalog_find_object(catalog, o.name) >= 0)
        return dcp_error_set(err, DCP_E_CORRUPT, "there are two objects named '%s'",
                             DCP_SHOWN(o.name));
    struct dcp_object *objects = dcp_mem_grow(catalog->objects, &catalog->cap_objects,
                                              catalog->n_objects + 1, sizeof o);
    if (!objects)
        return dcp_error_memory(err, "the catalog's objects");
    catalog->objects = objects;
    o.name = dcp_arena_text(catalog->arena, o.name);
    /* A NUL behind the data lets programs print JSON as a string. */
    char *data = dcp_arena_alloc(catalog->arena, o.size_bytes + 1, 1);
    if (!o.name || !data)
        return dcp_error_memory(err, "the catalog's objects");
    if (o.size_bytes)
        memcpy(data, o.data, o.size_bytes);
    o.data = data;
    objects[catalog->n_objects++] = o;
    return DCP_OK;
}

int64_t dcp_piece_elems(const struct dcp_catalog *catalog, const struct dcp_piece *piece)
{
    return dcp_region_elems(&catalog->tensors[piece->tensor], &piece->region);
}

uint64_t dcp_piece_bytes(const struct dcp_catalog *catalog, const struct dcp_piece *piece)
{
    return (uint64_t)dcp_piece_elems(catalog, piece) *
           dcp_dtype_size(catalog->tensors[piece->tensor].dtype);
}

uint64_t dcp_piece_span(const struct dcp_catalog *catalog, const struct dcp_piece *piece)
{
    const struct dcp_tensor *tensor = &catalog->tensors[piece->tensor];
    int64_t offset[DCP_MAX_NDIM], size[DCP_MAX_NDIM], last = 0;

    if (!piece->stride)
        return dcp_piece_bytes(catalog, piece);
    if (dcp_region_elems(tensor, &piece->region) == 0)
        return 0;
    dcp_region_box(tensor, &piece->region, offset, size);
    for (int d = 0; d < tensor->ndim; d++)
        last += (size[d] - 1) * piece->stride[d];
    return (uint64_t)(last + 1) * dcp_dtype_size(tensor->dtype);
}

uint64_t dcp_tensor_bytes(const struct dcp_tensor *tensor)
{
    return tensor->quantized ? tensor->quantized_bytes
                             : (uint64_t)tensor->n_elems * dcp_dtype_size(tensor->dtype);
}

const char *dcp_tensor_default_name(struct dcp_catalog *catalog, enum dcp_role role,
                                    const char *param)
{
    if (!dcp_role_is_optim(role))
        return dcp_catalog_text(catalog, param);
    const char *role_name = dcp_role_name(role);
    size_t n = sizeof "optimizer.." + strlen(role_name) + strlen(param);
    char *name = dcp_catalog_alloc(catalog, n, 1);
    if (name)
        snprintf(name, n, "optimizer.%s.%s", role_name, param);
    return name;
}

static int piece_order(const void *a, const void *b, void *arg)
{
    const struct dcp_catalog *catalog = arg;
    const struct dcp_piece *p = a, *q = b;

    if (p->tensor != q->tensor)
        return p->tensor < q->tensor ? -1 : 1;
    int order = dcp_region_order(&catalog->tensors[p->tensor], &p->region, &q->region);
    if (order)
        return order;
    return p->rank < q->rank ? -1 : p->rank > q->rank;
}

int dcp_catalog_sort(struct dcp_catalog *catalog, struct dcp_error *err)
{
    (void)err;
    bool in_order = true;
    for (size_t i = 1; i < catalog->n_pieces && in_order; i++)
        in_order =
            piece_order(&catalog->pieces[i - 1], &catalog->pieces[i], catalog) <= 0;
    if (!in_order)
        qsort_r(catalog->pieces, catalog->n_pieces, sizeof *catalog->pieces, piece_order,
                catalog);
    for (size_t i = 0; i < catalog->n_tensors; i++)
        catalog->tensors[i].first_piece = catalog->tensors[i].n_pieces = 0;
    for (size_t i = 0; i < catalog->n_pieces; i++) {
        struct dcp_tensor *tensor = &catalog->tensors[catalog->pieces[i].tensor];
        if (!tensor->n_pieces++)
            tensor->first_piece = i;
    }
    catalog->sorted = true;
    return DCP_OK;
}

bool dcp_holds_weights_only(const struct dcp_catalog *catalog)
{
    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (dcp_role_is_optim(catalog->tensors[t].role))
            return false;
    return catalog->n_tensors &&
           dcp_catalog_find_object(catalog, DCP_TRAINING_OPTIMIZER) < 0;
}
