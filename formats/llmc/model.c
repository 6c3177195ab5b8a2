/* model: the header and the arrays of a model file of llm.c, read. */
#include "base/bytes.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/models/axes.h"
#include "formats/models/names.h"
#include "llmc.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum rows { VOCAB, CONTEXT, CHANNELS };

/* In the order of the file. */
static const struct {
    const char *name;
    enum rows rows;
    int times;   /* rows are so many times the channels */
    int columns; /* as many times the channels; 0: a vector */
    bool transposed;
} arrays[DCP_LLMC_N_ARRAYS] = {
    { "transformer.wte.weight", VOCAB, 1, 1, false },
    { "transformer.wpe.weight", CONTEXT, 1, 1, false },
    { "transformer.h.#.ln_1.weight", CHANNELS, 1, 0, false },
    { "transformer.h.#.ln_1.bias", CHANNELS, 1, 0, false },
    { "transformer.h.#.attn.c_attn.weight", CHANNELS, 3, 1, true },
    { "transformer.h.#.attn.c_attn.bias", CHANNELS, 3, 0, false },
    { "transformer.h.#.attn.c_proj.weight", CHANNELS, 1, 1, true },
    { "transformer.h.#.attn.c_proj.bias", CHANNELS, 1, 0, false },
    { "transformer.h.#.ln_2.weight", CHANNELS, 1, 0, false },
    { "transformer.h.#.ln_2.bias", CHANNELS, 1, 0, false },
    { "transformer.h.#.mlp.c_fc.weight", CHANNELS, 4, 1, true },
    { "transformer.h.#.mlp.c_fc.bias", CHANNELS, 4, 0, false },
    { "transformer.h.#.mlp.c_proj.weight", CHANNELS, 1, 4, true },
    { "transformer.h.#.mlp.c_proj.bias", CHANNELS, 1, 0, false },
    { "transformer.ln_f.weight", CHANNELS, 1, 0, false },
    { "transformer.ln_f.bias", CHANNELS, 1, 0, false },
};

uint64_t dcp_llmc_layer_elems(const struct dcp_llmc_array *array)
{
    return (uint64_t)array->stored_rows * (uint64_t)array->columns;
}

static void shape_of(const struct dcp_llmc_model *model, int index,
                     struct dcp_llmc_array *out)
{
    int64_t rows = arrays[index].rows == VOCAB ? model->vocab
                   : arrays[index].rows == CONTEXT
                       ? model->context
                       : arrays[index].times * model->channels;
    bool is_matrix = arrays[index].columns > 0;

    *out = (struct dcp_llmc_array){
        .name = arrays[index].name,
        .layers = strchr(arrays[index].name, '#') ? model->layers : 1,
        .rows = rows,
        .stored_rows = arrays[index].rows == VOCAB ? model->padded_vocab : rows,
        .columns = is_matrix ? arrays[index].columns * model->channels : 1,
        .transposed = arrays[index].transposed,
        .is_matrix = is_matrix,
    };
}

void dcp_llmc_array(const struct dcp_llmc_model *model, int index,
                    struct dcp_llmc_array *out)
{
    uint64_t offset = 0;

    for (int i = 0; i < index; i++) {
        shape_of(model, i, out);
        offset += (uint64_t)out->layers * dcp_llmc_layer_elems(out);
    }
    shape_of(model, index, out);
    out->offset = offset;
}

bool dcp_llmc_elems(const struct dcp_llmc_model *model, uint64_t *out)
{
    struct dcp_llmc_array array;
    uint64_t n;

    *out = 0;
    if (model->context < 1 || model->vocab < 1 || model->layers < 1 || model->heads < 1 ||
        model->channels < 1 || model->padded_vocab < model->vocab ||
        model->layers > DCP_NAMES_MAX_LAYERS || model->channels % model->heads ||
        model->channels > 1 << 28)
        return false;
    for (int i = 0; i < DCP_LLMC_N_ARRAYS; i++) {
        shape_of(model, i, &array);
        if (!dcp_mul_u64(dcp_llmc_layer_elems(&array), (uint64_t)array.layers, &n) ||
            !dcp_add_u64(*out, n, out))
            return false;
    }
    return *out < UINT64_MAX / 16;
}

void dcp_llmc_name(const struct dcp_llmc_array *array, int64_t layer, char *out,
                   size_t cap)
{
    const char *hash = strchr(array->name, '#');

    if (hash)
        snprintf(out, cap, "%.*s%" PRId64 "%s", (int)(hash - array->name), array->name,
                 layer, hash + 1);
    else
        snprintf(out, cap, "%s", array->name);
}

int dcp_llmc_read_model(const struct dcp_input *in, struct dcp_llmc_model *out,
                        struct dcp_error *err)
{
    unsigned char header[DCP_LLMC_HEADER_BYTES];
    uint64_t elems, size_bytes;
    int32_t n[8];

    *out = (struct dcp_llmc_model){ .dtype = DCP_F32 };
    DCP_TRY(dcp_input_read(in, 0, header, sizeof header, err));
    for (size_t i = 0; i < DCP_ARRAY_LEN(n); i++)
        n[i] = (int32_t)dcp_le32(header + 4 * i);
    if (n[0] != DCP_LLMC_MODEL_MAGIC)
        return dcp_error_set(err, DCP_E_CORRUPT, "'%s' is no model of llm.c", in->shown);
    if (n[1] != 3 && n[1] != 5)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "'%s' is a model of llm.c of version %d; 3 (fp32) and 5 "
                             "(bf16) are supported",
                             in->shown, (int)n[1]);
    *out = (struct dcp_llmc_model){ .dtype = n[1] == 3 ? DCP_F32 : DCP_BF16,
                                    .context = n[2],
                                    .vocab = n[3],
                                    .layers = n[4],
                                    .heads = n[5],
                                    .channels = n[6],
                                    .padded_vocab = n[7] };
    if (!dcp_llmc_elems(out, &elems))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "the numbers in '%s' do not describe a model", in->shown);
    size_bytes = DCP_LLMC_HEADER_BYTES + elems * dcp_dtype_size(out->dtype);
    if (size_bytes != in->size_bytes)
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'%s' has %" PRIu64
                             " bytes, a model of its numbers %" PRIu64,
                             in->shown, in->size_bytes, size_bytes);
    return DCP_OK;
}

/* -- the catalog --------------------------------------------------------------------- */

static int add_tensor(struct dcp_catalog *catalog, int file,
                      const struct dcp_llmc_model *model,
                      const struct dcp_llmc_array *array, int64_t layer,
                      struct dcp_error *err)
{
    const int64_t shape[] = { array->transposed ? array->columns : array->rows,
                              array->transposed ? array->rows : array->columns };
    uint64_t at = array->offset + (uint64_t)layer * dcp_llmc_layer_elems(array);
    char name[DCP_NAMES_MAX_BYTES];
    int index;

    dcp_llmc_name(array, layer, name, sizeof name);
    DCP_TRY(dcp_catalog_add_tensor(catalog,
                                   &(struct dcp_tensor){ .name = name,
                                                         .dtype = model->dtype,
                                                         .ndim = array->is_matrix ? 2 : 1,
                                                         .shape = shape,
                                                         .group = !array->is_matrix },
                                   &index, err));
    return dcp_axes_add_whole(
        catalog, index, file, DCP_LLMC_HEADER_BYTES + at * dcp_dtype_size(model->dtype),
        array->transposed ? DCP_AXES_TRANSPOSED : DCP_AXES_SAME, 1, false, err);
}

static int add_objects(struct dcp_catalog *catalog, const struct dcp_llmc_model *model,
                       struct dcp_error *err)
{
    int64_t usual = (model->vocab + DCP_LLMC_VOCAB_MULTIPLE - 1) /
                    DCP_LLMC_VOCAB_MULTIPLE * DCP_LLMC_VOCAB_MULTIPLE;
    int rc = dcp_training_add(
        catalog, DCP_TRAINING_MODEL_CONFIG,
        json_pack("{s:[s],s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:f,s:b}", "architectures",
                  "GPT2LMHeadModel", "model_type", "gpt2", "vocab_size",
                  (json_int_t)model->vocab, "n_positions", (json_int_t)model->context,
                  "n_ctx", (json_int_t)model->context, "n_embd",
                  (json_int_t)model->channels, "n_layer", (json_int_t)model->layers,
                  "n_head", (json_int_t)model->heads, "activation_function", "gelu_new",
                  "layer_norm_epsilon", 1e-5, "tie_word_embeddings", 1),
        err);
    if (!rc && model->padded_vocab != usual)
        rc = dcp_training_add(
            catalog, DCP_LLMC_MODEL,
            json_pack("{s:I}", "padded_vocab_size", (json_int_t)model->padded_vocab),
            err);
    return rc;
}

/* The arrays from first up to end, layer by layer. */
static int add_tensors(struct dcp_catalog *catalog, int file,
                       const struct dcp_llmc_model *model, int first, int end,
                       struct dcp_error *err)
{
    struct dcp_llmc_array list[DCP_LLMC_N_ARRAYS];

    for (int i = first; i < end; i++)
        dcp_llmc_array(model, i, &list[i]);
    for (int64_t layer = 0; layer < list[first].layers; layer++)
        for (int i = first; i < end; i++)
            DCP_TRY(add_tensor(catalog, file, model, &list[i], layer, err));
    return DCP_OK;
}

int dcp_llmc_index_model(struct dcp_catalog *catalog, const struct dcp_input *in,
                         const char *name, const struct dcp_llmc_model *model,
                         struct dcp_error *err)
{
    int file;

    catalog->version = model->dtype == DCP_F32 ? "v3 fp32" : "v5 bf16";
    DCP_TRY(dcp_catalog_add_file(
        catalog, &(struct dcp_file){ .name = name, .size_bytes = in->size_bytes }, &file,
        err));
    DCP_TRY(add_tensors(catalog, file, model, 0, 2, err));
    DCP_TRY(add_tensors(catalog, file, model, 2, 14, err));
    DCP_TRY(add_tensors(catalog, file, model, 14, 16, err));
    return add_objects(catalog, model, err);
}
