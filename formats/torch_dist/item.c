/* item: finds the bytes of tensors in their items. */
#include "item.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/archive/unzstd.h"
#include "formats/torch/torch.h"
#include <inttypes.h>
#include <string.h>

enum {
    WINDOW_BYTES = 256 << 10,  /* read at once where items are small, */
    SMALL_ITEM = 16 << 10,     /* at most so large */
    DESCRIPTOR_BYTES = 24,     /* the larger form */
    MAX_ZSTD_RATIO = 32 << 10, /* a block of 128 KiB is 4 bytes at least */
};

void dcp_torch_dist_items_init(struct dcp_torch_dist_items *items,
                               const struct dcp_source *source,
                               const struct dcp_torch_dist_metadata *meta)
{
    *items = (struct dcp_torch_dist_items){ .source = source, .meta = meta, .file = -1 };
}

void dcp_torch_dist_items_fini(struct dcp_torch_dist_items *items)
{
    dcp_input_close(&items->in);
    dcp_heads_fini(&items->heads);
    free(items->window);
    dcp_arena_free(items->arena);
    *items = (struct dcp_torch_dist_items){ 0 };
}

/* -- bytes --------------------------------------------------------------------------- */

int dcp_torch_dist_items_open(struct dcp_torch_dist_items *items,
                              const struct dcp_torch_dist_part *part,
                              struct dcp_error *err)
{
    if (!items->arena && !(items->arena = dcp_arena_new()))
        return dcp_error_memory(err, "the items of a checkpoint");
    if (!items->window && !(items->window = malloc(WINDOW_BYTES)))
        return dcp_error_memory(err, "the items of a checkpoint");
    if (items->file != part->file) {
        dcp_input_close(&items->in);
        items->file = -1;
        items->window_bytes = 0;
        DCP_TRY(dcp_input_open(&items->in, items->source, items->meta->files[part->file],
                               err));
        items->file = part->file;
    }
    if (part->offset > items->in.size_bytes ||
        part->size_bytes > items->in.size_bytes - part->offset)
        return dcp_error_set(
            err, DCP_E_CORRUPT,
            "'%s' has %" PRIu64 " bytes, the index says %" PRIu64 ": it is incomplete",
            items->in.shown, items->in.size_bytes, part->offset + part->size_bytes);
    return DCP_OK;
}

/* n bytes at offset of the open file, n <= WINDOW_BYTES; they stay until the next call.
 */
static int peek(struct dcp_torch_dist_items *items, uint64_t offset, size_t n, bool ahead,
                const unsigned char **out, struct dcp_error *err)
{
    uint64_t left = items->in.size_bytes - offset;
    size_t want = ahead && left > n ? WINDOW_BYTES : n;

    if (offset < items->window_at || offset - items->window_at > items->window_bytes ||
        n > items->window_bytes - (size_t)(offset - items->window_at)) {
        want = left < want ? (size_t)left : want;
        int rc = dcp_input_read(&items->in, offset, items->window, want, err);
        items->window_bytes = rc ? 0 : want;
        items->window_at = offset;
        if (rc)
            return rc;
    }
    *out = items->window + (size_t)(offset - items->window_at);
    return DCP_OK;
}

/* -- the usual archive --------------------------------------------------------------- */

/* The tensor that a part's item holds. */
static void part_tensor(const struct dcp_torch_dist_items *items,
                        const struct dcp_torch_dist_part *part, struct dcp_tensor *out)
{
    const struct dcp_torch_dist_tensor *whole = &items->meta->tensors[part->tensor];
    int64_t n = 1;

    *out = (struct dcp_tensor){ .name = whole->name,
                                .dtype = whole->dtype,
                                .ndim = whole->ndim,
                                .shape = part->box + 1 + whole->ndim };
    for (int d = 0; d < out->ndim; d++)
        if (!out->shape[d])
            n = 0;
    for (int d = 0; d < out->ndim && n; d++)
        n *= out->shape[d]; /* at most the elements of the tensor, which are checked */
    out->n_elems = n;
}

static int get_head(struct dcp_torch_dist_items *items, enum dcp_torch_style style,
                    const struct dcp_tensor *tensor,
                    const struct dcp_torch_dist_head **out, struct dcp_error *err)
{
    items->heads.arena = items->arena;
    return dcp_heads_get(&items->heads, style, tensor, out, err);
}

#define RECORD_NAME "data/0" /* of the storage in the usual archive */

/* The crc32 behind the content, when it stands where the usual archive has it. */
static int read_crc32(struct dcp_torch_dist_items *items,
                      struct dcp_torch_dist_item_location *out, bool *out_usual,
                      struct dcp_error *err)
{
    uint64_t size_bytes = out->stored_size, at = out->offset + size_bytes;
    unsigned char data[DESCRIPTOR_BYTES];
    bool big = size_bytes >= UINT32_MAX;
    size_t n = big ? DESCRIPTOR_BYTES : DESCRIPTOR_BYTES - 8;
    const unsigned char *in = data;
    bool near = at >= items->window_at &&
                at + n <= items->window_at + (uint64_t)items->window_bytes;

    DCP_TRY(near ? peek(items, at, n, false, &in, err)
                 : dcp_input_read(&items->in, at, data, n, err));
    *out_usual =
        !memcmp(in, "PK\7\10", 4) &&
        (big ? dcp_le64(in + 8) == size_bytes && dcp_le64(in + 16) == size_bytes
             : dcp_le32(in + 8) == size_bytes && dcp_le32(in + 12) == size_bytes);
    if (*out_usual && dcp_le32(in + 4))
        out->record = (struct dcp_record){ .name = RECORD_NAME,
                                           .offset = out->offset,
                                           .stored_size = size_bytes,
                                           .size_bytes = size_bytes,
                                           .crc32 = dcp_le32(in + 4) };
    return DCP_OK;
}

/* *out_usual: the item is the archive that torch makes of such a tensor. */
static int locate_usual(struct dcp_torch_dist_items *items,
                        const struct dcp_torch_dist_part *part,
                        const struct dcp_tensor *tensor,
                        struct dcp_torch_dist_item_location *out, bool *out_usual,
                        struct dcp_error *err)
{
    const struct dcp_torch_dist_head *head;
    const unsigned char *data;

    *out_usual = false;
    for (int i = 0; i < DCP_TORCH_N_STYLES && !*out_usual; i++) {
        enum dcp_torch_style style =
            (enum dcp_torch_style)(((int)items->style + i) % DCP_TORCH_N_STYLES);
        DCP_TRY(get_head(items, style, tensor, &head, err));
        if (head->item_bytes != part->size_bytes || head->n > WINDOW_BYTES)
            continue;
        DCP_TRY(peek(items, part->offset, head->n, part->size_bytes <= SMALL_ITEM, &data,
                     err));
        if (memcmp(data, head->data, head->n) != 0)
            continue;
        out->offset = part->offset + head->n;
        out->stored_size = dcp_tensor_bytes(tensor);
        items->style = style;
        *out_usual = true;
        if (out->stored_size)
            DCP_TRY(read_crc32(items, out, out_usual, err));
    }
    return DCP_OK;
}

/* -- any archive --------------------------------------------------------------------- */

/* What begins like a safetensors file: some writers of PyTorch put one into a .distcp,
 * which PyTorch then cannot read. */
static bool is_safetensors(const struct dcp_input *in, uint64_t offset, uint64_t n)
{
    unsigned char head[9];

    return n >= sizeof head && !dcp_input_read(in, offset, head, sizeof head, NULL) &&
           dcp_le64(head) < DCP_PICKLE_MAX_BYTES && head[8] == '{';
}

int dcp_items_archive(const struct dcp_input *in, uint64_t begin, uint64_t end,
                      struct dcp_torch_file *out, struct dcp_error *err)
{
    char magic[4] = "";

    if (end - begin < sizeof magic ||
        dcp_input_read(in, begin, magic, sizeof magic, NULL) ||
        memcmp(magic, "PK\3\4", sizeof magic) != 0) {
        if (is_safetensors(in, begin, end - begin))
            return dcp_error_set(err, DCP_E_UNSUPPORTED,
                                 "'%s' holds safetensors instead of what torch.save "
                                 "writes, a form that PyTorch itself cannot load",
                                 in->shown);
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s': at byte %" PRIu64 " there is no PyTorch archive",
                             in->shown, begin);
    }
    DCP_TRY(dcp_torch_open_part(out, in, begin, end, err));
    return dcp_torch_read_tree(out, err);
}

static int wrong_tensor(const struct dcp_input *in, const struct dcp_tensor *tensor,
                        const char *what, struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, tensor->name,
                               "'%s': the item of tensor '%s' %s", in->shown,
                               DCP_SHOWN(tensor->name), what);
}

/* The tensor in an archive; offsets are those of the file behind `in`. */
static int locate_any(struct dcp_torch_dist_items *items, const struct dcp_input *in,
                      uint64_t begin, uint64_t end, const struct dcp_tensor *tensor,
                      struct dcp_torch_dist_item_location *out, struct dcp_error *err)
{
    DCP_CLEANUP_TORCH struct dcp_torch_file file = { 0 };
    struct dcp_torch_view view;
    bool found;
    size_t dims = (size_t)tensor->ndim * sizeof *tensor->shape;

    DCP_TRY(dcp_items_archive(in, begin, end, &file, err));
    DCP_TRY(dcp_torch_view(&file, file.tree, tensor->name, &found, &view, err));
    if (!found || !view.has_data || view.memory)
        return wrong_tensor(in, tensor, "holds no tensor", err);
    if (view.dtype != tensor->dtype || view.ndim != tensor->ndim ||
        memcmp(view.shape, tensor->shape, dims) != 0)
        return wrong_tensor(in, tensor, "has another dtype or shape than the index says",
                            err);
    *out = (struct dcp_torch_dist_item_location){ .offset = view.offset,
                                                  .stored_size = view.stored_size };
    const struct dcp_zip_record *record =
        dcp_zip_at(&file.zip, view.offset, view.stored_size);
    if (record && record->crc32)
        out->record = (struct dcp_record){ .name = RECORD_NAME,
                                           .offset = record->offset,
                                           .stored_size = record->stored_size,
                                           .size_bytes = record->size_bytes,
                                           .crc32 = record->crc32 };
    if (view.dense)
        return DCP_OK;
    out->stride = dcp_arena_copy(items->arena, view.stride, dims);
    return out->stride ? DCP_OK : dcp_error_memory(err, "the items of a checkpoint");
}

/* A compressed item: its head is decoded, and all of it when that is an unusual one. */
static int locate_stream(struct dcp_torch_dist_items *items,
                         const struct dcp_torch_dist_part *part,
                         const struct dcp_tensor *tensor,
                         struct dcp_torch_dist_item_location *out, struct dcp_error *err)
{
    DCP_CLEANUP_UNZSTD struct dcp_unzstd_file whole = { 0 };
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    const struct dcp_torch_dist_head *head;
    int rc = DCP_OK;

    for (int style = 0; style < DCP_TORCH_N_STYLES && !rc; style++) {
        rc = get_head(items, (enum dcp_torch_style)style, tensor, &head, err);
        if (!rc && head->n > buf.size_bytes) {
            buf.size_bytes = 0;
            rc = dcp_unzstd(&items->in, part->offset, part->size_bytes, head->n, &buf,
                            NULL, err);
        }
        if (rc || buf.size_bytes < head->n || memcmp(buf.data, head->data, head->n) != 0)
            continue;
        if (dcp_tensor_bytes(tensor) / MAX_ZSTD_RATIO > part->size_bytes)
            return wrong_tensor(&items->in, tensor,
                                "declares more bytes than it can hold", err);
        *out = (struct dcp_torch_dist_item_location){ .skip = head->n };
        out->record = (struct dcp_record){ .name = RECORD_NAME,
                                           .offset = head->n,
                                           .size_bytes = dcp_tensor_bytes(tensor),
                                           .crc32_behind = true };
        break;
    }
    if (!rc && !out->skip)
        rc = dcp_unzstd_open(&whole, &items->in, part->offset, part->size_bytes,
                             DCP_ITEM_MAX_OBJECT_BYTES, err);
    if (!rc && !out->skip) {
        rc = locate_any(items, &whole.in, 0, whole.in.size_bytes, tensor, out, err);
        out->skip = out->offset;
    }
    out->record.codec = DCP_CODEC_ZSTD_STREAM;
    out->record.skip = out->record.offset;
    out->record.offset = part->offset;
    out->record.stored_size = part->size_bytes;
    out->codec = DCP_CODEC_ZSTD_STREAM;
    out->offset = part->offset;
    out->stored_size = part->size_bytes;
    return rc;
}

int dcp_torch_dist_items_locate(struct dcp_torch_dist_items *items,
                                const struct dcp_torch_dist_part *part,
                                struct dcp_torch_dist_item_location *out,
                                struct dcp_error *err)
{
    struct dcp_tensor tensor;
    bool usual = false;
    int rc = dcp_torch_dist_items_open(items, part, err);

    *out = (struct dcp_torch_dist_item_location){ 0 };
    if (rc)
        return rc;
    part_tensor(items, part, &tensor);
    if (part->zstd) {
        rc = locate_stream(items, part, &tensor, out, err);
    } else {
        rc = locate_usual(items, part, &tensor, out, &usual, err);
        if (!rc && !usual)
            rc = locate_any(items, &items->in, part->offset,
                            part->offset + part->size_bytes, &tensor, out, err);
    }
    if (rc)
        dcp_error_tensor(err, tensor.name);
    return rc;
}

static int corrupt_item(const struct dcp_torch_dist_items *items,
                        const struct dcp_torch_dist_part *part, const char *what,
                        struct dcp_error *err)
{
    struct dcp_tensor tensor;

    part_tensor(items, part, &tensor);
    return wrong_tensor(&items->in, &tensor, what, err);
}

/* A small compressed part: its whole archive is decoded. */
static int read_stream(struct dcp_torch_dist_items *items,
                       const struct dcp_torch_dist_part *part,
                       const struct dcp_torch_dist_item_location *place, void *out,
                       size_t size_bytes, struct dcp_error *err)
{
    DCP_CLEANUP_BUF struct dcp_buf buf = { 0 };
    const struct dcp_record *record = &place->record;

    DCP_TRY(dcp_unzstd(&items->in, place->offset, place->stored_size,
                       DCP_ITEM_MAX_OBJECT_BYTES, &buf, NULL, err));
    uint64_t end = record->skip + record->size_bytes;
    if (buf.size_bytes < place->skip + size_bytes || buf.size_bytes < end + 8)
        return corrupt_item(items, part, "is incomplete", err);
    uint32_t want = record->crc32_behind ? dcp_le32(buf.data + end + 4) : record->crc32;
    if (want && record->size_bytes &&
        dcp_hash_crc32(0, buf.data + record->skip, (size_t)record->size_bytes) != want)
        return corrupt_item(items, part, "is corrupt: its CRC-32 differs", err);
    memcpy(out, buf.data + place->skip, size_bytes);
    return DCP_OK;
}

int dcp_torch_dist_items_read(struct dcp_torch_dist_items *items,
                              const struct dcp_torch_dist_part *part, void *out,
                              size_t size_bytes, struct dcp_error *err)
{
    struct dcp_torch_dist_item_location place;
    bool holds = true;

    DCP_TRY(dcp_torch_dist_items_locate(items, part, &place, err));
    if (place.codec != DCP_CODEC_NONE)
        return read_stream(items, part, &place, out, size_bytes, err);
    if (place.record.size_bytes)
        DCP_TRY(dcp_input_crc32(&items->in, place.record.offset, place.record.size_bytes,
                                place.record.crc32, &holds, err));
    if (!holds)
        return corrupt_item(items, part, "is corrupt: its CRC-32 differs", err);
    return dcp_input_read(&items->in, place.offset, out, size_bytes, err);
}
