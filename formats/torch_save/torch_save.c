/* torch_save: the files of torch.save (.bin, .pt, .pth, .ckpt): read in all three forms,
 * and written as zip. */
#include "torch_save.h"
#include "base/hash.h"
#include "base/mem.h"
#include "formats/common/roles.h"
#include "formats/common/whole.h"
#include "formats/torch/archive.h"
#include "formats/torch/torch.h"
#include "formats/torch/value.h"
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

/* The archive, and the pickle in it. The same catalog gives the same answer in layout and
 * in seal. */
struct plan {
    struct dcp_torch_archive archive;
    struct dcp_torch_pickled_catalog pickle;
};

static void plan_fini(struct plan *plan)
{
    dcp_torch_pickle_fini(&plan->pickle);
}
#define CLEANUP_PLAN DCP_CLEANUP(plan_fini)

static uint64_t hole_bytes(const struct dcp_catalog *catalog,
                           const struct dcp_torch_hole *hole)
{
    return dcp_tensor_bytes(&catalog->tensors[hole->tensor]);
}

static int make_plan(struct dcp_catalog *catalog, const char *name, struct plan *plan,
                     struct dcp_error *err)
{
    DCP_CLEANUP_FREE uint64_t *bytes = dcp_mem_calloc(catalog->n_tensors, sizeof *bytes);
    struct dcp_torch_pickled_catalog *pickle = &plan->pickle;
    uint64_t holes = 0;

    if (!bytes)
        return dcp_error_memory(err, "a PyTorch file");
    int rc = dcp_torch_pickle(catalog, pickle, err);
    for (size_t i = 0; i < pickle->n_storages && !rc; i++)
        bytes[i] = dcp_tensor_bytes(&catalog->tensors[pickle->first_seen[i]]);
    for (size_t h = 0; h < pickle->n_holes && !rc; h++)
        holes += hole_bytes(catalog, &pickle->holes[h]);
    return rc ? rc
              : dcp_torch_archive_plan(catalog, name, &pickle->text, holes, bytes,
                                       pickle->n_storages, &plan->archive, err);
}

static void place(struct dcp_catalog *catalog, size_t tensor, int file, uint64_t offset)
{
    struct dcp_piece *piece = &catalog->pieces[catalog->tensors[tensor].first_piece];

    piece->file = file;
    piece->offset = offset;
    piece->stored_size = dcp_tensor_bytes(&catalog->tensors[tensor]);
}

/* The pickle around its holes, and what lies in them. */
static int place_pickle(struct dcp_catalog *catalog, const struct plan *plan, int file,
                        struct dcp_literals *literals, struct dcp_error *err)
{
    const struct dcp_torch_pickled_catalog *pickle = &plan->pickle;
    uint64_t offset = plan->archive.records[0].offset;
    size_t at = 0;
    int rc = DCP_OK;

    if (!pickle->n_holes)
        return DCP_OK;
    bool filled = plan->archive.records[0].data; /* all holes are empty */
    unsigned char *text = dcp_catalog_alloc(catalog, pickle->text.size_bytes, 1);
    if (!text)
        return dcp_error_memory(err, "a PyTorch file");
    memcpy(text, pickle->text.data, pickle->text.size_bytes);
    for (size_t h = 0; h <= pickle->n_holes && !rc; h++) {
        bool last = h == pickle->n_holes;
        size_t end = last ? pickle->text.size_bytes : pickle->holes[h].at;
        if (!filled)
            rc = dcp_literals_add(literals, catalog, file, offset, text + at, end - at,
                                  err);
        offset += end - at;
        at = end;
        if (!last) {
            place(catalog, pickle->holes[h].tensor, file, offset);
            offset += hole_bytes(catalog, &pickle->holes[h]);
        }
    }
    return rc;
}

static uint32_t pickle_crc32(const struct dcp_catalog *catalog, const struct plan *plan)
{
    const struct dcp_torch_pickled_catalog *pickle = &plan->pickle;
    uint32_t crc = 0;
    size_t at = 0;

    for (size_t h = 0; h < pickle->n_holes; h++) {
        const struct dcp_torch_hole *hole = &pickle->holes[h];
        const struct dcp_tensor *tensor = &catalog->tensors[hole->tensor];
        crc = dcp_hash_crc32(crc, pickle->text.data + at, hole->at - at);
        crc = dcp_hash_crc32_combine(crc, catalog->pieces[tensor->first_piece].crc32,
                                     dcp_tensor_bytes(tensor));
        at = hole->at;
    }
    return dcp_hash_crc32(crc, pickle->text.data + at, pickle->text.size_bytes - at);
}

static int layout(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                  struct dcp_literals *literals, struct dcp_error *err)
{
    const char *name = options->name ? options->name : DEFAULT_NAME;
    CLEANUP_PLAN struct plan plan = { 0 };
    int file;

    int rc = dcp_catalog_sort(catalog, err);
    if (!rc)
        rc = dcp_check_whole(catalog, "a PyTorch file", err);
    if (!rc)
        rc = make_plan(catalog, name, &plan, err);
    if (rc)
        return rc;
    const struct dcp_file entry = { .name = name, .size_bytes = plan.archive.size_bytes };
    rc = dcp_catalog_add_file(catalog, &entry, &file, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < plan.archive.n_storages; i++)
        place(catalog, plan.pickle.first_seen[i], file, plan.archive.storages[i].offset);
    rc = place_pickle(catalog, &plan, file, literals, err);
    return rc ? rc
              : dcp_torch_archive_headers(&plan.archive, file, catalog, literals, err);
}

static int seal(struct dcp_catalog *catalog, int rank,
                const struct dcp_target_options *options, struct dcp_literals *literals,
                struct dcp_error *err)
{
    const char *name = options->name ? options->name : DEFAULT_NAME;
    CLEANUP_PLAN struct plan plan = { 0 };
    int file = -1;

    if (rank != 0)
        return DCP_OK;
    int rc = make_plan(catalog, name, &plan, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < plan.archive.n_storages; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[plan.pickle.first_seen[i]];
        plan.archive.storages[i].crc32 = catalog->pieces[tensor->first_piece].crc32;
    }
    plan.archive.records[0].crc32 = pickle_crc32(catalog, &plan);
    for (size_t i = 0; i < catalog->n_files; i++)
        if (!strcmp(catalog->files[i].name, name))
            file = (int)i;
    return dcp_torch_archive_tail(&plan.archive, file, catalog, literals, err);
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
