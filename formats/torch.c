/* torch: the files of torch.save (.bin, .pt, .pth, .ckpt): read in all three forms, and
 * written as zip. */
#include "torch.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats.h"
#include "roles.h"
#include <stdio.h>
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
    const struct dcp_file entry = { .name = dcp_input_base(&file.in, source),
                                    .size_bytes = file.in.size_bytes };
    rc = dcp_catalog_add_file(catalog, &entry, &index, err);
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

/* The records of a file, in their order; tensor_of[i] is the tensor in storage i. */
struct records {
    struct dcp_zip_out *items;
    size_t n, first_storage, n_storages;
    size_t *tensor_of;
    uint64_t directory, size_bytes;
};

enum { N_BEFORE = 4, N_AFTER = 2 }; /* records before and after the storages */

/* torch's rule: the file's base name without its last extension. */
static const char *make_root(struct dcp_catalog *catalog, const char *name)
{
    const char *slash = strrchr(name, '/');
    const char *base = slash ? slash + 1 : name, *dot = strrchr(base, '.');
    size_t n = dot ? (size_t)(dot - base) : strlen(base);
    char *root = dcp_catalog_alloc(catalog, n + 1, 1);

    if (root)
        memcpy(root, base, n);
    return !root || n ? root : "archive";
}

static const char *record_name(struct dcp_catalog *catalog, const char *root,
                               const char *record)
{
    size_t n = strlen(root) + strlen(record) + 2;
    char *name = dcp_catalog_alloc(catalog, n, 1);

    if (name)
        snprintf(name, n, "%s/%s", root, record);
    return name;
}

/* Decides all records and where they lie. The same catalog gives the same answer in
 * layout and in seal. */
static int plan_records(struct dcp_catalog *catalog,
                        const struct dcp_target_options *options, struct records *out,
                        struct dcp_error *err)
{
    const char *root = make_root(catalog, options->name ? options->name : DEFAULT_NAME);
    struct dcp_buf pickle = { 0 };
    char key[32], align[16];

    *out = (struct records){ .first_storage = N_BEFORE };
    out->tensor_of = dcp_catalog_alloc(catalog, catalog->n_tensors + 1, sizeof(size_t));
    out->items = dcp_catalog_alloc(catalog, catalog->n_tensors + N_BEFORE + N_AFTER,
                                   sizeof *out->items);
    if (!root || !out->tensor_of || !out->items)
        return dcp_error_memory(err, "a PyTorch file");
    int rc = dcp_torch_pickle(catalog, &pickle, out->tensor_of, &out->n_storages, err);
    if (rc)
        return rc;
    void *data = dcp_catalog_alloc(catalog, pickle.size_bytes, 1);
    if (data)
        memcpy(data, pickle.data, pickle.size_bytes);
    size_t pickle_size = pickle.size_bytes;
    dcp_buf_fini(&pickle);
    snprintf(align, sizeof align, "%d", DCP_TORCH_ALIGN);
    const char *alignment = dcp_catalog_text(catalog, align);
    const struct dcp_zip_out before[N_BEFORE] = {
        { .name = "data.pkl", .data = data, .size_bytes = pickle_size },
        { .name = ".format_version", .data = "1", .size_bytes = 1 },
        { .name = ".storage_alignment",
          .data = alignment,
          .size_bytes = alignment ? strlen(alignment) : 0 },
        { .name = "byteorder", .data = "little", .size_bytes = 6 },
    };
    const struct dcp_zip_out after[N_AFTER] = {
        { .name = "version", .data = "3\n", .size_bytes = 2 },
        { .name = ".data/serialization_id", .size_bytes = 40 },
    };
    bool ok = data && alignment;
    for (size_t i = 0; i < N_BEFORE; i++)
        out->items[out->n++] = before[i];
    for (size_t i = 0; i < out->n_storages && ok; i++) {
        snprintf(key, sizeof key, "data/%zu", i);
        out->items[out->n++] = (struct dcp_zip_out){
            .name = dcp_catalog_text(catalog, key),
            .size_bytes = dcp_tensor_bytes(&catalog->tensors[out->tensor_of[i]]),
        };
        ok = out->items[out->n - 1].name;
    }
    for (size_t i = 0; i < N_AFTER; i++)
        out->items[out->n++] = after[i];
    for (size_t i = 0; i < out->n && ok; i++) {
        struct dcp_zip_out *r = &out->items[i];
        if (r->data)
            r->crc32 = dcp_hash_crc32(0, r->data, (size_t)r->size_bytes);
        r->name = record_name(catalog, root, r->name);
        ok = r->name;
    }
    if (!ok)
        return dcp_error_memory(err, "a PyTorch file");
    dcp_zip_plan(out->items, out->n, DCP_TORCH_ALIGN, &out->directory, &out->size_bytes);
    return DCP_OK;
}

static int layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                  struct dcp_literals *literals, struct dcp_error *err)
{
    struct records records;
    int file;

    int rc = dcp_catalog_sort(catalog, err);
    if (!rc)
        rc = dcp_check_whole(catalog, "a PyTorch file", err);
    if (!rc)
        rc = plan_records(catalog, options, &records, err);
    if (rc)
        return rc;
    const struct dcp_file entry = { .name = options->name ? options->name : DEFAULT_NAME,
                                    .size_bytes = records.size_bytes };
    rc = dcp_catalog_add_file(catalog, &entry, &file, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < records.n_storages; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[records.tensor_of[i]];
        struct dcp_piece *piece = &catalog->pieces[tensor->first_piece];
        piece->file = file;
        piece->offset = records.items[records.first_storage + i].offset;
        piece->stored_size = records.items[records.first_storage + i].size_bytes;
    }
    return dcp_zip_write_headers(records.items, records.n, file, catalog, literals, err);
}

/* What the file's first record, which has no data, is filled with. */
static int add_serialization_id(struct dcp_catalog *catalog, struct records *records,
                                struct dcp_error *err)
{
    size_t n = records->n - 1, root_len = strcspn(records->items[0].name, "/") + 1;
    DCP_CLEANUP_FREE struct dcp_torch_id_record *before =
        dcp_mem_calloc(n, sizeof *before);
    char *id = dcp_catalog_alloc(catalog, 41, 1);

    if (!before || !id)
        return dcp_error_memory(err, "a PyTorch file");
    for (size_t i = 0; i < n; i++)
        before[i] = (struct dcp_torch_id_record){
            .name = records->items[i].name + root_len,
            .size_bytes = records->items[i].size_bytes,
            .crc32 = records->items[i].crc32,
        };
    struct dcp_zip_out *last = &records->items[n];
    last->data = id;
    int rc = dcp_torch_serialization_id(before, n, id, err);
    last->crc32 = dcp_hash_crc32(0, id, (size_t)last->size_bytes);
    return rc;
}

static int seal(struct dcp_catalog *catalog, int rank,
                const struct dcp_target_options *options, struct dcp_literals *literals,
                struct dcp_error *err)
{
    struct records records;
    int file = -1;

    if (rank != 0)
        return DCP_OK;
    int rc = plan_records(catalog, options, &records, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < records.n_storages; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[records.tensor_of[i]];
        records.items[records.first_storage + i].crc32 =
            catalog->pieces[tensor->first_piece].crc32;
    }
    const char *name = options->name ? options->name : DEFAULT_NAME;
    for (size_t i = 0; i < catalog->n_files; i++)
        if (!strcmp(catalog->files[i].name, name))
            file = (int)i;
    rc = add_serialization_id(catalog, &records, err);
    if (rc)
        return rc;
    const struct dcp_zip_out *id = &records.items[records.n - 1];
    rc = dcp_literals_add(literals, catalog, file, id->offset, id->data,
                          (size_t)id->size_bytes, err);
    return rc ? rc
              : dcp_zip_write_tail(records.items, records.n, records.directory, file,
                                   catalog, literals, err);
}

const struct dcp_format dcp_format_torch = {
    .name = "torch",
    .help = "PyTorch file, as torch.save writes it (zip)",
    .suffixes = ".bin .pt .pth .ckpt",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM |
             DCP_FORMAT_OBJECTS | DCP_FORMAT_CRC32 | DCP_FORMAT_TIES,
    .probe = probe,
    .index = index_source,
    .layout = layout,
    .seal = seal,
};
