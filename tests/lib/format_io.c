/* format_io: a reader and a writer that only tests use. */
#include "lib/format_io.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/mem.h"
#include "core/plan/target.h"
#include "lib/format_pieces.h"
#include <isa-l/igzip_lib.h>
#include <stdlib.h>
#include <string.h>

int format_location_open(const char *path, struct format_location *out,
                         struct dcp_error *err)
{
    char *dir = NULL, *name = NULL;
    int rc;

    *out = (struct format_location){ 0 };
    if (dcp_fs_is_dir(path)) {
        rc = dcp_store_dir(&out->store, path, false, err);
        name = strdup("");
    } else {
        rc = dcp_fs_split(path, &dir, &name) ? DCP_OK : dcp_error_memory(err, "a path");
        if (!rc)
            rc = dcp_store_dir(&out->store, dir, false, err);
    }
    out->name = name;
    out->source =
        (struct dcp_source){ .store = &out->store, .name = name, .is_dir = !dir };
    free(dir);
    return rc;
}

void format_location_close(struct format_location *location)
{
    if (location->store.ops)
        dcp_store_free(&location->store);
    free(location->name);
}

static int read_extent(const struct dcp_source *source, const char *file, uint64_t offset,
                       void *out, size_t n, struct dcp_error *err)
{
    const struct dcp_store *store = source->store;
    struct dcp_store_file *open = NULL;
    char *path = source->is_dir && source->name[0] ? dcp_fs_join(source->name, file)
                                                   : strdup(file);

    int rc = store->ops->open(store->self, path, &open, err);
    if (!rc) {
        rc = n ? store->ops->read_at(store->self, open, offset, out, n, err) : DCP_OK;
        store->ops->close(store->self, open, NULL);
    }
    free(path);
    return rc;
}

/* From the strided bytes of an extent to dense ones. */
static void gather(const struct dcp_tensor *tensor, const int64_t *stride,
                   const unsigned char *in, unsigned char *out)
{
    size_t item = dcp_dtype_size(tensor->dtype);
    int64_t at[DCP_MAX_NDIM] = { 0 };

    for (int64_t e = 0; e < tensor->n_elems; e++) {
        int64_t from = 0;
        for (int d = 0; d < tensor->ndim; d++)
            from += at[d] * stride[d];
        memcpy(out + (size_t)e * item, in + (size_t)from * item, item);
        for (int d = tensor->ndim; d-- > 0;) {
            if (++at[d] < tensor->shape[d])
                break;
            at[d] = 0;
        }
    }
}

/* Bytes from a piece's first element to behind its last. */
static size_t span_of(const struct dcp_tensor *tensor, const struct dcp_piece *piece)
{
    int64_t last = 0;

    if (!piece->stride || !tensor->n_elems)
        return (size_t)dcp_tensor_bytes(tensor);
    for (int d = 0; d < tensor->ndim; d++)
        last += (tensor->shape[d] - 1) * piece->stride[d];
    return (size_t)(last + 1) * dcp_dtype_size(tensor->dtype);
}

/* The first n decoded bytes behind `skip` of a deflated extent; in and out are on the
 * heap, out takes the place of in. */
static int inflate_extent(unsigned char **data, size_t stored_size, size_t skip, size_t n,
                          struct dcp_error *err)
{
    struct inflate_state *state = malloc(sizeof *state);
    unsigned char *out = calloc(1, skip + n + 1);

    isal_inflate_init(state);
    state->next_in = *data;
    state->avail_in = (uint32_t)stored_size;
    state->next_out = out;
    state->avail_out = (uint32_t)(skip + n);
    int rc = skip + n && (isal_inflate(state) || state->avail_out)
                 ? dcp_error_set(err, DCP_E_CORRUPT, "a deflated extent is corrupt")
                 : DCP_OK;
    memmove(out, out + skip, n);
    free(state);
    free(*data);
    *data = out;
    return rc;
}

/* The array that a piece is, as a tensor of its own. */
static struct dcp_tensor part_of(const struct dcp_catalog *catalog,
                                 const struct dcp_tensor *tensor,
                                 const struct dcp_piece *piece, int64_t *n_elems)
{
    struct dcp_tensor part = *tensor;

    part.n_elems = dcp_piece_elems(catalog, piece);
    if (piece->region.kind == DCP_BOX)
        part.shape = piece->region.size;
    if (piece->region.kind == DCP_FLAT) {
        part.ndim = 1;
        part.shape = n_elems;
    }
    *n_elems = part.n_elems;
    return part;
}

/* Numbers that stand with their highest byte first. */
static void turn_round(unsigned char *data, size_t n, int width)
{
    for (size_t at = 0; width && at < n; at += (size_t)width)
        for (int i = 0; i < width / 2; i++) {
            unsigned char byte = data[at + (size_t)i];
            data[at + (size_t)i] = data[at + (size_t)(width - 1 - i)];
            data[at + (size_t)(width - 1 - i)] = byte;
        }
}

/* The bytes of a piece, dense; caller frees. */
static int read_piece(const struct dcp_source *source, const struct dcp_catalog *catalog,
                      const struct dcp_tensor *part, const struct dcp_piece *piece,
                      unsigned char **out, struct dcp_error *err)
{
    size_t n = (size_t)piece->stored_size, bytes = (size_t)dcp_tensor_bytes(part);
    unsigned char *raw = malloc(n + 1), *dense = malloc(bytes + 1);
    int rc = DCP_OK;

    if (piece->file < 0)
        memcpy(raw, piece->data, n);
    else
        rc = read_extent(source, catalog->files[piece->file].name, piece->offset, raw, n,
                         err);
    if (!rc && piece->codec == DCP_CODEC_DEFLATE_STREAM) {
        size_t span = span_of(part, piece);
        rc = inflate_extent(&raw, n, (size_t)piece->skip, span, err);
        n = span;
    }
    if (!rc && piece->stride)
        gather(part, piece->stride, raw, dense);
    else if (!rc && n == bytes)
        memcpy(dense, raw, n);
    else if (!rc)
        rc =
            dcp_error_set(err, DCP_E_CORRUPT, "tensor '%s' has a wrong size", part->name);
    if (!rc)
        turn_round(dense, bytes, piece->swap_bytes);
    free(raw);
    *out = dense;
    return rc;
}

/* Puts a piece's elements where they belong, one by one. */
static void put_piece(const struct dcp_tensor *tensor, const struct dcp_tensor *part,
                      const struct dcp_piece *piece, const unsigned char *in,
                      unsigned char *out)
{
    size_t item = dcp_dtype_size(tensor->dtype);
    int64_t at[DCP_MAX_NDIM] = { 0 };

    if (piece->region.kind != DCP_BOX) {
        memcpy(out + (size_t)piece->region.begin * item, in,
               (size_t)part->n_elems * item);
        return;
    }
    for (int64_t e = 0; e < part->n_elems; e++) {
        int64_t to = 0;
        for (int d = 0; d < tensor->ndim; d++)
            to = to * tensor->shape[d] + piece->region.offset[d] + at[d];
        memcpy(out + (size_t)to * item, in + (size_t)e * item, item);
        for (int d = tensor->ndim; d-- > 0;) {
            if (++at[d] < part->shape[d])
                break;
            at[d] = 0;
        }
    }
}

int format_read_tensor(const struct dcp_source *source, const struct dcp_catalog *catalog,
                       int tensor, void **out, struct dcp_error *err)
{
    const struct dcp_tensor *t = &catalog->tensors[tensor];
    unsigned char *whole = malloc((size_t)dcp_tensor_bytes(t) + 1);
    int64_t n_elems = 0;
    int rc = DCP_OK;

    *out = NULL;
    for (size_t i = 0; i < t->n_pieces && !rc; i++) {
        const struct dcp_piece *piece = &catalog->pieces[t->first_piece + i];
        int64_t n;
        struct dcp_tensor part = part_of(catalog, t, piece, &n);
        unsigned char *data;
        rc = read_piece(source, catalog, &part, piece, &data, err);
        if (!rc)
            put_piece(t, &part, piece, data, whole);
        free(data);
        n_elems += n;
    }
    if (!rc && n_elems < t->n_elems)
        rc = dcp_error_set(err, DCP_E_CORRUPT, "tensor '%s' has no data", t->name);
    if (rc)
        free(whole);
    else
        *out = whole;
    return rc;
}

/* -- writing ------------------------------------------------------------------------- */

struct writer {
    struct dcp_store *store;
    struct dcp_catalog *target;
    struct dcp_store_file **files;
    size_t cap; /* of files: finish may add some */
};

static int put(struct writer *w, int file, uint64_t offset, const void *data, size_t n,
               struct dcp_error *err)
{
    const struct dcp_store_ops *ops = w->store->ops;

    if (file < 0 || (size_t)file >= w->target->n_files)
        return dcp_error_set(err, DCP_E_CORRUPT, "bytes for no file");
    if ((size_t)file >= w->cap) {
        size_t old = w->cap;
        struct dcp_store_file **grown =
            dcp_mem_grow(w->files, &w->cap, (size_t)file + 1, sizeof *grown);
        if (!grown)
            return dcp_error_memory(err, "files");
        memset(grown + old, 0, (w->cap - old) * sizeof *grown);
        w->files = grown;
    }
    if (w->target->files[file].size_bytes < offset + n)
        w->target->files[file].size_bytes = offset + n;
    if (!w->files[file]) {
        int rc = ops->create(w->store->self, w->target->files[file].name,
                             w->target->files[file].size_bytes, &w->files[file], err);
        if (rc)
            return rc;
    }
    return n ? ops->write_at(w->store->self, w->files[file], offset, data, n, err)
             : DCP_OK;
}

static int put_literals(struct writer *w, struct dcp_literals *literals,
                        struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t i = 0; i < literals->n && !rc; i++)
        rc = put(w, literals->items[i].file, literals->items[i].offset,
                 literals->items[i].data, literals->items[i].size_bytes, err);
    literals->n = 0;
    return rc;
}

/* Adds the tensors that are tied, or those that are not. */
static int add_tensors(const struct dcp_catalog *catalog, bool tied, bool says,
                       struct dcp_catalog *target, struct dcp_error *err)
{
    int rc = DCP_OK;

    for (size_t i = 0; i < catalog->n_tensors && !rc; i++) {
        struct dcp_tensor tensor = catalog->tensors[i];
        if (!says)
            tensor.tied_to = NULL;
        if ((tensor.tied_to != NULL) != tied)
            continue;
        rc = dcp_catalog_add_tensor(target, &tensor, NULL, err);
    }
    return rc;
}

/* A target with the tensors and objects of the source. Second names come last, where the
 * format can say that they are. */
static int make_target(const struct dcp_catalog *catalog, const struct dcp_format *format,
                       struct dcp_catalog **out, struct dcp_error *err)
{
    bool says = format->flags & DCP_FORMAT_TIES;
    int rc = dcp_catalog_new(out, err);

    if (!rc && format->partition == dcp_partition_by_layout)
        (*out)->layout = "replicated";
    if (!rc)
        rc = add_tensors(catalog, false, says, *out, err);
    if (!rc)
        rc = add_tensors(catalog, true, says, *out, err);
    for (size_t i = 0; i < catalog->n_objects && !rc; i++)
        rc = dcp_catalog_add_object(*out, &catalog->objects[i], err);
    return rc;
}

/* One piece of a target out of the whole tensor. */
static int write_piece(struct writer *w, struct dcp_piece *piece, unsigned char *dense,
                       struct dcp_error *err)
{
    const struct dcp_tensor *t = &w->target->tensors[piece->tensor];
    size_t n = (size_t)piece->stored_size;
    unsigned char *raw = malloc(n + 1);

    if (t->n_elems)
        format_move_elements(t, piece, raw, dense, true);
    piece->has_crc32 = true;
    piece->crc32 = dcp_hash_crc32(0, raw, n);
    int rc = put(w, piece->file, piece->offset, raw, n, err);
    free(raw);
    return rc;
}

static int put_tensors(struct writer *w, const struct dcp_source *source,
                       const struct dcp_catalog *catalog, struct dcp_error *err)
{
    int rc = dcp_catalog_sort(w->target, err);

    for (size_t i = 0; i < catalog->n_tensors && !rc; i++) {
        const struct dcp_tensor *from = &catalog->tensors[i];
        const struct dcp_tensor *to =
            &w->target->tensors[dcp_catalog_find(w->target, from->name)];
        void *data = NULL, *cast;
        if (!to->n_pieces)
            continue;
        rc = format_read_tensor(source, catalog, (int)i, &data, err);
        if (rc)
            return rc;
        cast = malloc((size_t)dcp_tensor_bytes(to) + 1);
        rc = dcp_cast(from->dtype, to->dtype, data, cast, (size_t)from->n_elems, err);
        for (size_t p = 0; p < to->n_pieces && !rc; p++)
            rc = write_piece(w, &w->target->pieces[to->first_piece + p], cast, err);
        free(cast);
        free(data);
    }
    return rc;
}

int format_write(const struct dcp_source *source, const struct dcp_catalog *catalog,
                 const struct dcp_format *format,
                 const struct dcp_target_options *options, struct dcp_store *target,
                 struct dcp_error *err)
{
    struct writer w = { .store = target };
    struct dcp_target open = { .format = format, .options = options };

    int rc = make_target(catalog, format, &w.target, err);
    open.catalog = w.target;
    if (!rc)
        rc = dcp_target_open(&open, DCP_CODEC_NONE, err);
    if (!rc)
        rc = put_literals(&w, &open.literals, err);
    if (!rc)
        rc = put_tensors(&w, source, catalog, err);
    if (!rc)
        rc = dcp_target_finalize(&open, 0, err);
    if (!rc)
        rc = dcp_target_finish(&open, err);
    if (!rc)
        rc = put_literals(&w, &open.literals, err);
    for (size_t i = 0; i < w.cap && i < w.target->n_files; i++)
        if (w.files[i]) {
            if (!rc)
                rc = target->ops->sync(target->self, w.files[i],
                                       w.target->files[i].size_bytes, err);
            target->ops->close(target->self, w.files[i], NULL);
        }
    free(w.files);
    dcp_target_close(&open);
    dcp_catalog_free(w.target);
    return rc;
}
