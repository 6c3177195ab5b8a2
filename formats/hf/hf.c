/* hf: a Hugging Face model folder: config.json, and the weights in one of four forms. */
#include "hf.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "files.h"
#include "formats/common/input.h"
#include "formats/common/merge.h"
#include "formats/common/roles.h"
#include "formats/common/training.h"
#include "formats/foreign/foreign.h"
#include "formats/models/config.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "weights.h"
#include <stdio.h>
#include <string.h>

#define CONFIG_NAME "config.json"
#define QUANTIZATION "quantization_config"

enum { BID = 128, BID_NO_WEIGHTS = 1, MAX_CONFIG_BYTES = 16 << 20 };

static const struct dcp_weights *find_weights(const struct dcp_source *source)
{
    return dcp_weights_find(source, DCP_WEIGHTS_HF);
}

static int read_config(const struct dcp_source *source, void **out_text, size_t *out_n,
                       json_t **out, struct dcp_error *err)
{
    DCP_TRY(dcp_source_read(source, CONFIG_NAME, MAX_CONFIG_BYTES, out_text, out_n, err));
    DCP_TRY(dcp_json_parse(*out_text, *out_n, CONFIG_NAME, out, err));
    if (!json_is_object(*out))
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is no JSON object", CONFIG_NAME);
    return DCP_OK;
}

/* Whether it is no JSON, not even as Python writes it. */
static bool is_damaged(const char *text, size_t n)
{
    DCP_CLEANUP_JSON json_t *any = json_loadb(text, n, JSON_DECODE_ANY, NULL);

    return !any && !memmem(text, n, "Infinity", 8) && !memmem(text, n, "NaN", 3);
}

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_JSON json_t *config = NULL;
    size_t n = 0;

    if (!source->is_dir || !dcp_source_has(source, CONFIG_NAME))
        return 0;
    if (read_config(source, &text, &n, &config, NULL)) /* index tells what is damaged */
        return text && is_damaged(text, n) && find_weights(source) ? BID : 0;
    if (!json_object_get(config, "model_type") &&
        !json_object_get(config, "architectures"))
        return 0;
    return find_weights(source) ? BID : BID_NO_WEIGHTS;
}

/* -- reading ------------------------------------------------------------------------- */

struct naming {
    const struct dcp_names_family *family; /* NULL: names stay as they are */
    const struct dcp_tensor *repeated; /* left out: the embedding once more, or NULL */
    bool add_prefix;
    size_t strip; /* bytes of a wrapper before every name */
    char *name;   /* scratch */
    bool failed;  /* memory ran out */
};

/* Whether the top of the file's tree is a dict with that key. */
static bool tree_has_key(const struct dcp_catalog *catalog, const char *key)
{
    int at = dcp_catalog_find_object(catalog, DCP_TORCH_TREE);
    DCP_CLEANUP_JSON json_t *tree = NULL;

    return at >= 0 &&
           !dcp_json_parse(catalog->objects[at].data, catalog->objects[at].size_bytes,
                           DCP_TORCH_TREE, &tree, NULL) &&
           json_object_get(tree, key);
}

/* {"state_dict": {…}, "epoch": 3}: the length of what stands before every name. */
static size_t find_wrapper(const struct dcp_catalog *catalog)
{
    static const char *const wrappers[] = { "state_dict", "model", "module" };

    for (size_t i = 0; i < DCP_ARRAY_LEN(wrappers); i++) {
        size_t n = strlen(wrappers[i]), t = 0;
        while (t < catalog->n_tensors &&
               !strncmp(catalog->tensors[t].name, wrappers[i], n) &&
               catalog->tensors[t].name[n] == '.' && catalog->tensors[t].name[n + 1])
            t++;
        if (t && t == catalog->n_tensors && tree_has_key(catalog, wrappers[i]))
            return n + 1;
    }
    return 0;
}

static const char *take_named(void *self, const struct dcp_tensor *tensor)
{
    struct naming *naming = self;
    const struct dcp_names_family *family = naming->family;
    const char *name = tensor->name + naming->strip;

    if (!family)
        return name;
    if (tensor == naming->repeated || dcp_names_dropped(family, name))
        return NULL;
    if (!naming->add_prefix || dcp_str_starts(name, family->head))
        return name;
    size_t n = strlen(family->prefix) + strlen(name) + 1;
    free(naming->name);
    naming->name = malloc(n);
    if (naming->name)
        snprintf(naming->name, n, "%s%s", family->prefix, name);
    else
        naming->failed = true;
    return naming->name;
}

static bool lacks_prefix(const struct dcp_catalog *catalog, const struct naming *naming)
{
    for (size_t i = 0; i < catalog->n_tensors; i++)
        if (dcp_str_starts(catalog->tensors[i].name + naming->strip,
                           naming->family->prefix))
            return false;
    return true;
}

/* The tensor that GGUF knows by that name, or NULL. */
static const struct dcp_tensor *find(const struct dcp_catalog *own,
                                     const struct naming *naming, const char *of_gguf)
{
    char name[DCP_NAMES_MAX_BYTES];

    for (size_t i = 0; i < own->n_tensors; i++)
        if (dcp_names_translate(naming->family, DCP_NAMES_HF, DCP_NAMES_GGUF,
                                own->tensors[i].name + naming->strip, name) &&
            !strcmp(name, of_gguf))
            return &own->tensors[i];
    return NULL;
}

static int digest(const struct dcp_input *in, uint64_t offset, uint64_t n, uint64_t *out,
                  struct dcp_error *err)
{
    DCP_CLEANUP_FREE unsigned char *buffer = malloc(DCP_HASH_SLICE);

    *out = 0;
    if (!buffer)
        return dcp_error_memory(err, "a digest");
    for (size_t part; n; n -= part, offset += part) {
        part = n < DCP_HASH_SLICE ? (size_t)n : DCP_HASH_SLICE;
        DCP_TRY(dcp_input_read(in, offset, buffer, part, err));
        *out = dcp_hash_crc64(*out, buffer, part);
    }
    return DCP_OK;
}

/* Whether two extents of one size hold the same: their beginnings, then all of them. One
 * is read after the other, for an archive may know no way back but from its beginning. */
static int same_extents(const struct dcp_source *source, const struct dcp_catalog *own,
                        const struct dcp_piece *a, const struct dcp_piece *b,
                        bool *out_same, struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in_a = { 0 }, in_b = { 0 };
    uint64_t n = a->stored_size < DCP_HASH_SLICE ? a->stored_size : DCP_HASH_SLICE;
    uint64_t of_a, of_b;

    DCP_TRY(dcp_input_open(&in_a, source, own->files[a->file].name, err));
    DCP_TRY(dcp_input_open(&in_b, source, own->files[b->file].name, err));
    for (bool whole = false; *out_same && !whole; n = a->stored_size) {
        whole = n == a->stored_size;
        DCP_TRY(digest(&in_a, a->offset, n, &of_a, err));
        DCP_TRY(digest(&in_b, b->offset, n, &of_b, err));
        *out_same = of_a == of_b;
    }
    return DCP_OK;
}

/* Of the tensors that a file of torch.save has under several names. */
static const char *first_name(const struct dcp_tensor *tensor)
{
    return tensor->tied_to ? tensor->tied_to : tensor->name;
}

static bool same_type(const struct dcp_tensor *a, const struct dcp_tensor *b)
{
    return a->dtype == b->dtype && a->ndim && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

static bool same_form(const struct dcp_piece *a, const struct dcp_piece *b)
{
    return a->file >= 0 && b->file >= 0 && a->codec == b->codec && a->skip == b->skip &&
           a->stored_size == b->stored_size && a->swap_bytes == b->swap_bytes &&
           !a->stride && !b->stride;
}

/* Finds a head that repeats the embedding, where the configuration ties them: bytes
 * alone decide, as in transformers, which takes a head that differs for one of its own.
 */
static int find_repeated(const struct dcp_source *source, struct dcp_catalog *own,
                         struct naming *naming, struct dcp_error *err)
{
    DCP_TRY(dcp_catalog_sort(own, err));
    const struct dcp_tensor *head = find(own, naming, "output.weight"),
                            *embedding = find(own, naming, "token_embd.weight");

    if (!head || !embedding || !same_type(head, embedding) || head->n_pieces != 1 ||
        embedding->n_pieces != 1)
        return DCP_OK;
    const struct dcp_piece *a = &own->pieces[head->first_piece],
                           *b = &own->pieces[embedding->first_piece];
    bool same = !strcmp(first_name(head), first_name(embedding));
    if (!same && same_form(a, b)) {
        same = true;
        DCP_TRY(same_extents(source, own, a, b, &same, err));
    }
    naming->repeated = same ? head : NULL;
    return DCP_OK;
}

/* Takes the tensors over under the names that the family's models use. */
static int take_tensors(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_catalog *own, const json_t *config,
                        struct dcp_error *err)
{
    struct naming naming = { .family = dcp_model_config_family(config),
                             .strip = find_wrapper(own) };
    const struct dcp_merge_rule rule = { .name = take_named, .self = &naming };

    if (naming.family) {
        if (dcp_model_config_tied(config, naming.family))
            DCP_TRY(find_repeated(source, own, &naming, err));
        naming.add_prefix = !dcp_model_config_is_base(config, naming.family) &&
                            lacks_prefix(own, &naming);
    }
    int rc = dcp_merge(catalog, own, &rule, err);
    if (!rc && naming.failed)
        rc = dcp_error_memory(err, "a tensor name");
    free(naming.name);
    return rc ? rc : dcp_merge_object(catalog, own, DCP_SAFETENSORS_METADATA, err);
}

/* A configuration without weights, or with those of another library. */
static int refuse(const struct dcp_source *source, struct dcp_error *err)
{
    struct dcp_foreign foreign;

    if (dcp_foreign_find(source, &foreign)) {
        free(foreign.folder);
        dcp_error_set(err, DCP_E_UNSUPPORTED, "the folder of Hugging Face %s",
                      foreign.kind);
        dcp_error_hint(err, "%s", foreign.hint);
        return DCP_E_UNSUPPORTED;
    }
    dcp_error_set(err, DCP_E_CORRUPT,
                  "it has a config.json of Hugging Face, but no weights: neither "
                  "model.safetensors, nor pytorch_model.bin, nor the index of either");
    dcp_error_hint(err, "copy or download the folder again, with its weights");
    return DCP_E_CORRUPT;
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    const struct dcp_weights *weights = find_weights(source);
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_JSON json_t *config = NULL;
    struct dcp_catalog *own = NULL;
    size_t n;

    if (!weights)
        return refuse(source, err);
    int rc = read_config(source, &text, &n, &config, err);
    if (!rc)
        rc = dcp_catalog_new(&own, err);
    if (!rc)
        rc = dcp_weights_index(source, weights, own, err);
    if (!rc)
        rc = take_tensors(source, catalog, own, config, err);
    if (!rc)
        rc = dcp_roles_find_buffers(catalog, err);
    dcp_catalog_free(own);
    if (rc)
        return rc;
    catalog->format = dcp_format_hf.name;
    catalog->version = weights->name;
    const struct dcp_object object = { .name = DCP_TRAINING_MODEL_CONFIG,
                                       .kind = DCP_OBJECT_JSON,
                                       .data = text,
                                       .size_bytes = n };
    rc = dcp_catalog_add_object(catalog, &object, err);
    return rc ? rc : dcp_hf_files_index(source, weights->name, catalog, err);
}

/* -- writing ------------------------------------------------------------------------- */

/* The one dtype of all floating tensors, or -1. */
static int common_dtype(const struct dcp_catalog *catalog)
{
    int dtype = -1;

    for (size_t i = 0; i < catalog->n_tensors; i++) {
        const struct dcp_tensor *tensor = &catalog->tensors[i];
        if (!dcp_dtype_is_float(tensor->dtype))
            continue;
        if (dtype >= 0 && dtype != (int)tensor->dtype)
            return -1;
        dtype = (int)tensor->dtype;
    }
    return dtype;
}

/* Makes the configuration tell the dtype that the weights have. *out_changed: it did not
 * before. */
static int set_dtype(json_t *config, int dtype, bool *out_changed)
{
    const char *key = json_object_get(config, "dtype") ? "dtype" : "torch_dtype";
    const char *old = json_string_value(json_object_get(config, key));
    const char *name = dtype >= 0 ? dcp_dtype_torch_name((enum dcp_dtype)dtype) : NULL;

    *out_changed = name && (!old || strcmp(old, name));
    return *out_changed ? json_object_set_new(config, key, json_string(name)) : 0;
}

/* Whether 8-bit floats or packed numbers are left of a quantized model. */
static bool is_quantized(const struct dcp_catalog *catalog)
{
    for (size_t i = 0; i < catalog->n_tensors; i++)
        if (dcp_dtype_size(catalog->tensors[i].dtype) == 1 ||
            catalog->tensors[i].dtype == DCP_I32)
            return true;
    return false;
}

/* Weights that were cast out of 8 bits are quantized no more. */
static int drop_quantization(const struct dcp_catalog *catalog, json_t *config,
                             bool *out_changed)
{
    *out_changed = json_object_get(config, QUANTIZATION) && !is_quantized(catalog);
    return *out_changed ? json_object_del(config, QUANTIZATION) : 0;
}

static int add_config(struct dcp_target *target, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    const struct dcp_target_options *options = target->options;
    DCP_CLEANUP_JSON json_t *config = NULL;
    DCP_CLEANUP_FREE char *rewritten = NULL;
    const char *text = NULL;
    bool changed, dropped;
    size_t n = 0;
    int file;

    DCP_TRY(
        dcp_model_config_read(catalog, options, "a Hugging Face folder", &config, err));
    dcp_model_config_text(catalog, options, &text, &n);
    dcp_model_config_hold(catalog);
    if (set_dtype(config, common_dtype(catalog), &changed) ||
        drop_quantization(catalog, config, &dropped) ||
        ((changed || dropped) && !(rewritten = dcp_json_text(config, 2))))
        return dcp_error_memory(err, CONFIG_NAME);
    if (rewritten) {
        text = rewritten;
        n = strlen(rewritten);
    }
    bool add_newline = !n || text[n - 1] != '\n';
    char *data = dcp_catalog_alloc(catalog, n + 1, 1);
    if (!data)
        return dcp_error_memory(err, CONFIG_NAME);
    memcpy(data, text, n);
    if (add_newline)
        data[n++] = '\n';
    const struct dcp_file entry = { .name = CONFIG_NAME, .size_bytes = n };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &file, err));
    return dcp_target_literal(target, file, 0, data, n, err);
}

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    DCP_TRY(add_config(target, err));
    DCP_TRY(dcp_hf_files_assign(target, err));
    return dcp_safetensors_assign_folder(target, "model", err);
}

const struct dcp_format dcp_format_hf = {
    .name = "hf",
    .help = "Hugging Face folder: config.json and weights",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_IS_DIR | DCP_FORMAT_TIES |
             DCP_FORMAT_FILES,
    .beside = DCP_HF_FILE,
    .probe = probe,
    .index = index_source,
    .partition = dcp_partition_whole,
    .assign = assign,
};
