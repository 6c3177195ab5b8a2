/* torch_save: the files of torch.save (.bin, .pt, .pth, .ckpt): read in all three forms,
 * and written as zip. */
#include "torch_save.h"
#include "base/hash.h"
#include "base/mem.h"
#include "formats/common/roles.h"
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

/* `whole`: the file is all that there is, none beside what other files hold. */
static int index_file(const struct dcp_source *source, const char *name, bool whole,
                      struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
    int index;

    int rc = dcp_torch_open(&file, source, name, err);
    file.takes_streams = true;
    if (!rc)
        rc = dcp_torch_read_tree(&file, err);
    if (!rc && whole)
        rc = dcp_torch_refuse_megatron(&file, err);
    if (rc)
        return rc;
    catalog->version = form_names[file.form];
    rc = dcp_torch_add_file(&file, dcp_input_base(&file.in, source), 0, catalog, &index,
                            err);
    return rc ? rc : dcp_torch_tree_index(&file, catalog, index, err);
}

int dcp_torch_index_file(const struct dcp_source *source, const char *name,
                         struct dcp_catalog *catalog, struct dcp_error *err)
{
    return index_file(source, name, false, catalog, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    catalog->format = dcp_format_torch.name;
    DCP_TRY(index_file(source, NULL, true, catalog, err));
    return dcp_roles_find_plain(catalog, err);
}

/* -- writing ------------------------------------------------------------------------- */

/* The archive, and the pickle in it: the state of a target. */
struct state {
    struct dcp_torch_archive archive;
    struct dcp_torch_pickled_catalog pickle;
};

static uint64_t hole_bytes(const struct dcp_catalog *catalog,
                           const struct dcp_torch_hole *hole)
{
    return dcp_tensor_bytes(&catalog->tensors[hole->tensor]);
}

static int open_target(struct dcp_target *target, struct dcp_error *err)
{
    target->state = calloc(1, sizeof(struct state));
    return target->state ? DCP_OK : dcp_error_memory(err, "a PyTorch file");
}

static void close_target(struct dcp_target *target)
{
    struct state *state = target->state;

    if (state)
        dcp_torch_pickle_fini(&state->pickle);
    free(state);
}

static int plan(struct dcp_catalog *catalog, const char *name, struct state *state,
                struct dcp_error *err)
{
    DCP_CLEANUP_FREE uint64_t *bytes = dcp_mem_calloc(catalog->n_tensors, sizeof *bytes);
    struct dcp_torch_pickled_catalog *pickle = &state->pickle;
    uint64_t holes = 0;

    if (!bytes)
        return dcp_error_memory(err, "a PyTorch file");
    DCP_TRY(dcp_torch_pickle(catalog, pickle, err));
    for (size_t i = 0; i < pickle->n_storages; i++)
        bytes[i] = dcp_tensor_bytes(&catalog->tensors[pickle->first_seen[i]]);
    for (size_t h = 0; h < pickle->n_holes; h++)
        holes += hole_bytes(catalog, &pickle->holes[h]);
    return dcp_torch_archive_plan(catalog, name, &pickle->text, holes, bytes,
                                  pickle->n_storages, &state->archive, err);
}

static void place(struct dcp_catalog *catalog, size_t tensor, int file, uint64_t offset)
{
    struct dcp_piece *piece = &catalog->pieces[catalog->tensors[tensor].first_piece];

    piece->file = file;
    piece->offset = offset;
    piece->stored_size = dcp_tensor_bytes(&catalog->tensors[tensor]);
}

/* The pickle around its holes, and what lies in them. */
static int place_pickle(struct dcp_target *target, struct dcp_error *err)
{
    const struct state *state = target->state;
    const struct dcp_torch_pickled_catalog *pickle = &state->pickle;
    int file = state->archive.file;
    uint64_t offset = state->archive.records[0].offset;
    size_t at = 0;
    int rc = DCP_OK;

    if (!pickle->n_holes)
        return DCP_OK;
    bool filled = state->archive.records[0].data; /* all holes are empty */
    for (size_t h = 0; h <= pickle->n_holes && !rc; h++) {
        bool last = h == pickle->n_holes;
        size_t end = last ? pickle->text.size_bytes : pickle->holes[h].at;
        if (!filled)
            rc = dcp_target_literal(target, file, offset, pickle->text.data + at,
                                    end - at, err);
        offset += end - at;
        at = end;
        if (!last) {
            place(target->catalog, pickle->holes[h].tensor, file, offset);
            offset += hole_bytes(target->catalog, &pickle->holes[h]);
        }
    }
    return rc;
}

static uint32_t pickle_crc32(const struct dcp_catalog *catalog, const struct state *state)
{
    const struct dcp_torch_pickled_catalog *pickle = &state->pickle;
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

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    const char *name = target->options->name ? target->options->name : DEFAULT_NAME;
    struct dcp_catalog *catalog = target->catalog;
    struct state *state = target->state;
    struct dcp_torch_archive *archive = &state->archive;

    DCP_TRY(plan(catalog, name, state, err));
    const struct dcp_file entry = { .name = name, .size_bytes = archive->size_bytes };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &archive->file, err));
    for (size_t i = 0; i < archive->n_storages; i++)
        place(catalog, state->pickle.first_seen[i], archive->file,
              archive->storages[i].offset);
    DCP_TRY(place_pickle(target, err));
    return dcp_torch_archive_headers(archive, target, err);
}

static int finalize(struct dcp_target *target, int rank, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = target->catalog;
    struct state *state = target->state;
    struct dcp_torch_archive *archive = &state->archive;

    (void)rank; /* there is one */
    for (size_t i = 0; i < archive->n_storages; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[state->pickle.first_seen[i]];
        archive->storages[i].crc32 = catalog->pieces[tensor->first_piece].crc32;
    }
    archive->records[0].crc32 = pickle_crc32(catalog, state);
    return dcp_torch_archive_tail(archive, target, err);
}

const struct dcp_format dcp_format_torch = {
    .name = "torch",
    .help = "PyTorch file, as torch.save writes it (zip)",
    .suffixes = ".bin .pt .pth .ckpt",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM |
             DCP_FORMAT_OBJECTS | DCP_FORMAT_CRC32 | DCP_FORMAT_TIES | DCP_FORMAT_PLAIN,
    .spelling = DCP_TORCH_TREE,
    .kept = dcp_torch_objects_kept,
    .probe = probe,
    .index = index_source,
    .open = open_target,
    .partition = dcp_partition_whole,
    .assign = assign,
    .finalize = finalize,
    .close = close_target,
};
