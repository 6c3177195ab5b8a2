/* safetensors: one file, read strictly. */
#include "safetensors.h"
#include "base/bytes.h"
#include "base/json_walk.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/roles.h"
#include "formats/common/ties.h"
#include "parts.h"
#include <string.h>

#define DEFAULT_NAME "model.safetensors"
#define METADATA_KEY "__metadata__"

enum { LENGTH_BYTES = 8, BID = 72 /* the length, and how a header begins */ };

struct header {
    const struct dcp_input *in;
    uint64_t data_begin; /* in the file */
    struct dcp_catalog *catalog;
    int file;
    struct range *ranges; /* of all tensors */
    size_t n_ranges, cap_ranges;
};

struct range {
    uint64_t begin, end; /* in the data */
    const char *name;
};

static int corrupt(const struct header *h, const char *tensor, const char *what,
                   struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_CORRUPT, tensor, "'%s': tensor '%s' %s",
                               h->in->shown, DCP_SHOWN(tensor), what);
}

/* -- reading ------------------------------------------------------------------------- */

static int parse_dtype(const struct header *h, const char *tensor, const char *name,
                       enum dcp_dtype *out, struct dcp_error *err)
{
    char shown_dtype[32];

    if (!name)
        return corrupt(h, tensor, "has no dtype", err);
    for (int d = 0; d < DCP_N_DTYPES; d++)
        if (!strcmp(name, dcp_dtype_name((enum dcp_dtype)d))) {
            *out = (enum dcp_dtype)d;
            return DCP_OK;
        }
    return dcp_error_set(err, DCP_E_UNSUPPORTED,
                         "'%s': tensor '%s' has the dtype '%s', which is not supported",
                         h->in->shown, DCP_SHOWN(tensor),
                         dcp_str_escape(shown_dtype, sizeof shown_dtype, name));
}

static bool parse_number(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int parse_shape(const struct header *h, const char *tensor, const json_t *shape,
                       struct dcp_tensor *out, int64_t numbers[DCP_MAX_NDIM],
                       struct dcp_error *err)
{
    uint64_t number;

    if (!json_is_array(shape))
        return corrupt(h, tensor, "has no shape", err);
    if (json_array_size(shape) > DCP_MAX_NDIM)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s': a tensor has over %d dimensions", h->in->shown,
                             DCP_MAX_NDIM);
    out->ndim = (int)json_array_size(shape);
    for (int d = 0; d < out->ndim; d++) {
        if (!parse_number(json_array_get(shape, (size_t)d), &number))
            return corrupt(h, tensor, "has a dimension that is no count", err);
        numbers[d] = (int64_t)number;
    }
    out->shape = numbers;
    return DCP_OK;
}

/* One member of the header: {"dtype": …, "shape": […], "data_offsets": [begin, end]}. */
static int add_tensor(struct header *h, const char *name, const json_t *entry,
                      struct dcp_error *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    int64_t shape[DCP_MAX_NDIM];
    struct dcp_tensor tensor = { .name = name };
    struct range *range;
    int index;

    if (!name[0])
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' has a tensor whose name is empty, which is not "
                             "supported",
                             h->in->shown);
    DCP_TRY(parse_dtype(h, name, json_string_value(json_object_get(entry, "dtype")),
                        &tensor.dtype, err));
    DCP_TRY(parse_shape(h, name, json_object_get(entry, "shape"), &tensor, shape, err));
    range = dcp_mem_grow(h->ranges, &h->cap_ranges, h->n_ranges + 1, sizeof *range);
    if (!range)
        return dcp_error_memory(err, "a safetensors header");
    h->ranges = range;
    range += h->n_ranges;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !parse_number(json_array_get(offsets, 0), &range->begin) ||
        !parse_number(json_array_get(offsets, 1), &range->end) ||
        range->begin > range->end)
        return corrupt(h, name, "has no valid data_offsets", err);
    tensor.role = dcp_role_of_name(name, &tensor.param);
    int rc = dcp_catalog_add_tensor(h->catalog, &tensor, &index, err);
    if (rc) {
        dcp_error_prefix(err, "'%s'", h->in->shown);
        return rc;
    }
    uint64_t size_bytes = dcp_tensor_bytes(&h->catalog->tensors[index]);
    if (size_bytes != range->end - range->begin)
        return corrupt(h, name, "has more or fewer bytes than its shape needs", err);
    range->name = h->catalog->tensors[index].name;
    h->n_ranges++;
    const struct dcp_piece piece = { .tensor = index,
                                     .file = h->file,
                                     .offset = h->data_begin + range->begin,
                                     .stored_size = size_bytes };
    return dcp_catalog_add_piece(h->catalog, &piece, err);
}

static int by_begin(const void *p, const void *q)
{
    const struct range *a = p, *b = q;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* The tensors cover the data: no hole, no overlap, nothing behind. */
static int check_ranges(struct header *h, struct dcp_error *err)
{
    uint64_t at = 0, data_bytes = h->in->size_bytes - h->data_begin;

    if (h->n_ranges)
        qsort(h->ranges, h->n_ranges, sizeof *h->ranges, by_begin);
    for (size_t i = 0; i < h->n_ranges; i++) {
        if (h->ranges[i].begin != at)
            return corrupt(h, h->ranges[i].name,
                           "does not begin where the tensor before it ends", err);
        at = h->ranges[i].end;
        if (at > data_bytes)
            return corrupt(h, h->ranges[i].name,
                           "reaches past the end of the file, which is incomplete", err);
    }
    if (at != data_bytes)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s': %llu bytes follow the last tensor", h->in->shown,
                             (unsigned long long)(data_bytes - at));
    return DCP_OK;
}

static int add_metadata(struct header *h, json_t *metadata, struct dcp_error *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s': __metadata__ is not an object",
                             h->in->shown);
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return dcp_error_set(err, DCP_E_CORRUPT,
                                 "'%s': __metadata__ holds a value that is no string",
                                 h->in->shown);
    }
    const char *format = json_string_value(json_object_get(metadata, "format"));
    if (format && !strcmp(format, "pt"))
        json_object_del(metadata, "format");
    DCP_TRY(dcp_ties_index(h->catalog, metadata, err));
    if (!json_object_size(metadata))
        return DCP_OK;
    DCP_CLEANUP_FREE char *text = dcp_json_text(metadata, 0);
    if (!text)
        return dcp_error_memory(err, "the metadata");
    const struct dcp_object object = { .name = DCP_SAFETENSORS_METADATA,
                                       .kind = DCP_OBJECT_JSON,
                                       .data = text,
                                       .size_bytes = strlen(text) };
    return dcp_catalog_add_object(h->catalog, &object, err);
}

static int add_members(struct header *h, struct dcp_json_span text, struct dcp_error *err)
{
    DCP_CLEANUP_WALK struct dcp_json_walk walk;
    DCP_CLEANUP_JSON json_t *metadata = NULL;

    DCP_TRY(dcp_json_walk_init(&walk, text, text, '{', h->in->shown, err));
    while (dcp_json_walk_next(&walk, err)) {
        DCP_CLEANUP_JSON json_t *entry = NULL;
        const char *name = dcp_json_walk_key(&walk);
        DCP_TRY(dcp_json_walk_parse(&walk, &entry, err));
        if (strcmp(name, METADATA_KEY) != 0)
            DCP_TRY(add_tensor(h, name, entry, err));
        else if (metadata)
            return dcp_error_set(err, DCP_E_CORRUPT, "'%s': there are two __metadata__",
                                 h->in->shown);
        else
            metadata = json_incref(entry);
    }
    DCP_TRY(walk.rc);
    DCP_TRY(check_ranges(h, err));
    return metadata ? add_metadata(h, metadata, err) : DCP_OK;
}

static int read_length(const struct dcp_input *in, uint64_t *out, struct dcp_error *err)
{
    unsigned char length[LENGTH_BYTES];
    int rc = dcp_input_read(in, 0, length, sizeof length, err);

    *out = rc ? 0 : dcp_le64(length);
    return rc;
}

static int check_length(const struct dcp_input *in, uint64_t length,
                        struct dcp_error *err)
{
    if (length > in->size_bytes - LENGTH_BYTES) {
        dcp_error_set(err, DCP_E_CORRUPT, "'%s' ends inside its header: it is incomplete",
                      in->shown);
        dcp_error_hint(err, "copy or download it again");
        return DCP_E_CORRUPT;
    }
    return dcp_store_check_header(in->store, in->name, length,
                                  DCP_SAFETENSORS_MAX_HEADER_BYTES, err);
}

int dcp_safetensors_index_file(const struct dcp_source *source, const char *name,
                               struct dcp_catalog *catalog, struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    DCP_CLEANUP_FREE void *text = NULL;
    uint64_t length;

    DCP_TRY(dcp_input_open(&in, source, name, err));
    DCP_TRY(read_length(&in, &length, err));
    DCP_TRY(check_length(&in, length, err));
    DCP_TRY(dcp_input_read_new(&in, LENGTH_BYTES, (size_t)length, &text, err));
    struct header h = { .in = &in,
                        .data_begin = LENGTH_BYTES + length,
                        .catalog = catalog };
    const struct dcp_file file = { .name = dcp_input_base(&in, source),
                                   .size_bytes = in.size_bytes };
    int rc = dcp_catalog_add_file(catalog, &file, &h.file, err);
    if (!rc)
        rc = add_members(&h, (struct dcp_json_span){ text, (size_t)length }, err);
    free(h.ranges);
    return rc;
}

/* A file that ends inside its header, or has too large a one, is one, too: it is told so
 * by name. */
static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    char head[64] = "";
    uint64_t length;

    if (source->is_dir || dcp_input_open(&in, source, NULL, NULL) ||
        read_length(&in, &length, NULL))
        return 0;
    if (length > in.size_bytes - LENGTH_BYTES &&
        length > DCP_SAFETENSORS_MAX_HEADER_BYTES)
        return 0;
    if (length > in.size_bytes - LENGTH_BYTES)
        length = in.size_bytes - LENGTH_BYTES;
    size_t n = length < sizeof head - 1 ? (size_t)length : sizeof head - 1;
    if (dcp_input_read(&in, LENGTH_BYTES, head, n, NULL))
        return 0;
    const char *brace = head + strspn(head, " \t\r\n");
    if (*brace != '{' && *brace)
        return 0;
    const char *next = brace + 1 + (*brace ? strspn(brace + 1, " \t\r\n") : 0);
    return *brace && (*next == '"' || *next == '}') ? BID : 0;
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    catalog->format = dcp_format_safetensors.name;
    DCP_TRY(dcp_safetensors_index_file(source, NULL, catalog, err));
    DCP_TRY(dcp_parts_refuse(catalog, err));
    return dcp_roles_find_plain(catalog, err);
}

/* -- writing ------------------------------------------------------------------------- */

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = target->catalog;
    const struct dcp_target_options *options = target->options;
    DCP_CLEANUP_FREE size_t *tensors =
        dcp_mem_calloc(catalog->n_tensors, sizeof *tensors);
    uint64_t total_bytes = 0;
    size_t n = 0;

    if (!tensors)
        return dcp_error_memory(err, "a safetensors header");
    for (size_t i = 0; i < catalog->n_tensors; i++) {
        if (catalog->tensors[i].tied_to)
            continue;
        tensors[n++] = i;
        total_bytes += dcp_tensor_bytes(&catalog->tensors[i]);
    }
    if (options->max_shard_size_bytes && total_bytes > options->max_shard_size_bytes) {
        dcp_error_set(err, DCP_E_MISMATCH,
                      "one safetensors file cannot hold: %llu bytes in shards of %llu",
                      (unsigned long long)total_bytes,
                      (unsigned long long)options->max_shard_size_bytes);
        dcp_error_hint(err, "--to safetensors-sharded writes a folder of shards");
        return DCP_E_MISMATCH;
    }
    return dcp_safetensors_assign_file(
        target, options->name ? options->name : DEFAULT_NAME, tensors, n, err);
}

const struct dcp_format dcp_format_safetensors = {
    .name = "safetensors",
    .help = "safetensors file",
    .suffixes = ".safetensors",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_OPTIM | DCP_FORMAT_TIES,
    .probe = probe,
    .index = index_source,
    .partition = dcp_partition_whole,
    .assign = assign,
};
