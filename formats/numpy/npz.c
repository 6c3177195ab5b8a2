/* npz: the files of numpy.savez and numpy.savez_compressed, read, and the first also
 * written: a zip archive with a record "<name>.npy" for each tensor. */
#include "npz.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/archive/zip.h"
#include "formats/common/roles.h"
#include "npy.h"
#include <stdio.h>
#include <string.h>

enum { BID = 96, SUFFIX_BYTES = sizeof DCP_NPZ_SUFFIX - 1 };

/* An open archive. */
struct archive {
    struct dcp_input in;
    struct dcp_arena *arena;
    struct dcp_zip zip;
};

static void archive_close(struct archive *a)
{
    dcp_input_close(&a->in);
    dcp_arena_free(a->arena);
}

static int archive_open(struct archive *a, const struct dcp_source *source,
                        struct dcp_error *err)
{
    a->arena = dcp_arena_new();
    if (!a->arena)
        return dcp_error_memory(err, "a zip directory");
    DCP_TRY(dcp_input_open(&a->in, source, NULL, err));
    return dcp_zip_open(&a->in, 0, a->in.size_bytes, a->arena, &a->zip, err);
}

/* Also true of an archive of nothing, which is what savez makes of nothing. */
static bool holds_arrays(const struct archive *a)
{
    for (size_t i = 0; i < a->zip.n_records; i++)
        if (!dcp_str_ends(a->zip.records[i].name, DCP_NPZ_SUFFIX))
            return false;
    return true;
}

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP(archive_close) struct archive a = { 0 };

    return !source->is_dir && !archive_open(&a, source, NULL) && holds_arrays(&a) ? BID
                                                                                  : 0;
}

/* -- reading ------------------------------------------------------------------------- */

static int add_array(struct archive *a, const struct dcp_zip_record *record,
                     const struct dcp_npy *npy, int file, struct dcp_catalog *catalog,
                     struct dcp_error *err)
{
    struct dcp_tensor tensor = { .dtype = npy->dtype,
                                 .ndim = npy->ndim,
                                 .shape = npy->shape };
    struct dcp_piece piece = { .file = file,
                               .stride = npy->dense ? NULL : npy->stride,
                               .swap_bytes = npy->swap_bytes };

    tensor.name =
        dcp_arena_text_n(a->arena, record->name, strlen(record->name) - SUFFIX_BYTES);
    if (!tensor.name)
        return dcp_error_memory(err, "a NumPy archive");
    tensor.role = dcp_role_of_name(tensor.name, &tensor.param);
    if (record->deflated && npy->size_bytes) {
        piece.codec = DCP_CODEC_DEFLATE_STREAM;
        piece.offset = record->offset;
        piece.stored_size = record->stored_size;
        piece.skip = npy->begin;
    } else {
        piece.offset = record->offset + (record->deflated ? 0 : npy->begin);
        piece.stored_size = npy->size_bytes;
    }
    int rc = dcp_catalog_add_tensor(catalog, &tensor, &piece.tensor, err);
    if (!rc)
        rc = dcp_catalog_add_piece(catalog, &piece, err);
    if (rc)
        dcp_error_prefix(err, "'%s'", a->in.shown);
    return rc;
}

static int index_record(struct archive *a, const struct dcp_zip_record *record, int file,
                        struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *head = malloc(DCP_NPY_MAX_HEAD_BYTES);
    char shown[460];
    struct dcp_npy npy;
    size_t n = 0;

    if (!head)
        return dcp_error_memory(err, "a NumPy archive");
    snprintf(shown, sizeof shown, "'%s': '%s'", a->in.shown, DCP_SHOWN(record->name));
    DCP_TRY(dcp_zip_read_head(&a->in, record, DCP_NPY_MAX_HEAD_BYTES, head, &n, err));
    DCP_TRY(dcp_npy_parse(head, n, record->size_bytes, shown, &npy, err));
    return add_array(a, record, &npy, file, catalog, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    DCP_CLEANUP(archive_close) struct archive a = { 0 };
    int file;

    catalog->format = dcp_format_npz.name;
    DCP_TRY(archive_open(&a, source, err));
    if (!holds_arrays(&a))
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is a zip archive of other things than NumPy arrays",
                             a.in.shown);
    const struct dcp_file entry = { .name = dcp_input_base(&a.in, source),
                                    .size_bytes = a.in.size_bytes };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &file, err));
    DCP_TRY(dcp_zip_add_records(&a.zip, catalog, file, err));
    for (size_t i = 0; i < a.zip.n_records; i++)
        DCP_TRY(index_record(&a, &a.zip.records[i], file, catalog, err));
    return dcp_roles_find_plain(catalog, err);
}

const struct dcp_format dcp_format_npz = {
    .name = "npz",
    .help = "NumPy archive, an array for each tensor",
    .suffixes = ".npz",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM | DCP_FORMAT_CRC32,
    .probe = probe,
    .index = index_source,
    .open = dcp_npz_open,
    .partition = dcp_partition_whole,
    .assign = dcp_npz_assign,
    .finalize = dcp_npz_finalize,
    .close = dcp_npz_close,
};
