/* llmc: a model file of llm.c, read and written. */
#include "llmc.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/literals.h"
#include "formats/common/training.h"
#include "formats/models/axes.h"
#include "formats/models/config.h"
#include <string.h>

#define WHAT "a model file of llm.c"
#define EPSILON 1e-5 /* of its layer norm */

enum { MAGIC_BYTES = 4, BID = 8 * MAGIC_BYTES, ZEROS_BYTES = 1 << 20 };

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    unsigned char magic[MAGIC_BYTES];

    return !source->is_dir && !dcp_input_open(&in, source, NULL, NULL) &&
                   !dcp_input_read(&in, 0, magic, sizeof magic, NULL) &&
                   dcp_le32(magic) == DCP_LLMC_MODEL_MAGIC
               ? BID
               : 0;
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    struct dcp_llmc_model model;

    catalog->format = dcp_format_llmc.name;
    DCP_TRY(dcp_input_open(&in, source, NULL, err));
    DCP_TRY(dcp_llmc_read_model(&in, &model, err));
    return dcp_llmc_index_model(catalog, &in, dcp_input_base(&in, source), &model, err);
}

/* -- the model of a catalog ---------------------------------------------------------- */

enum dcp_disposition dcp_llmc_disposition(const struct dcp_catalog *src,
                                          const struct dcp_identity *of_src,
                                          const struct dcp_catalog *target,
                                          const struct dcp_tensor *tensor)
{
    (void)src, (void)of_src, (void)target;
    if (tensor->role == DCP_ROLE_OPTIM || tensor->role == DCP_ROLE_OTHER)
        return DCP_DISPOSITION_UNSUPPORTED;
    if (tensor->tied_to) /* the head is always the embedding */
        return strcmp(tensor->param, "lm_head.weight") ? DCP_DISPOSITION_UNSUPPORTED
                                                       : DCP_DISPOSITION_DERIVED;
    return dcp_names_dropped(dcp_names_family("gpt2"), tensor->param)
               ? DCP_DISPOSITION_DERIVED
               : DCP_DISPOSITION_STORED;
}

static int refuse(const struct dcp_tensor *tensor, const char *what, const char *why,
                  struct dcp_error *err)
{
    return dcp_error_of_tensor(err, DCP_E_MISMATCH, tensor->name,
                               "%s cannot hold: tensor '%s' %s", what,
                               DCP_SHOWN(tensor->name), why);
}

/* What the program has no other of. */
static int check_config(const json_t *config, const char *what, struct dcp_error *err)
{
    static const char *const activations[] = { "gelu_new", "gelu_pytorch_tanh",
                                               "gelu_fast", NULL };
    static const char *const types[] = { "gpt2", NULL };
    int64_t inner, channels = 0;
    double epsilon;

    DCP_TRY(dcp_model_config_check(config, "model_type", types, what, err));
    DCP_TRY(
        dcp_model_config_check(config, "activation_function", activations, what, err));
    dcp_model_config_int(config, "n_embd", NULL, &channels);
    if (dcp_model_config_int(config, "n_inner", NULL, &inner) &&
        (inner % 4 || inner / 4 != channels))
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "%s cannot hold: a model whose n_inner is not 4 × n_embd",
                             what);
    if (dcp_model_config_real(config, "layer_norm_epsilon", &epsilon) &&
        (float)epsilon != (float)EPSILON)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "%s cannot hold: a layer_norm_epsilon other than 1e-5",
                             what);
    return DCP_OK;
}

static int read_config(const struct dcp_catalog *catalog,
                       const struct dcp_target_options *options, const char *what,
                       struct dcp_llmc_model *model, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *config = NULL;
    DCP_CLEANUP_JSON json_t *own = NULL;

    DCP_TRY(dcp_model_config_read(catalog, options, what, &config, err));
    DCP_TRY(check_config(config, what, err));
    DCP_TRY(dcp_training_read(catalog, DCP_LLMC_MODEL, &own, err));
    if (!dcp_model_config_int(config, "n_layer", NULL, &model->layers) ||
        !dcp_model_config_int(config, "n_head", NULL, &model->heads) ||
        !dcp_model_config_int(config, "n_embd", NULL, &model->channels) ||
        !dcp_model_config_int(config, "n_positions", "n_ctx", &model->context) ||
        !dcp_model_config_int(config, "vocab_size", NULL, &model->vocab) ||
        model->vocab > INT32_MAX - DCP_LLMC_VOCAB_MULTIPLE || model->context > INT32_MAX)
        return dcp_error_set(err, DCP_E_MISMATCH,
                             "%s needs a model configuration with n_layer, n_head, "
                             "n_embd, n_positions and vocab_size",
                             what);
    dcp_model_config_int(own, "padded_vocab_size", NULL, &model->padded_vocab);
    if (model->padded_vocab < model->vocab || model->padded_vocab > INT32_MAX)
        model->padded_vocab = (model->vocab + DCP_LLMC_VOCAB_MULTIPLE - 1) /
                              DCP_LLMC_VOCAB_MULTIPLE * DCP_LLMC_VOCAB_MULTIPLE;
    return DCP_OK;
}

/* Splits a name into its array and layer. */
static bool find_slot(const struct dcp_llmc_model *model, const char *param,
                      struct dcp_llmc_slot *out)
{
    const struct dcp_names_family *family = dcp_names_family("gpt2");
    char wanted[DCP_NAMES_MAX_BYTES], name[DCP_NAMES_MAX_BYTES];
    struct dcp_names_match match;

    if (!dcp_names_match(family, DCP_NAMES_HF, param, &match) ||
        !dcp_names_spell(&match, DCP_NAMES_HF, wanted))
        return false;
    out->layer = match.layer < 0 ? 0 : match.layer;
    for (out->array = 0; out->array < DCP_LLMC_N_ARRAYS; out->array++) {
        struct dcp_llmc_array array;
        dcp_llmc_array(model, out->array, &array);
        dcp_llmc_name(&array, out->layer, name, sizeof name);
        if (!strcmp(name, wanted))
            return out->layer < array.layers;
    }
    return false;
}

static int check_tensor(const struct dcp_llmc_model *model,
                        const struct dcp_tensor *tensor, const struct dcp_llmc_slot *slot,
                        const char *what, struct dcp_error *err)
{
    struct dcp_llmc_array array;

    dcp_llmc_array(model, slot->array, &array);
    int64_t first = array.transposed ? array.columns : array.rows;
    int64_t second = array.transposed ? array.rows : array.columns;
    bool fits = array.is_matrix ? tensor->ndim == 2 && tensor->shape[1] == second
                                : tensor->ndim == 1;
    if (!fits || tensor->shape[0] != first)
        return refuse(tensor, what, "whose shape is not what its configuration says",
                      err);
    if (tensor->role != DCP_ROLE_MODEL && tensor->dtype != DCP_F32)
        return refuse(tensor, what, "of another dtype than F32", err);
    if (tensor->role == DCP_ROLE_MODEL && tensor->dtype != model->dtype) {
        refuse(tensor, what, "of another dtype than the one before it", err);
        dcp_error_hint(err, "add --dtype fp32 or --dtype bf16");
        return DCP_E_MISMATCH;
    }
    return DCP_OK;
}

/* The dtype of the weights, which must be one that the program has. */
static int find_dtype(const struct dcp_catalog *catalog, const char *what,
                      struct dcp_llmc_model *model, struct dcp_error *err)
{
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        if (tensor->role != DCP_ROLE_MODEL)
            continue;
        model->dtype = tensor->dtype;
        if (tensor->dtype == DCP_F32 || tensor->dtype == DCP_BF16)
            return DCP_OK;
        refuse(tensor, what, "of another dtype than F32 or BF16", err);
        dcp_error_hint(err, "add --dtype fp32 or --dtype bf16");
        return DCP_E_MISMATCH;
    }
    return dcp_error_set(err, DCP_E_MISMATCH, "%s needs weights, and there are none",
                         what);
}

/* Every weight, once. */
static int check_all(const struct dcp_catalog *catalog,
                     const struct dcp_llmc_model *model,
                     const struct dcp_llmc_slot *slots, const char *what,
                     struct dcp_error *err)
{
    size_t n = DCP_LLMC_N_ARRAYS * (size_t)model->layers;
    DCP_CLEANUP_FREE bool *seen = dcp_mem_calloc(n, sizeof *seen);
    char name[DCP_NAMES_MAX_BYTES];

    if (!seen)
        return dcp_error_memory(err, "a model");
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        size_t at =
            (size_t)slots[t].array * (size_t)model->layers + (size_t)slots[t].layer;
        if (catalog->tensors[t].role != DCP_ROLE_MODEL)
            continue;
        if (seen[at])
            return refuse(&catalog->tensors[t], what, "twice", err);
        seen[at] = true;
    }
    for (int i = 0; i < DCP_LLMC_N_ARRAYS; i++) {
        struct dcp_llmc_array array;
        dcp_llmc_array(model, i, &array);
        for (int64_t layer = 0; layer < array.layers; layer++)
            if (!seen[(size_t)i * (size_t)model->layers + (size_t)layer]) {
                dcp_llmc_name(&array, layer, name, sizeof name);
                return dcp_error_set(err, DCP_E_MISMATCH,
                                     "%s needs the tensor '%s', which is not there", what,
                                     name);
            }
    }
    return DCP_OK;
}

int dcp_llmc_find_model(const struct dcp_catalog *catalog,
                        const struct dcp_target_options *options, const char *what,
                        struct dcp_llmc_model *out, struct dcp_llmc_slot **out_slots,
                        struct dcp_error *err)
{
    DCP_CLEANUP_FREE struct dcp_llmc_slot *slots =
        dcp_mem_calloc(catalog->n_tensors, sizeof *slots);
    uint64_t elems;

    *out_slots = NULL;
    *out = (struct dcp_llmc_model){ 0 };
    if (!slots)
        return dcp_error_memory(err, "a model");
    DCP_TRY(read_config(catalog, options, what, out, err));
    DCP_TRY(find_dtype(catalog, what, out, err));
    if (!dcp_llmc_elems(out, &elems))
        return dcp_error_set(
            err, DCP_E_MISMATCH,
            "%s cannot hold: a model of the numbers of this configuration", what);
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        const struct dcp_tensor *tensor = &catalog->tensors[t];
        DCP_TRY(find_slot(out, tensor->param, &slots[t])
                    ? check_tensor(out, tensor, &slots[t], what, err)
                    : refuse(tensor, what, "which its models do not have", err));
    }
    DCP_TRY(check_all(catalog, out, slots, what, err));
    *out_slots = slots;
    slots = NULL;
    return DCP_OK;
}

/* -- writing ------------------------------------------------------------------------- */

int dcp_llmc_add_header(struct dcp_target *target, int file, const int32_t *numbers,
                        struct dcp_error *err)
{
    unsigned char header[DCP_LLMC_HEADER_BYTES];

    for (size_t i = 0; i < DCP_LLMC_HEADER_BYTES / 4; i++)
        dcp_put_le32(header + 4 * i, (uint32_t)numbers[i]);
    return dcp_target_literal_copy(target, file, 0, header, sizeof header, err);
}

int dcp_llmc_place_model(struct dcp_target *target, const char *name,
                         const struct dcp_llmc_model *model,
                         const struct dcp_llmc_slot *slots, struct dcp_error *err)
{
    struct dcp_catalog *catalog = target->catalog;
    const int32_t header[DCP_LLMC_HEADER_BYTES / 4] = {
        DCP_LLMC_MODEL_MAGIC,     model->dtype == DCP_F32 ? 3 : 5,
        (int32_t)model->context,  (int32_t)model->vocab,
        (int32_t)model->layers,   (int32_t)model->heads,
        (int32_t)model->channels, (int32_t)model->padded_vocab,
    };
    uint64_t elem = dcp_dtype_size(model->dtype), elems;
    struct dcp_llmc_array array;

    dcp_model_config_hold(catalog);
    dcp_catalog_mark_stored(catalog, DCP_LLMC_MODEL);
    int file;

    dcp_llmc_elems(model, &elems);
    const struct dcp_file entry = { .name = name,
                                    .size_bytes = DCP_LLMC_HEADER_BYTES + elems * elem };
    DCP_TRY(dcp_catalog_add_file(catalog, &entry, &file, err));
    DCP_TRY(dcp_llmc_add_header(target, file, header, err));
    for (size_t t = 0; t < catalog->n_tensors; t++) {
        if (catalog->tensors[t].role != DCP_ROLE_MODEL)
            continue;
        dcp_llmc_array(model, slots[t].array, &array);
        uint64_t at =
            array.offset + (uint64_t)slots[t].layer * dcp_llmc_layer_elems(&array);
        DCP_TRY(dcp_axes_add_whole(
            catalog, (int)t, file, DCP_LLMC_HEADER_BYTES + at * elem,
            array.transposed ? DCP_AXES_TRANSPOSED : DCP_AXES_SAME, 1, true, err));
    }
    uint64_t used = (uint64_t)model->vocab * (uint64_t)model->channels;
    uint64_t all = (uint64_t)model->padded_vocab * (uint64_t)model->channels;
    return dcp_literals_zeros(target, file, DCP_LLMC_HEADER_BYTES + used * elem,
                              (all - used) * elem, err);
}

static int assign(struct dcp_target *target, struct dcp_error *err)
{
    const struct dcp_catalog *catalog = target->catalog;
    const char *name = target->options->name ? target->options->name : "model.bin";
    DCP_CLEANUP_FREE struct dcp_llmc_slot *slots = NULL;
    struct dcp_llmc_model model;

    for (size_t t = 0; t < catalog->n_tensors; t++)
        if (catalog->tensors[t].role != DCP_ROLE_MODEL)
            return refuse(&catalog->tensors[t], WHAT, "which is no weight", err);
    DCP_TRY(dcp_llmc_find_model(catalog, target->options, WHAT, &model, &slots, err));
    return dcp_llmc_place_model(target, name, &model, slots, err);
}

const struct dcp_format dcp_format_llmc = {
    .name = "llmc",
    .help = "model file of llm.c (GPT-2)",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_TIES,
    .probe = probe,
    .index = index_source,
    .disposition = dcp_llmc_disposition,
    .assign = assign,
};
