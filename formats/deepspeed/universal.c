/* universal: the format. */
#include "universal.h"
#include "base/mem.h"
#include "disposition.h"
#include "write.h"
#include <string.h>

enum { BID = 184 }; /* below that of the run the folder may also hold */

static int probe(const struct dcp_source *source)
{
    struct dcp_arena *arena = source->is_dir ? dcp_arena_new() : NULL;
    struct dcp_ds_folder folder = { 0 };

    if (!arena)
        return 0;
    int rc = dcp_ds_folder_open(source, DCP_UNIVERSAL_LATEST, arena, &folder, NULL);
    bool mine = !rc && folder.universal && folder.model;
    dcp_arena_free(arena);
    return mine ? BID : 0;
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    static const char *const layouts[] = { "", "zero1", "zero2", "zero3" };
    struct dcp_ds_reader reader;
    int rc = dcp_ds_reader_init(&reader, source, catalog, err);

    catalog->format = dcp_format_universal.name;
    catalog->version = "universal";
    if (!rc)
        rc = dcp_ds_folder_open(source, DCP_UNIVERSAL_LATEST, reader.arena,
                                &reader.folder, err);
    if (!rc)
        rc = dcp_ds_read_model(&reader, err);
    if (!rc)
        rc = dcp_universal_read(&reader, err);
    if (!rc)
        rc = dcp_ds_check_tag(&reader, err);
    if (!rc)
        rc = dcp_ds_add_ties(&reader, err);
    if (!rc)
        rc = dcp_ds_add_objects(&reader, err);
    catalog->layout = layouts[reader.stage];
    catalog->world_size = reader.world_size ? reader.world_size : 1;
    catalog->mesh = (struct dcp_mesh){ .dp = catalog->world_size };
    if (!rc)
        rc = dcp_ds_describe(&reader, err);
    dcp_ds_reader_fini(&reader);
    return rc;
}

static enum dcp_disposition disposition(const struct dcp_catalog *src,
                                        const struct dcp_identity *of_src,
                                        const struct dcp_catalog *target,
                                        const struct dcp_tensor *tensor)
{
    return dcp_ds_disposition(src, of_src, !strcmp(target->layout, "zero3"), tensor);
}

const struct dcp_format dcp_format_universal = {
    .name = "universal",
    .help = "DeepSpeed universal checkpoint, for stages 1 and 2 or for stage 3",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_SHARDED |
             DCP_FORMAT_IS_DIR | DCP_FORMAT_OPTIM | DCP_FORMAT_OBJECTS |
             DCP_FORMAT_CRC32 | DCP_FORMAT_TIES | DCP_FORMAT_MASTERS,
    .layouts = "zero1 zero2 zero3",
    .probe = probe,
    .index = index_source,
    .disposition = disposition,
    .open = dcp_ds_target_open,
    .assign = dcp_universal_assign,
    .finalize = dcp_ds_target_finalize,
    .close = dcp_ds_target_close,
};
