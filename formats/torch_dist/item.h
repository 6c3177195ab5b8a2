/* item: the items in the data files of a distributed checkpoint: each is what
 * torch.save wrote into a stream (torch/item.h), perhaps compressed with zstd.
 *
 * There may be a million of them, so the usual archive, a dense tensor of the shape that
 * the index promises, is made here too and compared with the bytes that are there; only
 * what differs is parsed. */
#ifndef DCP_FORMATS_TORCH_DIST_ITEM_H
#define DCP_FORMATS_TORCH_DIST_ITEM_H

#include "formats/common/input.h"
#include "heads.h"
#include "metadata.h"

#define DCP_ITEM_MAX_OBJECT_BYTES (64u << 20)   /* of one object, */
#define DCP_ITEM_MAX_OBJECTS_BYTES (256u << 20) /* of all of them */

struct dcp_torch_dist_items {
    const struct dcp_source *source;
    const struct dcp_torch_dist_metadata *meta;
    struct dcp_arena *arena; /* of heads and strides */
    struct dcp_input in;     /* the file that was used last; shown is NULL: none */
    int file;
    unsigned char *window; /* some of its bytes */
    uint64_t window_at;
    size_t window_bytes;
    struct dcp_torch_dist_heads heads;
    enum dcp_torch_style style; /* of the last usual item */
    uint64_t objects_bytes;     /* read so far */
};
void dcp_torch_dist_items_init(struct dcp_torch_dist_items *items,
                               const struct dcp_source *source,
                               const struct dcp_torch_dist_metadata *meta);
void dcp_torch_dist_items_fini(struct dcp_torch_dist_items *items);
#define DCP_CLEANUP_ITEMS DCP_CLEANUP(dcp_torch_dist_items_fini)

/* Where the elements of a tensor's part lie. */
struct dcp_torch_dist_item_location {
    enum dcp_codec codec; /* none, or a stream from the item's beginning */
    uint64_t offset, stored_size, skip;
    const int64_t *stride;    /* NULL: dense; belongs to the items' arena */
    struct dcp_record record; /* the record around it; size_bytes is 0 when it has no
                               * checksum; the file is that of the part */
};
/* Checks the item of a part against its tensor. Parts in the order of files and offsets
 * are read fastest. Errors: CORRUPT, UNSUPPORTED, NOT_FOUND (the file), IO, MEMORY. */
int dcp_torch_dist_items_locate(struct dcp_torch_dist_items *items,
                                const struct dcp_torch_dist_part *part,
                                struct dcp_torch_dist_item_location *out,
                                struct dcp_error *err);
/* The bytes of a small dense part. Errors: as above. */
int dcp_torch_dist_items_read(struct dcp_torch_dist_items *items,
                              const struct dcp_torch_dist_part *part, void *out,
                              size_t size_bytes, struct dcp_error *err);

/* For item*.c: opens the file of a part, and checks that the item lies in it. */
int dcp_torch_dist_items_open(struct dcp_torch_dist_items *items,
                              const struct dcp_torch_dist_part *part,
                              struct dcp_error *err);
/* Reads the archive in bytes begin .. end of a file, with its pickle; dcp_torch_close
 * also after a failure. */
struct dcp_torch_file;
int dcp_items_archive(const struct dcp_input *in, uint64_t begin, uint64_t end,
                      struct dcp_torch_file *out, struct dcp_error *err);

/* An object: as JSON from which the same can be written again, or else *out_json is NULL
 * and out_raw has the archive. Errors: CORRUPT, UNSUPPORTED (too large), NOT_FOUND, IO,
 * MEMORY. */
int dcp_torch_dist_items_object(struct dcp_torch_dist_items *items,
                                const struct dcp_torch_dist_object *object,
                                json_t **out_json, struct dcp_buf *out_raw,
                                struct dcp_error *err);

#endif
