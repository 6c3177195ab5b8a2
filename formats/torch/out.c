/* out: storages made of parts. */
#include "out.h"
#include "base/hash.h"
#include "base/mem.h"
#include "formats/common/literals.h"
#include "formats/pickle/py.h"
#include <string.h>

struct dcp_torch_out_storage {
    enum dcp_dtype dtype;
    int64_t n_elems;
    const void *data;
};

struct dcp_torch_out_view {
    size_t storage;
    int ndim;
    int64_t shape[DCP_MAX_NDIM];
};

struct dcp_torch_out_part {
    size_t storage;
    int tensor;
    int64_t begin, end, at;
};

void dcp_torch_out_fini(struct dcp_torch_out *out)
{
    json_decref(out->tree);
    free(out->storages);
    free(out->views);
    free(out->parts);
    *out = (struct dcp_torch_out){ 0 };
}

/* Room for one item more; NULL when there is none. */
static void *grow(struct dcp_torch_out *out, void *items, size_t *cap, size_t n,
                  size_t size_bytes)
{
    void *grown = out->failed ? NULL : dcp_mem_grow(items, cap, n + 1, size_bytes);

    out->failed = !grown;
    return grown;
}

size_t dcp_torch_out_storage(struct dcp_torch_out *out, enum dcp_dtype dtype,
                             int64_t n_elems, const void *data)
{
    struct dcp_torch_out_storage *grown =
        grow(out, out->storages, &out->cap_storages, out->n_storages, sizeof *grown);

    if (!grown)
        return 0;
    out->storages = grown;
    grown[out->n_storages] = (struct dcp_torch_out_storage){ dtype, n_elems, data };
    return out->n_storages++;
}

void dcp_torch_out_part(struct dcp_torch_out *out, size_t storage, int tensor,
                        int64_t begin, int64_t end, int64_t at)
{
    struct dcp_torch_out_part *grown =
        grow(out, out->parts, &out->cap_parts, out->n_parts, sizeof *grown);

    if (!grown)
        return;
    out->parts = grown;
    grown[out->n_parts++] =
        (struct dcp_torch_out_part){ storage, tensor, begin, end, at };
}

json_t *dcp_torch_out_view(struct dcp_torch_out *out, size_t storage, int ndim,
                           const int64_t *shape)
{
    struct dcp_torch_out_view *grown =
        grow(out, out->views, &out->cap_views, out->n_views, sizeof *grown);

    if (!grown)
        return NULL;
    out->views = grown;
    struct dcp_torch_out_view *view = &grown[out->n_views++];
    *view = (struct dcp_torch_out_view){ .storage = storage, .ndim = ndim };
    if (ndim)
        memcpy(view->shape, shape, (size_t)ndim * sizeof *shape);
    return dcp_py_new(DCP_PY_VIEW, json_integer((json_int_t)(out->n_views - 1)));
}

json_t *dcp_torch_out_tensor(struct dcp_torch_out *out, const struct dcp_catalog *catalog,
                             int tensor)
{
    const struct dcp_tensor *t = &catalog->tensors[tensor];
    size_t storage = dcp_torch_out_storage(out, t->dtype, t->n_elems, NULL);

    if (t->n_elems)
        dcp_torch_out_part(out, storage, tensor, 0, t->n_elems, 0);
    return dcp_torch_out_view(out, storage, t->ndim, t->shape);
}

bool dcp_torch_out_has(const struct dcp_torch_out *out, int tensor)
{
    for (size_t p = 0; p < out->n_parts; p++)
        if (out->parts[p].tensor == tensor)
            return true;
    return false;
}

json_t *dcp_torch_out_value(struct dcp_torch_out *out, const struct dcp_catalog *catalog,
                            const json_t *value)
{
    const char *name = json_string_value(dcp_py_get(value, DCP_PY_TENSOR));
    json_t *copy = json_copy((json_t *)(uintptr_t)value);
    struct dcp_py_parts parts = dcp_py_children(copy);
    bool ok = copy != NULL;

    if (name) {
        int tensor = dcp_catalog_find(catalog, name);
        json_decref(copy);
        return tensor < 0 || catalog->tensors[tensor].tied_to
                   ? json_null()
                   : dcp_torch_out_tensor(out, catalog, tensor);
    }
    while (ok && dcp_py_next(&parts))
        ok = dcp_py_put(&parts, dcp_torch_out_value(out, catalog, parts.value));
    if (!ok) {
        json_decref(copy);
        copy = NULL;
    }
    return copy;
}

/* -- the archive ------------------------------------------------------------------- */

static bool take_view(struct dcp_torch_writer *w, const json_t *value)
{
    const struct dcp_torch_out *out = w->self;
    const json_t *index = json_object_get(value, DCP_PY_VIEW);
    size_t i = (size_t)json_integer_value(index);

    if (!json_is_integer(index) || i >= out->n_views)
        return false;
    const struct dcp_torch_out_view *view = &out->views[i];
    const struct dcp_torch_out_storage *storage = &out->storages[view->storage];
    dcp_torch_write_view(w->out, storage->dtype, view->ndim, view->shape, view->storage,
                         storage->n_elems);
    return true;
}

static int write_pickle(struct dcp_torch_out *out, const struct dcp_catalog *catalog,
                        struct dcp_pickle_out *pickle, struct dcp_error *err)
{
    struct dcp_arena *arena = dcp_arena_new();
    struct dcp_torch_writer w = { .catalog = catalog,
                                  .out = pickle,
                                  .arena = arena,
                                  .take = take_view,
                                  .self = out,
                                  .classes = out->classes };
    int rc =
        arena && out->tree && !out->failed ? DCP_OK : dcp_error_memory(err, out->name);

    if (!rc) {
        dcp_pickle_begin(pickle);
        rc = dcp_torch_write_value(&w, out->tree, err);
        dcp_pickle_end(pickle);
    }
    if (!rc)
        rc = dcp_buf_check(&pickle->buf, err);
    dcp_arena_free(arena);
    return rc;
}

static uint64_t storage_bytes(const struct dcp_torch_out_storage *storage)
{
    return (uint64_t)storage->n_elems * dcp_dtype_size(storage->dtype);
}

static int plan(struct dcp_torch_out *out, struct dcp_catalog *catalog,
                struct dcp_torch_archive *archive, struct dcp_error *err)
{
    DCP_CLEANUP_FREE uint64_t *bytes = dcp_mem_calloc(out->n_storages, sizeof *bytes);
    struct dcp_pickle_out pickle = { 0 };
    int rc = bytes ? write_pickle(out, catalog, &pickle, err)
                   : dcp_error_memory(err, out->name);

    for (size_t s = 0; s < out->n_storages && !rc; s++)
        bytes[s] = storage_bytes(&out->storages[s]);
    if (!rc)
        rc = dcp_torch_archive_plan(catalog, out->name, &pickle.buf, 0, bytes,
                                    out->n_storages, archive, err);
    dcp_pickle_out_fini(&pickle);
    for (size_t s = 0; s < out->n_storages && !rc; s++)
        if (out->storages[s].data) {
            struct dcp_zip_out *record = &archive->storages[s];
            record->data = out->storages[s].data;
            record->crc32 = dcp_hash_crc32(0, record->data, (size_t)record->size_bytes);
        }
    return rc;
}

static int by_place(const void *a, const void *b)
{
    const struct dcp_torch_out_part *x = a, *y = b;

    if (x->storage != y->storage)
        return x->storage < y->storage ? -1 : 1;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->end - x->begin < y->end - y->begin ? -1 : 1;
}

/* -- assign ------------------------------------------------------------------------ */

static int add_part(const struct dcp_torch_out *out,
                    const struct dcp_torch_out_part *part, uint64_t offset, int file,
                    struct dcp_catalog *catalog, struct dcp_error *err)
{
    const struct dcp_torch_out_storage *storage = &out->storages[part->storage];
    uint64_t elem = dcp_dtype_size(storage->dtype);
    const struct dcp_piece piece = {
        .tensor = part->tensor,
        .rank = out->rank < catalog->world_size ? out->rank : 0,
        .region = { .kind = DCP_FLAT, .begin = part->begin, .end = part->end },
        .file = file,
        .offset = offset + (uint64_t)part->at * elem,
        .stored_size = (uint64_t)(part->end - part->begin) * elem,
    };
    return dcp_catalog_add_piece(catalog, &piece, err);
}

/* The parts of storage s begin at part *p; zeros fill what lies between them. */
static int lay_storage(const struct dcp_torch_out *out, size_t s, size_t *p,
                       uint64_t offset, int file, struct dcp_target *target,
                       struct dcp_error *err)
{
    const struct dcp_torch_out_storage *storage = &out->storages[s];
    uint64_t elem = dcp_dtype_size(storage->dtype), at = 0;
    int rc = DCP_OK;

    for (; *p < out->n_parts && out->parts[*p].storage == s && !rc; (*p)++) {
        const struct dcp_torch_out_part *part = &out->parts[*p];
        uint64_t begin = (uint64_t)part->at * elem;
        rc = dcp_literals_zeros(target, file, offset + at, begin - at, err);
        if (!rc)
            rc = add_part(out, part, offset, file, target->catalog, err);
        at = begin + (uint64_t)(part->end - part->begin) * elem;
    }
    if (rc || storage->data)
        return rc;
    return dcp_literals_zeros(target, file, offset + at, storage_bytes(storage) - at,
                              err);
}

int dcp_torch_out_assign(struct dcp_torch_out *out, struct dcp_target *target,
                         struct dcp_torch_outs *outs, struct dcp_error *err)
{
    struct dcp_torch_archive *items = dcp_mem_grow(outs->items, &outs->cap, outs->n + 1,
                                                   sizeof *items),
                             *archive;
    size_t p = 0;

    if (!items)
        return dcp_error_memory(err, out->name);
    outs->items = items;
    archive = &items[outs->n];
    DCP_TRY(plan(out, target->catalog, archive, err));
    const struct dcp_file entry = { .name = out->name,
                                    .rank = out->rank,
                                    .size_bytes = archive->size_bytes };
    int rc = dcp_catalog_add_file(target->catalog, &entry, &archive->file, err);
    if (out->n_parts)
        qsort(out->parts, out->n_parts, sizeof *out->parts, by_place);
    for (size_t s = 0; s < out->n_storages && !rc; s++)
        rc = lay_storage(out, s, &p, archive->storages[s].offset, archive->file, target,
                         err);
    outs->n++;
    return rc ? rc : dcp_torch_archive_headers(archive, target, err);
}

void dcp_torch_outs_fini(struct dcp_torch_outs *outs)
{
    free(outs->items);
    free(outs->order);
    *outs = (struct dcp_torch_outs){ 0 };
}

/* -- finalize ---------------------------------------------------------------------- */

static uint32_t skip_zeros(uint32_t crc, uint64_t n)
{
    static const unsigned char zeros[1 << 12];

    while (n) {
        size_t step = n < sizeof zeros ? (size_t)n : sizeof zeros;
        crc = dcp_hash_crc32(crc, zeros, step);
        n -= step;
    }
    return crc;
}

static int by_offset(const void *a, const void *b, void *arg)
{
    const struct dcp_catalog *catalog = arg;
    const struct dcp_piece *x = &catalog->pieces[*(const size_t *)a];
    const struct dcp_piece *y = &catalog->pieces[*(const size_t *)b];

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int make_order(struct dcp_torch_outs *outs, struct dcp_catalog *catalog,
                      struct dcp_error *err)
{
    if (outs->order)
        return DCP_OK;
    outs->order = dcp_mem_calloc(catalog->n_pieces, sizeof *outs->order);
    if (!outs->order)
        return dcp_error_memory(err, "the pieces of a target");
    for (size_t p = 0; p < catalog->n_pieces; p++)
        outs->order[p] = p;
    qsort_r(outs->order, catalog->n_pieces, sizeof *outs->order, by_offset, catalog);
    return DCP_OK;
}

/* Where the pieces of a file begin in the order. */
static size_t first_of(const struct dcp_torch_outs *outs,
                       const struct dcp_catalog *catalog, int file)
{
    size_t begin = 0, end = catalog->n_pieces;

    while (begin < end) {
        size_t middle = begin + (end - begin) / 2;
        if (catalog->pieces[outs->order[middle]].file < file)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* The crc of a record, from those of the pieces in it, which are the next in the order,
 * and of zeros between. */
static void sum_storage(const struct dcp_torch_outs *outs,
                        const struct dcp_catalog *catalog, int file, size_t *p,
                        struct dcp_zip_out *record)
{
    uint64_t at = record->offset, end = record->offset + record->size_bytes;
    uint32_t crc = 0;

    for (; *p < catalog->n_pieces; (*p)++) {
        const struct dcp_piece *piece = &catalog->pieces[outs->order[*p]];
        if (piece->file != file || piece->offset >= end)
            break;
        if (!piece->stored_size)
            continue;
        crc = skip_zeros(crc, piece->offset - at);
        crc = dcp_hash_crc32_combine(crc, piece->crc32, piece->stored_size);
        at = piece->offset + piece->stored_size;
    }
    record->crc32 = skip_zeros(crc, end - at);
}

int dcp_torch_outs_finalize(struct dcp_torch_outs *outs, struct dcp_target *target,
                            int rank, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    int rc = make_order(outs, catalog, err);

    for (size_t i = 0; i < outs->n && !rc; i++) {
        struct dcp_torch_archive *archive = &outs->items[i];
        if (catalog->files[archive->file].rank != rank)
            continue;
        size_t p = first_of(outs, catalog, archive->file);
        for (size_t s = 0; s < archive->n_storages; s++)
            if (!archive->storages[s].data)
                sum_storage(outs, catalog, archive->file, &p, &archive->storages[s]);
        rc = dcp_torch_archive_tail(archive, target, err);
    }
    return rc;
}
