/* write: header, table of tensors and places of their bytes, as gguf-py writes them.
 */
#include "base/bytes.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/literals.h"
#include "formats/common/training.h"
#include "formats/models/axes.h"
#include "formats/models/config.h"
#include "gguf.h"
#include <string.h>

#define WHAT "a GGUF file"
#define GENERAL_QUANTIZATION "general.quantization_version"

enum { VERSION = 3, QUANTIZATION_VERSION = 2 };

/* A tensor of the file. */
struct entry {
    size_t tensor; /* in the catalog */
    char name[DCP_NAMES_MAX_BYTES];
    enum dcp_names_axes axes;
    int64_t heads;
    int type; /* of ggml */
};

struct writer {
    struct dcp_catalog *catalog;
    json_t *config;                        /* NULL: tensors keep their names */
    const struct dcp_names_family *family; /* the same */
    json_t *metadata;
    struct entry *entries;
    float *factors; /* of the rotation, an additional tensor; or NULL */
    size_t n_factors;
    uint64_t align; /* of tensors: as in the source, or what every reader expects */
};

enum dcp_disposition dcp_gguf_disposition(const struct dcp_catalog *src,
                                          const struct dcp_identity *of_src,
                                          const struct dcp_catalog *target,
                                          const struct dcp_tensor *tensor)
{
    static const char *const families[] = { "gpt2", "llama" };

    (void)src, (void)of_src, (void)target;
    if (dcp_role_is_optim(tensor->role))
        return DCP_DISPOSITION_UNSUPPORTED;
    if (tensor->tied_to) /* where there is no head, it is the embedding */
        return strcmp(tensor->param, "lm_head.weight") ? DCP_DISPOSITION_UNSUPPORTED
                                                       : DCP_DISPOSITION_DERIVED;
    for (size_t i = 0; i < DCP_ARRAY_LEN(families); i++)
        if (dcp_names_dropped(dcp_names_family(families[i]), tensor->param))
            return DCP_DISPOSITION_DERIVED;
    return DCP_DISPOSITION_STORED;
}

/* -- names and types ----------------------------------------------------------------- */

static int refuse(const struct dcp_tensor *tensor, const char *why, struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_MISMATCH, tensor->name,
                               WHAT " cannot hold: tensor '%s' %s",
                               DCP_SHOWN(tensor->name), why);
}

static int set_name(const struct writer *w, const struct dcp_tensor *tensor,
                    struct entry *entry, struct dcp_error *err)
{
    struct dcp_names_match match;

    entry->heads = 1;
    if (!w->family) {
        if (strlen(tensor->name) > DCP_GGUF_MAX_NAME_BYTES)
            return refuse(tensor, "with a name of over 63 bytes", err);
        memcpy(entry->name, tensor->name, strlen(tensor->name) + 1);
        return DCP_OK;
    }
    if (!dcp_names_match(w->family, DCP_NAMES_HF, tensor->param, &match) ||
        !dcp_names_spell(&match, DCP_NAMES_GGUF, entry->name))
        return refuse(tensor, "whose name is unknown in a model of its kind", err);
    entry->axes = dcp_names_axes_of(&match, tensor->ndim);
    if (entry->axes != DCP_AXES_SAME &&
        ((tensor->ndim != 1 && tensor->ndim != 2) ||
         (entry->axes != DCP_AXES_TRANSPOSED &&
          !dcp_gguf_heads(w->config, entry->axes, tensor->shape[0], &entry->heads))))
        return refuse(tensor, "that does not divide into the configured number of heads",
                      err);
    return DCP_OK;
}

static bool is_short_float(enum dcp_dtype dtype)
{
    return dcp_dtype_is_float(dtype) && dcp_dtype_size(dtype) < 4;
}

/* llama.cpp computes with vectors in 32 bits, and its converter writes them so. */
static int set_type(const struct writer *w, struct dcp_tensor *tensor,
                    struct entry *entry, struct dcp_error *err)
{
    if (w->family && tensor->ndim <= 1 && is_short_float(tensor->dtype))
        tensor->dtype = DCP_F32;
    entry->type = dcp_gguf_type_of(tensor->dtype);
    if (entry->type < 0) {
        refuse(tensor, "of its dtype", err);
        dcp_error_hint(err, "--dtype fp16, bf16 or fp32 converts floating tensors");
        return DCP_E_MISMATCH;
    }
    return tensor->ndim > DCP_GGUF_MAX_DIMS
               ? refuse(tensor, "with more than 4 dimensions", err)
               : DCP_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Two spellings of a parameter have one name in the file. */
static int check_unique(const struct writer *w, struct dcp_error *err)
{
    size_t n = w->catalog->n_tensors;
    DCP_CLEANUP_FREE const char **names = dcp_mem_calloc(n, sizeof *names);

    if (!names)
        return dcp_error_memory(err, "names of tensors");
    for (size_t i = 0; i < n; i++)
        names[i] = w->entries[i].name;
    if (n)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(names[i - 1], names[i]))
            return dcp_error_set(err, DCP_E_MISMATCH,
                                 WHAT " cannot hold: two tensors named '%s'", names[i]);
    return DCP_OK;
}

static int make_entries(struct writer *w, struct dcp_error *err)
{
    w->entries = dcp_mem_calloc(w->catalog->n_tensors, sizeof *w->entries);
    if (!w->entries)
        return dcp_error_memory(err, "names of tensors");
    for (size_t i = 0; i < w->catalog->n_tensors; i++) {
        struct dcp_tensor *tensor = &w->catalog->tensors[i];
        w->entries[i].tensor = i;
        if (dcp_role_is_optim(tensor->role))
            return refuse(tensor, "of the optimizer", err);
        DCP_TRY(set_name(w, tensor, &w->entries[i], err));
        DCP_TRY(set_type(w, tensor, &w->entries[i], err));
    }
    return check_unique(w, err);
}

/* -- keys and values ----------------------------------------------------------------- */

/* What most matrices are: llama_ftype of llama.h. -1: it has no word for it. */
static int file_type(const struct dcp_catalog *catalog)
{
    int type = 0;

    for (size_t i = 0; i < catalog->n_tensors; i++) {
        enum dcp_dtype dtype = catalog->tensors[i].dtype;
        if (dtype == DCP_F16)
            return 1;
        if (dtype == DCP_BF16)
            return 32;
        if (dtype != DCP_F32)
            type = -1;
    }
    return type;
}

static bool take_alignment(struct writer *w, const json_t *old)
{
    int64_t align;

    if (!json_object_get(json_object_get(old, DCP_GGUF_ALIGNMENT), "u32") ||
        !dcp_gguf_get_int(old, DCP_GGUF_ALIGNMENT, &align) || align <= 0 ||
        align > DCP_GGUF_MAX_ALIGN || (align & (align - 1)))
        return false;
    w->align = (uint64_t)align;
    return true;
}

/* The keys that the source had: all of them when it was a model of the same kind, and of
 * any other the tokenizer. */
static int take_keys(struct writer *w, const json_t *old, struct dcp_error *err)
{
    static const char *const ours[] = { "split.no", "split.count",
                                        "split.tensors.count" };
    const char *architecture =
        json_string_value(json_object_get(old, DCP_GGUF_ARCHITECTURE));
    bool same = !w->family || (architecture && !strcmp(architecture, w->family->gguf));
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)old, key, value)
    {
        bool taken = same || dcp_str_starts(key, "tokenizer.");
        if (!strcmp(key, DCP_GGUF_ALIGNMENT))
            taken = same && take_alignment(w, old);
        for (size_t i = 0; i < DCP_ARRAY_LEN(ours); i++)
            taken = taken && strcmp(key, ours[i]) != 0;
        if (taken && json_object_set(w->metadata, key, value))
            return dcp_error_memory(err, "the keys of a GGUF file");
    }
    return DCP_OK;
}

static int make_keys(struct writer *w, const json_t *old, struct dcp_error *err)
{
    int type = file_type(w->catalog);

    w->metadata = json_object();
    int rc = w->metadata ? take_keys(w, old, err)
                         : dcp_error_memory(err, "the keys of a GGUF file");
    if (rc || !w->family)
        return rc;
    rc = dcp_gguf_from_config(w->config, w->family, w->metadata, err);
    if (!rc && type < 0)
        json_object_del(w->metadata, DCP_GGUF_FILE_TYPE);
    if (!rc && type >= 0 &&
        json_object_set_new(w->metadata, DCP_GGUF_FILE_TYPE, dcp_gguf_u32(type)))
        rc = dcp_error_memory(err, "the keys of a GGUF file");
    if (!rc && !json_object_get(w->metadata, GENERAL_QUANTIZATION) &&
        json_object_set_new(w->metadata, GENERAL_QUANTIZATION,
                            dcp_gguf_u32(QUANTIZATION_VERSION)))
        rc = dcp_error_memory(err, "the keys of a GGUF file");
    return rc;
}

/* Whether the tensors of a GGUF file that models/names.h does not know are to be written
 * as they are: there is no configuration, but the keys that the file had. */
static int find_model(struct writer *w, const struct dcp_target_options *options,
                      json_t **out_old, struct dcp_error *err)
{
    const char *text, *type;
    char shown[80];
    size_t n;

    int rc = dcp_training_read(w->catalog, DCP_GGUF_METADATA, out_old, err);
    if (rc || (*out_old && !dcp_model_config_text(w->catalog, options, &text, &n)))
        return rc;
    DCP_TRY(dcp_model_config_read(w->catalog, options, WHAT, &w->config, err));
    w->family = dcp_model_config_family(w->config);
    type = json_string_value(json_object_get(w->config, "model_type"));
    if (!w->family)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             WHAT
                             " cannot hold: a model of type '%s', whose names there are "
                             "not known",
                             dcp_str_escape(shown, sizeof shown, type ? type : ""));
    return dcp_gguf_rope_factors(w->config, &w->factors, &w->n_factors, err);
}

/* -- bytes --------------------------------------------------------------------------- */

static uint64_t padded(const struct writer *w, uint64_t size_bytes)
{
    return (size_bytes + w->align - 1) / w->align * w->align;
}

static void add_text(struct dcp_buf *buf, const char *text)
{
    dcp_buf_add_le64(buf, strlen(text));
    dcp_buf_add_text(buf, text);
}

/* One line of the table; returns where the next tensor begins. */
static uint64_t add_info(struct dcp_buf *buf, const struct writer *w,
                         const struct entry *entry, uint64_t at)
{
    const struct dcp_tensor *tensor = &w->catalog->tensors[entry->tensor];

    add_text(buf, entry->name);
    dcp_buf_add_le32(buf, (uint32_t)tensor->ndim);
    for (int d = 0; d < tensor->ndim; d++) /* the fastest first, which T exchanges */
        dcp_buf_add_le64(
            buf,
            (uint64_t)tensor
                ->shape[entry->axes == DCP_AXES_TRANSPOSED ? d : tensor->ndim - 1 - d]);
    dcp_buf_add_le32(buf, (uint32_t)entry->type);
    dcp_buf_add_le64(buf, at);
    return at + padded(w, dcp_tensor_bytes(tensor));
}

/* Everything before the first tensor, up to a multiple of the alignment. */
static int make_header(const struct writer *w, struct dcp_buf *buf, struct dcp_error *err)
{
    size_t n = w->catalog->n_tensors;
    uint64_t at = 0;
    const char *key;
    json_t *value;
    int rc = DCP_OK;

    dcp_buf_add(buf, "GGUF", 4);
    dcp_buf_add_le32(buf, VERSION);
    dcp_buf_add_le64(buf, n + (w->factors != NULL));
    dcp_buf_add_le64(buf, json_object_size(w->metadata));
    json_object_foreach(w->metadata, key, value)
    {
        add_text(buf, key);
        if (!rc)
            rc = dcp_gguf_add_value(buf, key, value, err);
    }
    for (size_t i = 0; i < n; i++)
        at = add_info(buf, w, &w->entries[i], at);
    if (w->factors) {
        add_text(buf, DCP_GGUF_ROPE_FREQS);
        dcp_buf_add_le32(buf, 1);
        dcp_buf_add_le64(buf, w->n_factors);
        dcp_buf_add_le32(buf, (uint32_t)dcp_gguf_type_of(DCP_F32));
        dcp_buf_add_le64(buf, at);
    }
    dcp_buf_add_fill(buf, 0, (size_t)(padded(w, buf->size_bytes) - buf->size_bytes));
    return rc ? rc : dcp_buf_check(buf, err);
}

/* The tensors one behind the other, each filled up with zeros. */
static int place_tensors(struct writer *w, int file, uint64_t *at,
                         struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = w->catalog;
    int rc = DCP_OK;

    for (size_t i = 0; i < catalog->n_tensors && !rc; i++) {
        uint64_t size = dcp_tensor_bytes(&catalog->tensors[i]);
        uint64_t end = *at + size, next = *at + padded(w, size);
        rc = dcp_axes_add_whole(catalog, (int)i, file, *at, w->entries[i].axes,
                                w->entries[i].heads, true, err);
        if (!rc)
            rc = dcp_literals_zeros(target, file, end, next - end, err);
        *at = next;
    }
    return rc;
}

static int place_factors(struct writer *w, int file, uint64_t *at,
                         struct dcp_target *target, struct dcp_error *err)
{
    size_t n = (size_t)padded(w, 4 * w->n_factors);
    DCP_CLEANUP_FREE unsigned char *bytes = dcp_mem_calloc(n, 1);

    if (!w->factors)
        return DCP_OK;
    if (!bytes)
        return dcp_error_memory(err, "a header");
    for (size_t i = 0; i < w->n_factors; i++) {
        uint32_t bits;
        memcpy(&bits, &w->factors[i], sizeof bits);
        dcp_put_le32(bytes + 4 * i, bits);
    }
    int rc = dcp_target_literal_copy(target, file, *at, bytes, n, err);
    *at += n;
    return rc;
}

static int place_all(struct writer *w, struct dcp_target *target, struct dcp_error *err)
{
    const char *name = target->options->name ? target->options->name : "model.gguf";
    DCP_CLEANUP_BUF struct dcp_buf header = { 0 };
    int file;

    DCP_TRY(make_header(w, &header, err));
    DCP_TRY(
        dcp_catalog_add_file(w->catalog, &(struct dcp_file){ .name = name }, &file, err));
    DCP_TRY(dcp_literals_take(target, file, 0, &header, err));
    uint64_t at = header.size_bytes;
    int rc = place_tensors(w, file, &at, target, err);
    if (!rc)
        rc = place_factors(w, file, &at, target, err);
    w->catalog->files[file].size_bytes = at;
    return rc;
}

int dcp_gguf_assign(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    struct writer w = { .catalog = catalog, .align = DCP_GGUF_ALIGN };
    DCP_CLEANUP_JSON json_t *old = NULL;

    int rc = find_model(&w, target->options, &old, err);
    if (!rc)
        rc = make_entries(&w, err);
    if (!rc)
        rc = make_keys(&w, old, err);
    if (w.config)
        dcp_model_config_hold(catalog);
    if (old)
        dcp_catalog_mark_stored(catalog, DCP_GGUF_METADATA);
    if (!rc)
        rc = place_all(&w, target, err);
    json_decref(w.config);
    json_decref(w.metadata);
    free(w.entries);
    free(w.factors);
    return rc;
}
