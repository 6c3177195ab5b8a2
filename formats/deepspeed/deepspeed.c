/* deepspeed: checkpoints of DeepSpeed's engine: ZeRO stages 1, 2 and 3, BF16_Optimizer,
 * and training without ZeRO. A folder with "latest" and a folder for each tag, or one of
 * the latter. What is in the files: read.h. */
#include "deepspeed.h"
#include "base/mem.h"
#include "disposition.h"
#include "read.h"
#include "write.h"
#include <stdio.h>
#include <string.h>

enum {
    BID = 192,   /* names of files, and the magic numbers of one */
    TAGS_BID = 8 /* names of files alone, which do not lead to a checkpoint */
};

static int probe(const struct dcp_source *source)
{
    struct dcp_arena *arena = source->is_dir ? dcp_arena_new() : NULL;
    struct dcp_ds_folder folder = { 0 };

    if (!arena)
        return 0;
    /* What is corrupt or not supported is told by index. */
    int rc = dcp_ds_folder_open(source, DCP_DS_LATEST, arena, &folder, NULL);
    bool mine =
        rc ? folder.seen : !folder.universal && (folder.model || folder.n_optims > 0);
    dcp_arena_free(arena);
    return mine ? BID : folder.tags ? TAGS_BID : 0;
}

static int describe(struct dcp_ds_reader *reader, struct dcp_error *err)
{
    static const char *const layouts[] = { "replicated", "zero1", "zero2", "zero3" };
    static const char *const versions[] = { "without ZeRO", "ZeRO stage 1",
                                            "ZeRO stage 2", "ZeRO stage 3" };
    struct dcp_catalog *catalog = reader->catalog;

    catalog->version = versions[reader->stage];
    catalog->layout = layouts[reader->stage];
    catalog->world_size = reader->world_size;
    catalog->mesh = (struct dcp_mesh){ .dp = reader->world_size };
    return dcp_ds_describe(reader, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    struct dcp_ds_reader reader;
    int rc = dcp_ds_reader_init(&reader, source, catalog, err);

    catalog->format = dcp_format_deepspeed.name;
    if (!rc)
        rc = dcp_ds_folder_open(source, DCP_DS_LATEST, reader.arena, &reader.folder, err);
    reader.folder.universal = false; /* here every rank must have its file */
    if (!rc)
        rc = dcp_ds_read_model(&reader, err);
    if (!rc && reader.stage)
        rc = dcp_ds_read_optim(&reader, err);
    if (!rc && reader.stage)
        rc = dcp_ds_check_tag(&reader, err);
    if (!rc)
        rc = dcp_ds_add_ties(&reader, err);
    if (!rc)
        rc = dcp_ds_add_objects(&reader, err);
    if (!rc)
        rc = describe(&reader, err);
    dcp_ds_reader_fini(&reader);
    return rc;
}

/* -- writing ----------------------------------------------------------------------- */

/* The files of a rank: the model's, which below stage 3 is one for all, and its
 * optimizer's. */
static int assign_rank(struct dcp_target *target, int rank, struct dcp_error *err)
{
    const struct dcp_ds_writer *w = target->state;
    struct dcp_torch_out out = { 0 };
    int rc = DCP_OK;

    if (w->stage == 3 || rank == 0) {
        rc = dcp_ds_model_file(w, w->stage == 3 ? rank : -1, &out, err);
        rc = dcp_ds_assign_file(target, &out, rc, err);
    }
    if (rc)
        return rc;
    rc = dcp_ds_optim_file(w, rank, &out, err);
    return dcp_ds_assign_file(target, &out, rc, err);
}

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    for (int rank = 0; rank < target->catalog->world_size; rank++)
        DCP_TRY(assign_rank(target, rank, err));
    return dcp_ds_pointer(target, DCP_DS_LATEST, err);
}

static enum dcp_disposition disposition(const struct dcp_catalog *src,
                                        const struct dcp_identity *of_src,
                                        const struct dcp_catalog *target,
                                        const struct dcp_tensor *tensor)
{
    return dcp_ds_disposition(src, of_src, !strcmp(target->layout, "zero3"), tensor);
}

const struct dcp_format dcp_format_deepspeed = {
    .name = "deepspeed",
    .help = "DeepSpeed checkpoint: ZeRO stages 1, 2 and 3, any number of ranks",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_SHARDED |
             DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS |
             DCP_FORMAT_CRC32 | DCP_FORMAT_TIES | DCP_FORMAT_MASTERS,
    .layouts = DCP_DS_LAYOUTS,
    .probe = probe,
    .index = index_source,
    .disposition = disposition,
    .open = dcp_ds_target_open,
    .assign = assign,
    .finalize = dcp_ds_target_finalize,
    .close = dcp_ds_target_close,
};
