/* torch: the files of torch.save (.bin, .pt, .pth, .ckpt): read in all three forms, and
 * written as zip. */
#include "torch.h"
#include "base/mem.h"
#include "formats.h"
#include "roles.h"
#include "torch_archive.h"
#include <string.h>

#define DEFAULT_NAME "pytorch_model.bin"

enum {
    BID = 160
}; /* the bits of two magic numbers and of a record's name; as many
    * pickles or members stand at the beginning of the other forms */

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };

    return !source->is_dir && !dcp_torch_open(&file, source, NULL, NULL) ? BID : 0;
}

static const char *const form_names[] = {
    [DCP_TORCH_ZIP] = "zip",
    [DCP_TORCH_STREAM] = "stream",
    [DCP_TORCH_TAR] = "tar",
};

int dcp_torch_index_file(const struct dcp_source *source, const char *name,
                         struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
    int index;

    int rc = dcp_torch_open(&file, source, name, err);
    file.takes_streams = true;
    if (!rc)
        rc = dcp_torch_read_tree(&file, err);
    if (rc)
        return rc;
    catalog->version = form_names[file.form];
    rc = dcp_torch_add_file(&file, dcp_input_base(&file.in, source), 0, catalog, &index,
                            err);
    return rc ? rc : dcp_torch_tree_index(&file, catalog, index, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    catalog->format = dcp_format_torch.name;
    int rc = dcp_torch_index_file(source, NULL, catalog, err);
    return rc ? rc : dcp_roles_find_plain(catalog, err);
}

/* -- writing ------------------------------------------------------------------------- */

/* The archive; tensor_of[i] is the tensor in storage i. The same catalog gives the same
 * answer in layout and in seal. */
static int plan(struct dcp_catalog *catalog, const char *name,
                struct dcp_torch_archive *out, size_t **out_tensor_of,
                struct dcp_error *err)
{
    size_t *tensor_of =
        dcp_catalog_alloc(catalog, catalog->n_tensors + 1, sizeof *tensor_of);
    DCP_CLEANUP_FREE uint64_t *bytes = dcp_mem_calloc(catalog->n_tensors, sizeof *bytes);
    DCP_CLEANUP_BUF struct dcp_buf pickle = { 0 };
    size_t n = 0;

    *out_tensor_of = tensor_of;
    if (!tensor_of || !bytes)
        return dcp_error_memory(err, "a PyTorch file");
    int rc = dcp_torch_pickle(catalog, &pickle, tensor_of, &n, err);
    for (size_t i = 0; i < n && !rc; i++)
        bytes[i] = dcp_tensor_bytes(&catalog->tensors[tensor_of[i]]);
    return rc ? rc : dcp_torch_archive_plan(catalog, name, &pickle, bytes, n, out, err);
}

static int layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                  struct dcp_literals *literals, struct dcp_error *err)
{
    const char *name = options->name ? options->name : DEFAULT_NAME;
    struct dcp_torch_archive archive;
    size_t *tensor_of;
    int file;

    int rc = dcp_catalog_sort(catalog, err);
    if (!rc)
        rc = dcp_check_whole(catalog, "a PyTorch file", err);
    if (!rc)
        rc = plan(catalog, name, &archive, &tensor_of, err);
    if (rc)
        return rc;
    const struct dcp_file entry = { .name = name, .size_bytes = archive.size_bytes };
    rc = dcp_catalog_add_file(catalog, &entry, &file, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < archive.n_storages; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[tensor_of[i]];
        struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];
        piece->file = file;
        piece->offset = archive.storages[i].offset;
        piece->stored_size = archive.storages[i].size_bytes;
    }
    return dcp_torch_archive_headers(&archive, file, catalog, literals, err);
}

static int seal(struct dcp_catalog *catalog, int rank,
                const struct dcp_target_options *options, struct dcp_literals *literals,
                struct dcp_error *err)
{
    const char *name = options->name ? options->name : DEFAULT_NAME;
    struct dcp_torch_archive archive;
    size_t *tensor_of;
    int file = -1;

    if (rank != 0)
        return DCP_OK;
    int rc = plan(catalog, name, &archive, &tensor_of, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < archive.n_storages; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[tensor_of[i]];
        archive.storages[i].crc32 = catalog->pieces[tensor->first_piece].crc32;
    }
    for (size_t i = 0; i < catalog->n_files; i++)
        if (!strcmp(catalog->files[i].name, name))
            file = (int)i;
    return dcp_torch_archive_tail(&archive, file, catalog, literals, err);
}

const struct dcp_format dcp_format_torch = {
    .name = "torch",
    .help = "PyTorch file, as torch.save writes it (zip)",
    .suffixes = ".bin .pt .pth .ckpt",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM |
             DCP_FORMAT_OBJECTS | DCP_FORMAT_CRC32 | DCP_FORMAT_TIES | DCP_FORMAT_PLAIN,
    .probe = probe,
    .index = index_source,
    .layout = layout,
    .seal = seal,
};
