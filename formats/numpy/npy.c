/* npy: the file of numpy.save: one array. Its only tensor is called "tensor". */
#include "npy.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/literals.h"
#include "formats/common/roles.h"
#include <stdio.h>
#include <string.h>

#define DEFAULT_NAME "tensor.npy"
#define TENSOR_NAME "tensor"

enum { BID = 8 * DCP_NPY_MAGIC_BYTES };

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    char magic[DCP_NPY_MAGIC_BYTES];

    return !source->is_dir && !dcp_input_open(&in, source, NULL, NULL) &&
                   !dcp_input_read(&in, 0, magic, sizeof magic, NULL) &&
                   !memcmp(magic, DCP_NPY_MAGIC, sizeof magic)
               ? BID
               : 0;
}

static int read_head(const struct dcp_input *in, struct dcp_npy *out,
                     struct dcp_error *err)
{
    size_t n = in->size_bytes < DCP_NPY_MAX_HEAD_BYTES ? (size_t)in->size_bytes
                                                       : DCP_NPY_MAX_HEAD_BYTES;
    DCP_CLEANUP_FREE void *data = NULL;
    char shown[300];
    int rc = dcp_input_read_new(in, 0, n, &data, err);

    snprintf(shown, sizeof shown, "'%s'", in->shown);
    return rc ? rc : dcp_npy_parse(data, n, in->size_bytes, shown, out, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    struct dcp_npy npy;
    int file, tensor;

    catalog->format = dcp_format_npy.name;
    DCP_TRY(dcp_input_open(&in, source, NULL, err));
    DCP_TRY(read_head(&in, &npy, err));
    const struct dcp_file entry = { .name = dcp_input_base(&in, source),
                                    .size_bytes = in.size_bytes };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &file, err));
    DCP_TRY(dcp_catalog_add_tensor(catalog,
                                   &(struct dcp_tensor){ .name = TENSOR_NAME,
                                                         .dtype = npy.dtype,
                                                         .ndim = npy.ndim,
                                                         .shape = npy.shape },
                                   &tensor, err));
    DCP_TRY(dcp_catalog_add_piece(
        catalog,
        &(struct dcp_piece){ .tensor = tensor,
                             .file = file,
                             .offset = npy.begin,
                             .stored_size = npy.size_bytes,
                             .swap_bytes = npy.swap_bytes,
                             .stride = npy.dense ? NULL : npy.stride },
        err));
    return dcp_roles_find_plain(catalog, err);
}

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    const char *name = target->options->name;
    DCP_CLEANUP_BUF struct dcp_buf head = { 0 };
    int file;

    if (catalog->n_tensors != 1) {
        dcp_error_set(err, DCP_E_MISMATCH, "a .npy file cannot hold: %zu tensors",
                      catalog->n_tensors);
        dcp_error_hint(err, "--select takes one of them; --to npz writes a file of all");
        return DCP_E_MISMATCH;
    }
    const struct dcp_tensor *tensor = &catalog->tensors[0];
    struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];
    DCP_TRY(dcp_npy_write(tensor, "a .npy file", &head, err));
    piece->offset = head.size_bytes;
    piece->stored_size = dcp_tensor_bytes(tensor);
    const struct dcp_file entry = { .name = name ? name : DEFAULT_NAME,
                                    .size_bytes = piece->offset + piece->stored_size };
    int rc = dcp_catalog_add_file(catalog, &entry, &file, err);
    piece->file = file;
    return rc ? rc : dcp_literals_take(target, file, 0, &head, err);
}

const struct dcp_format dcp_format_npy = {
    .name = "npy",
    .help = "NumPy array file, one tensor",
    .suffixes = ".npy",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM,
    .probe = probe,
    .index = index_source,
    .partition = dcp_partition_whole,
    .assign = assign,
};
