/* out: storages made of parts. */
#include "out.h"
#include "archive.h"
#include "base/hash.h"
#include "base/mem.h"
#include "formats/pickle/py.h"
#include <string.h>

enum { ZEROS = 1 << 16 };

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

static const unsigned char zeros[ZEROS];

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

/* -- layout ------------------------------------------------------------------------ */

static int add_zeros(struct dcp_catalog *catalog, struct dcp_literals *literals, int file,
                     uint64_t offset, uint64_t n, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (uint64_t at = 0; at < n && !rc; at += ZEROS)
        rc = dcp_literals_add(literals, catalog, file, offset + at, zeros,
                              n - at < ZEROS ? (size_t)(n - at) : ZEROS, err);
    return rc;
}

static int add_part(const struct dcp_torch_out *out,
                    const struct dcp_torch_out_part *part, uint64_t offset, int file,
                    struct dcp_catalog *catalog, struct dcp_error *err)
{
    const struct dcp_torch_out_storage *storage = &out->storages[part->storage];
    uint64_t elem = dcp_dtype_size(storage->dtype);
    const struct dcp_piece piece = {
        .tensor = part->tensor,
        .rank = out->rank < catalog->world ? out->rank : 0,
        .region = { .kind = DCP_FLAT, .begin = part->begin, .end = part->end },
        .file = file,
        .offset = offset + (uint64_t)part->at * elem,
        .stored_size = (uint64_t)(part->end - part->begin) * elem,
    };
    return dcp_catalog_add_piece(catalog, &piece, err);
}

/* The parts of storage s begin at part *p; zeros fill what lies between them. */
static int lay_storage(const struct dcp_torch_out *out, size_t s, size_t *p,
                       uint64_t offset, int file, struct dcp_catalog *catalog,
                       struct dcp_literals *literals, struct dcp_error *err)
{
    const struct dcp_torch_out_storage *storage = &out->storages[s];
    uint64_t elem = dcp_dtype_size(storage->dtype), at = 0;
    int rc = DCP_OK;

    for (; *p < out->n_parts && out->parts[*p].storage == s && !rc; (*p)++) {
        const struct dcp_torch_out_part *part = &out->parts[*p];
        uint64_t begin = (uint64_t)part->at * elem;
        rc = add_zeros(catalog, literals, file, offset + at, begin - at, err);
        if (!rc)
            rc = add_part(out, part, offset, file, catalog, err);
        at = begin + (uint64_t)(part->end - part->begin) * elem;
    }
    if (rc || storage->data)
        return rc;
    return add_zeros(catalog, literals, file, offset + at, storage_bytes(storage) - at,
                     err);
}

int dcp_torch_out_layout(struct dcp_torch_out *out, struct dcp_catalog *catalog,
                         struct dcp_literals *literals, struct dcp_error *err)
{
    struct dcp_torch_archive archive;
    size_t p = 0;
    int file;

    int rc = plan(out, catalog, &archive, err);
    if (rc)
        return rc;
    const struct dcp_file entry = { .name = out->name,
                                    .rank = out->rank,
                                    .size_bytes = archive.size_bytes };
    rc = dcp_catalog_add_file(catalog, &entry, &file, err);
    if (out->n_parts)
        qsort(out->parts, out->n_parts, sizeof *out->parts, by_place);
    for (size_t s = 0; s < out->n_storages && !rc; s++)
        rc = lay_storage(out, s, &p, archive.storages[s].offset, file, catalog, literals,
                         err);
    return rc ? rc : dcp_torch_archive_headers(&archive, file, catalog, literals, err);
}

/* -- seal -------------------------------------------------------------------------- */

static uint32_t skip_zeros(uint32_t crc, uint64_t n)
{
    while (n) {
        size_t step = n < ZEROS ? (size_t)n : ZEROS;
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

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The pieces with bytes in a file, in order. NULL: out of memory. */
static size_t *list_pieces(struct dcp_catalog *catalog, int file, size_t *out_n)
{
    size_t n = 0;

    for (size_t p = 0; p < catalog->n_pieces; p++)
        n += catalog->pieces[p].file == file && catalog->pieces[p].stored_size;
    size_t *list = dcp_mem_calloc(n, sizeof *list);
    *out_n = 0;
    for (size_t p = 0; list && p < catalog->n_pieces; p++)
        if (catalog->pieces[p].file == file && catalog->pieces[p].stored_size)
            list[(*out_n)++] = p;
    if (list && n)
        qsort_r(list, n, sizeof *list, by_offset, catalog);
    return list;
}

/* The crc of a record, from those of the pieces in it and of zeros between. */
static void sum_storage(const struct dcp_catalog *catalog, struct dcp_zip_out *record,
                        const size_t *pieces, size_t n, size_t *p)
{
    uint64_t at = record->offset, end = record->offset + record->size_bytes;
    uint32_t crc = 0;

    for (; *p < n && catalog->pieces[pieces[*p]].offset < end; (*p)++) {
        const struct dcp_piece *piece = &catalog->pieces[pieces[*p]];
        crc = skip_zeros(crc, piece->offset - at);
        crc = dcp_hash_crc32_combine(crc, piece->crc32, piece->stored_size);
        at = piece->offset + piece->stored_size;
    }
    record->crc32 = skip_zeros(crc, end - at);
}

int dcp_torch_out_seal(struct dcp_torch_out *out, struct dcp_catalog *catalog,
                       struct dcp_literals *literals, struct dcp_error *err)
{
    struct dcp_torch_archive archive = { 0 };
    size_t n = 0, p = 0;
    int file = -1;

    int rc = plan(out, catalog, &archive, err);
    for (size_t f = 0; f < catalog->n_files && file < 0; f++)
        if (!strcmp(catalog->files[f].name, out->name))
            file = (int)f;
    DCP_CLEANUP_FREE size_t *pieces = list_pieces(catalog, file, &n);
    if (!rc && !pieces)
        rc = dcp_error_memory(err, out->name);
    for (size_t s = 0; s < archive.n_storages && !rc; s++)
        if (!out->storages[s].data)
            sum_storage(catalog, &archive.storages[s], pieces, n, &p);
    return rc ? rc : dcp_torch_archive_tail(&archive, file, catalog, literals, err);
}
