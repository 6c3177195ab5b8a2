#include "two_parts.h"

#include "must.h"
#include <dcp/format.h>

const int two_parts_of[TWO_PARTS_FILES] = { 0, 1, 1 };

struct dcp_catalog *two_parts_target(void)
{
    static const char *const names[TWO_PARTS_FILES] = { "a", "b", "c" };
    static const int64_t shape[] = { 25 };
    struct dcp_catalog *target;

    must(!dcp_catalog_new(&target, NULL));
    for (int f = 0; f < TWO_PARTS_FILES; f++) {
        const struct dcp_file file = { .name = names[f], .rank = f, .size_bytes = 110 };
        const struct dcp_tensor tensor = {
            .name = names[f], .dtype = DCP_F32, .ndim = 1, .shape = shape
        };
        const struct dcp_piece piece = { .tensor = f,
                                         .file = f,
                                         .offset = 10,
                                         .stored_size = 100,
                                         .codec =
                                             f == 2 ? DCP_CODEC_ZSTD : DCP_CODEC_NONE };
        must(!dcp_catalog_add_file(target, &file, NULL, NULL) &&
             !dcp_catalog_add_tensor(target, &tensor, NULL, NULL) &&
             !dcp_catalog_add_piece(target, &piece, NULL));
    }
    must(!dcp_catalog_sort(target, NULL));
    return target;
}

struct dcp_catalog *two_parts_source(void)
{
    const struct dcp_record record = { .name = "r",
                                       .size_bytes =
                                           TWO_PARTS_BLOCKS * (uint64_t)DCP_BLOCK_BYTES,
                                       .crc32 = 1 };
    struct dcp_catalog *src;

    must(!dcp_catalog_new(&src, NULL) &&
         !dcp_catalog_add_file(src, &(struct dcp_file){ .name = "x" }, NULL, NULL) &&
         !dcp_catalog_add_record(src, &record, NULL) && !dcp_catalog_sort(src, NULL));
    return src;
}
