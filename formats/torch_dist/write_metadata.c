/* write_metadata: .metadata, the pickle of
 * torch.distributed.checkpoint.metadata.Metadata, protocol 2. What PyTorch does not ask
 * for are further attributes of its objects, which it keeps and ignores: see metadata.h.
 */
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/state_dict/keys.h"
#include "formats/state_dict/out.h"
#include "formats/torch/value.h"
#include "item.h"
#include "metadata.h"
#include "write.h"
#include <string.h>

#define METADATA "torch.distributed.checkpoint.metadata"
#define OLD_METADATA "torch.distributed._shard.sharded_tensor.metadata"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"
#define VERSION "1.0.0" /* CURRENT_DCP_VERSION of PyTorch 2.14 */

enum { DIGITS = 16, TEXT_HEAD_BYTES = 5 }; /* an opcode, and the length */

struct writer {
    struct dcp_catalog *catalog;
    const struct dcp_out *out;
    struct dcp_torch_dist_heads *heads;
    struct dcp_pickle_out pickle;
    struct dcp_torch_writer values;
    int64_t properties[DCP_N_DTYPES]; /* memo of each dtype's, -1: not written */
    size_t digest_at;                 /* of its digits */
};

/* -- parts of pickles ---------------------------------------------------------------- */

/* An instance whose state, a dict, follows: keys and values up to end_instance. */
static void begin_instance(struct writer *w, const char *module, const char *class)
{
    dcp_pickle_global(&w->pickle, module, class);
    dcp_pickle_op(&w->pickle, ')');
    dcp_pickle_op(&w->pickle, '\x81'); /* NEWOBJ */
    dcp_pickle_op(&w->pickle, '}');
    dcp_pickle_op(&w->pickle, '(');
}

static void end_instance(struct writer *w)
{
    dcp_pickle_op(&w->pickle, 'u');
    dcp_pickle_op(&w->pickle, 'b');
}

static void put_key(struct writer *w, const char *key)
{
    dcp_pickle_shared_text(&w->pickle, key);
}

static void put_number(struct writer *w, const char *key, int64_t number)
{
    put_key(w, key);
    dcp_pickle_int(&w->pickle, number);
}

/* torch.Size; n zeros when numbers is NULL. */
static void put_size(struct writer *w, const char *key, const int64_t *numbers, int n)
{
    static const int64_t zeros[DCP_MAX_NDIM];

    put_key(w, key);
    dcp_pickle_global(&w->pickle, "torch", "Size");
    dcp_pickle_numbers(&w->pickle, numbers ? numbers : zeros, (size_t)n);
    dcp_pickle_op(&w->pickle, '\x85'); /* TUPLE1 */
    dcp_pickle_op(&w->pickle, 'R');
}

/* TensorProperties(dtype, strided, no gradient, contiguous, not pinned), one for each
 * dtype. */
static void put_properties(struct writer *w, enum dcp_dtype dtype)
{
    struct dcp_pickle_out *out = &w->pickle;
    bool old = w->out->keys.old_classes;

    put_key(w, "properties");
    if (w->properties[dtype] >= 0) {
        dcp_pickle_fetch(out, (uint32_t)w->properties[dtype]);
        return;
    }
    dcp_pickle_global(out, old ? OLD_METADATA : METADATA, "TensorProperties");
    dcp_pickle_op(out, ')');
    dcp_pickle_op(out, '\x81');
    dcp_pickle_op(out, '(');
    dcp_pickle_global(out, "torch", dcp_dtype_torch_name(dtype));
    dcp_pickle_global(out, "torch.serialization", "_get_layout");
    dcp_pickle_shared_text(out, "torch.strided");
    dcp_pickle_op(out, '\x85');
    dcp_pickle_op(out, 'R');
    dcp_pickle_bool(out, false);
    dcp_pickle_global(out, old ? OLD_METADATA : METADATA,
                      old ? "MEM_FORMAT_ENCODING" : "_MEM_FORMAT_ENCODING");
    dcp_pickle_int(out, 0);
    dcp_pickle_op(out, '\x85');
    dcp_pickle_op(out, 'R');
    dcp_pickle_bool(out, false);
    dcp_pickle_op(out, 't');
    dcp_pickle_op(out, 'b');
    w->properties[dtype] = dcp_pickle_put(out);
}

/* -- the four dicts ------------------------------------------------------------------ */

static void put_chunk(struct writer *w, const struct dcp_tensor *tensor,
                      const struct dcp_region *region)
{
    bool box = region && region->kind == DCP_BOX;

    begin_instance(w, METADATA, "ChunkStorageMetadata");
    put_size(w, "offsets", box ? region->offset : NULL, tensor->ndim);
    put_size(w, "sizes", box ? region->size : tensor->shape, tensor->ndim);
    end_instance(w);
}

static void put_tensor(struct writer *w, const struct dcp_out_key *key)
{
    static const struct dcp_tensor step = { .dtype = DCP_F32 };
    const struct dcp_tensor *tensor =
        key->tensor < 0 ? &step : &w->catalog->tensors[key->tensor];
    size_t n = key->tensor < 0 ? 1 : tensor->n_pieces;
    bool weight = tensor->role == DCP_ROLE_MODEL || tensor->role == DCP_ROLE_BUFFER ||
                  tensor->role == DCP_ROLE_OTHER;

    begin_instance(w, METADATA, "TensorStorageMetadata");
    put_properties(w, tensor->dtype);
    put_size(w, "size", tensor->shape, tensor->ndim);
    put_key(w, "chunks");
    dcp_pickle_op(&w->pickle, ']');
    for (size_t i = 0; i < n; i++) {
        const struct dcp_piece *piece =
            key->tensor < 0 ? NULL : &w->catalog->pieces[tensor->first_piece + i];
        dcp_pickle_fill_next(&w->pickle, DCP_PICKLE_FILL_LIST, i, n);
        put_chunk(w, tensor, piece ? &piece->region : NULL);
    }
    dcp_pickle_fill_end(&w->pickle, DCP_PICKLE_FILL_LIST, n);
    if (tensor->has_fingerprint)
        put_number(w, DCP_TORCH_DIST_FINGERPRINT, (int64_t)tensor->fingerprint);
    if (key->tensor >= 0 && weight) {
        put_key(w, DCP_TORCH_DIST_ROLE);
        dcp_pickle_shared_text(&w->pickle, dcp_role_name(tensor->role));
    }
    end_instance(w);
}

static void put_state_dict(struct writer *w)
{
    dcp_pickle_op(&w->pickle, '}');
    for (size_t k = 0; k < w->out->n; k++) {
        const struct dcp_out_key *key = &w->out->list[k];
        dcp_pickle_fill_next(&w->pickle, DCP_PICKLE_FILL_DICT, k, w->out->n);
        put_key(w, key->key);
        if (key->tensor >= 0 || key->is_step) {
            put_tensor(w, key);
            continue;
        }
        dcp_pickle_global(&w->pickle, METADATA, "BytesStorageMetadata");
        dcp_pickle_op(&w->pickle, ')');
        dcp_pickle_op(&w->pickle, '\x81');
    }
    dcp_pickle_fill_end(&w->pickle, DCP_PICKLE_FILL_DICT, w->out->n);
}

/* A path of state_dict/keys.h as a tuple. */
static void put_path(struct writer *w, const char *path)
{
    static const char marks[] = { DCP_PATH_KEY, DCP_PATH_INDEX, '\0' };
    bool index = false;

    dcp_pickle_op(&w->pickle, '(');
    for (const char *at = path;;) {
        size_t n = strcspn(at, marks);
        if (index) {
            dcp_pickle_int(&w->pickle, strtoll(at, NULL, 10));
        } else {
            DCP_CLEANUP_FREE char *part = strndup(at, n);
            w->pickle.buf.failed |= !part;
            if (part)
                put_key(w, part);
        }
        if (!at[n])
            break;
        index = at[n] == DCP_PATH_INDEX;
        at += n + 1;
    }
    dcp_pickle_op(&w->pickle, 't');
}

static void put_planner_data(struct writer *w)
{
    dcp_pickle_op(&w->pickle, '}');
    for (size_t k = 0; k < w->out->n; k++) {
        dcp_pickle_fill_next(&w->pickle, DCP_PICKLE_FILL_DICT, k, w->out->n);
        put_key(w, w->out->list[k].key);
        put_path(w, w->out->list[k].path);
    }
    dcp_pickle_fill_end(&w->pickle, DCP_PICKLE_FILL_DICT, w->out->n);
}

/* A MetadataIndex and its _StorageInfo. */
static void put_item(struct writer *w, const char *key, const struct dcp_tensor *tensor,
                     size_t index, const struct dcp_piece *piece, const char *file,
                     uint64_t offset, uint64_t size_bytes)
{
    begin_instance(w, METADATA, "MetadataIndex");
    put_key(w, "fqn");
    put_key(w, key);
    put_key(w, "index");
    if (tensor)
        dcp_pickle_int(&w->pickle, (int64_t)index);
    else
        dcp_pickle_none(&w->pickle);
    if (tensor)
        put_size(w, "offset",
                 piece && piece->region.kind == DCP_BOX ? piece->region.offset : NULL,
                 tensor->ndim);
    end_instance(w);
    begin_instance(w, FILESYSTEM, "_StorageInfo");
    put_key(w, "relative_path");
    put_key(w, file);
    put_number(w, "offset", (int64_t)offset);
    put_number(w, "length", (int64_t)size_bytes);
    if (piece && piece->has_crc)
        put_number(w, DCP_TORCH_DIST_CRC, (int64_t)piece->crc);
    end_instance(w);
}

static int put_pieces(struct writer *w, const struct dcp_out_key *key, size_t *at,
                      size_t n, struct dcp_error *err)
{
    const struct dcp_tensor *tensor = &w->catalog->tensors[key->tensor];

    for (size_t i = 0; i < tensor->n_pieces; i++) {
        const struct dcp_piece *piece = &w->catalog->pieces[tensor->first_piece + i];
        const struct dcp_torch_dist_head *head;
        struct dcp_tensor part;
        dcp_write_part(w->catalog, piece, &part);
        DCP_TRY(dcp_heads_get(w->heads, w->out->keys.style, &part, &head, err));
        dcp_pickle_fill_next(&w->pickle, DCP_PICKLE_FILL_DICT, (*at)++, n);
        put_item(w, key->key, tensor, i, piece, w->catalog->files[piece->file].name,
                 piece->offset - head->n, head->item_bytes);
    }
    return DCP_OK;
}

static int put_storage_data(struct writer *w, struct dcp_error *err)
{
    static const struct dcp_tensor step = { .dtype = DCP_F32 };
    char file[64];
    size_t n = 0, at = 0;
    int rc = DCP_OK;

    dcp_torch_dist_file_name(file, 0);
    for (size_t k = 0; k < w->out->n; k++)
        n += w->out->list[k].tensor < 0
                 ? 1
                 : w->catalog->tensors[w->out->list[k].tensor].n_pieces;
    dcp_pickle_op(&w->pickle, '}');
    for (size_t k = 0; k < w->out->n && !rc; k++) {
        const struct dcp_out_key *key = &w->out->list[k];
        if (key->tensor >= 0) {
            rc = put_pieces(w, key, &at, n, err);
            continue;
        }
        const struct dcp_out_item *item = &w->out->items[key->item];
        dcp_pickle_fill_next(&w->pickle, DCP_PICKLE_FILL_DICT, at++, n);
        put_item(w, key->key, key->is_step ? &step : NULL, 0, NULL, file, item->offset,
                 item->size_bytes);
    }
    dcp_pickle_fill_end(&w->pickle, DCP_PICKLE_FILL_DICT, n);
    return rc;
}

/* -- ours ---------------------------------------------------------------------------- */

/* {"__0_0.distcp": [size, crc64]} */
static json_t *files_of(const struct dcp_catalog *catalog)
{
    json_t *files = json_object();

    for (size_t f = 0; f < catalog->n_files && files; f++) {
        const struct dcp_file *file = &catalog->files[f];
        json_t *facts =
            json_pack("[I,I]", (json_int_t)file->size_bytes, (json_int_t)file->crc);
        if (file->has_crc && json_object_set_new(files, file->name, facts)) {
            json_decref(files);
            return NULL;
        }
        if (!file->has_crc)
            json_decref(facts);
    }
    return files;
}

/* The dict, whose last member is the digest. */
static int put_ours(struct writer *w, struct dcp_error *err)
{
    static const char zeros[DIGITS + 1] = "0000000000000000";
    const struct dcp_catalog *catalog = w->catalog;
    json_t *ours =
        json_pack("{s:i, s:I, s:i, s:s, s:o}", "version", DCP_TORCH_DIST_VERSION, "step",
                  (json_int_t)catalog->step, "world", catalog->world_size, "layout",
                  catalog->layout, "files", files_of(catalog));
    const char *key;
    json_t *value;
    size_t i = 0;

    if (!ours || json_object_update(ours, w->out->ours)) {
        json_decref(ours);
        return dcp_error_memory(err, "the index of a checkpoint");
    }
    size_t n = json_object_size(ours) + 1;
    int rc = DCP_OK;
    dcp_pickle_op(&w->pickle, '}');
    json_object_foreach(ours, key, value)
    {
        dcp_pickle_fill_next(&w->pickle, DCP_PICKLE_FILL_DICT, i++, n);
        put_key(w, key);
        if (!rc)
            rc = dcp_torch_write_value(&w->values, value, err);
    }
    dcp_pickle_fill_next(&w->pickle, DCP_PICKLE_FILL_DICT, i, n);
    put_key(w, DCP_TORCH_DIST_DIGEST);
    w->digest_at = w->pickle.buf.size_bytes + TEXT_HEAD_BYTES;
    dcp_pickle_text(&w->pickle, zeros, DIGITS);
    dcp_pickle_fill_end(&w->pickle, DCP_PICKLE_FILL_DICT, n);
    json_decref(ours);
    return rc;
}

static int put_attributes(struct writer *w, struct dcp_error *err)
{
    const char *key;
    json_t *value;
    int rc = DCP_OK;

    json_object_foreach(w->out->keys.attributes, key, value)
    {
        if (rc || !strcmp(key, DCP_TORCH_DIST_PLANS))
            continue;
        put_key(w, key);
        rc = dcp_torch_write_value(&w->values, value, err);
    }
    return rc;
}

static int put_all(struct writer *w, struct dcp_error *err)
{
    dcp_pickle_begin(&w->pickle);
    begin_instance(w, METADATA, "Metadata");
    put_key(w, "state_dict_metadata");
    put_state_dict(w);
    put_key(w, "planner_data");
    put_planner_data(w);
    put_key(w, "storage_data");
    int rc = put_storage_data(w, err);
    put_key(w, "storage_meta");
    dcp_pickle_none(&w->pickle);
    put_key(w, "version");
    dcp_pickle_shared_text(&w->pickle, VERSION);
    if (!rc)
        rc = put_attributes(w, err);
    put_key(w, DCP_TORCH_DIST_OURS);
    if (!rc)
        rc = put_ours(w, err);
    end_instance(w);
    dcp_pickle_end(&w->pickle);
    return rc ? rc : dcp_buf_check(&w->pickle.buf, err);
}

static int add_file(struct writer *w, struct dcp_target *target, struct dcp_error *err)
{
    unsigned char *data = w->pickle.buf.data;
    size_t n = w->pickle.buf.size_bytes;
    char digits[DIGITS + 1];
    int file;

    dcp_str_hex64(digits, dcp_hash_crc64(0, data, w->digest_at));
    memcpy(data + w->digest_at, digits, DIGITS);
    DCP_TRY(dcp_catalog_add_file(
        w->catalog, &(struct dcp_file){ .name = DCP_TORCH_DIST_METADATA_NAME }, &file,
        err));
    return dcp_target_literal_copy(target, file, 0, data, n, err);
}

int dcp_torch_dist_finish(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_torch_dist_state *state = target->state;
    struct dcp_catalog *none = NULL;
    struct writer w = { .catalog = target->catalog,
                        .out = &state->out,
                        .heads = &state->heads };
    struct dcp_arena *arena = dcp_arena_new();
    int rc = arena ? DCP_OK : dcp_error_memory(err, "the index of a checkpoint");

    for (int d = 0; d < DCP_N_DTYPES; d++)
        w.properties[d] = -1;
    if (!rc)
        rc = dcp_catalog_new(&none, err);
    w.values =
        (struct dcp_torch_writer){ .catalog = none, .out = &w.pickle, .arena = arena };
    if (!rc)
        rc = put_all(&w, err);
    if (!rc)
        rc = add_file(&w, target, err);
    dcp_pickle_out_fini(&w.pickle);
    dcp_catalog_free(none);
    dcp_arena_free(arena);
    return rc;
}
