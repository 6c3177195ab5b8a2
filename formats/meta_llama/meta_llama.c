/* meta-llama: the folders that Meta publishes Llama in, read: params.json, and for each
 * rank of tensor parallelism consolidated.00.pth. Mistral's are the same, in one file
 * that may be consolidated.safetensors.
 *
 * Sources: llama/model.py of meta-llama/llama (which layers are column and row parallel)
 * and transformers' convert_llama_weights_to_hf.py, whose configuration is made here. */
#include "meta_llama.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/input.h"
#include "formats/common/merge.h"
#include "formats/common/training.h"
#include "formats/models/axes.h"
#include "formats/models/config.h"
#include "formats/models/names.h"
#include "formats/safetensors/parts.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "formats/torch_save/torch_save.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PARAMS "params.json"
#define SINGLE "consolidated.safetensors"

enum { BID = 128, MAX_PARAMS_BYTES = 1 << 20, MAX_WORLD_SIZE = 1024 };

/* The vocabulary of Llama 3 and later, which params.json does not tell from others. */
enum { LLAMA3_VOCAB = 100000 };

struct folder {
    const struct dcp_source *source;
    const struct dcp_names_family *family;
    json_t *params;
    struct dcp_catalog **ranks;
    int world_size;
};

static void file_name(char out[32], int rank)
{
    snprintf(out, 32, "consolidated.%02d.pth", rank);
}

static int read_params(const struct dcp_source *source, json_t **out,
                       struct dcp_error *err)
{
    DCP_CLEANUP_FREE void *text = NULL;
    DCP_CLEANUP_JSON json_t *whole = NULL;
    size_t n;

    *out = NULL;
    DCP_TRY(dcp_source_read(source, PARAMS, MAX_PARAMS_BYTES, &text, &n, err));
    DCP_TRY(dcp_json_parse(text, n, PARAMS, &whole, err));
    json_t *inner = json_object_get(whole, "model"); /* of Llama 3's largest */
    *out = json_incref(json_is_object(inner) ? inner : whole);
    return DCP_OK;
}

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_JSON json_t *params = NULL;
    char name[32];

    file_name(name, 0);
    if (!source->is_dir || !dcp_source_has(source, PARAMS) ||
        (!dcp_source_has(source, name) && !dcp_source_has(source, SINGLE)) ||
        read_params(source, &params, NULL))
        return 0;
    return json_object_get(params, "dim") && json_object_get(params, "n_layers") ? BID
                                                                                 : 0;
}

/* -- the files ----------------------------------------------------------------------- */

static int count_ranks(const struct dcp_source *source)
{
    char name[32];
    int world_size = 0;

    for (; world_size < MAX_WORLD_SIZE; world_size++) {
        file_name(name, world_size);
        if (!dcp_source_has(source, name))
            break;
    }
    return world_size;
}

static int open_rank(struct folder *folder, int rank, bool single, struct dcp_error *err)
{
    char name[32];

    file_name(name, rank);
    DCP_TRY(dcp_catalog_new(&folder->ranks[rank], err));
    DCP_TRY(
        single
            ? dcp_safetensors_index_file(folder->source, SINGLE, folder->ranks[rank], err)
            : dcp_torch_index_file(folder->source, name, folder->ranks[rank], err));
    DCP_TRY(dcp_parts_refuse(folder->ranks[rank], err));
    return dcp_catalog_sort(folder->ranks[rank], err);
}

static int open_ranks(struct folder *folder, struct dcp_error *err)
{
    int found = count_ranks(folder->source);

    folder->world_size = found ? found : 1;
    folder->ranks = dcp_mem_calloc((size_t)folder->world_size, sizeof *folder->ranks);
    if (!folder->ranks)
        return dcp_error_memory(err, "a folder of Meta's");
    for (int rank = 0; rank < folder->world_size; rank++)
        DCP_TRY(open_rank(folder, rank, !found, err));
    return DCP_OK;
}

/* -- merging ------------------------------------------------------------------------- */

/* A tensor and its parts. */
struct merged {
    struct dcp_names_match match;
    enum dcp_names_axes axes;
    enum dcp_names_split split; /* rows, columns, or not */
    int64_t heads;
    int ndim;
    int64_t shape[2];
    enum dcp_dtype dtype;
};

static int refuse(const struct dcp_tensor *tensor, int code, const char *why,
                  struct dcp_error *err)
{
    return dcp_error_of_tensor(err, (enum dcp_error_code)code, tensor->name,
                               "tensor '%s' %s", DCP_SHOWN(tensor->name), why);
}

/* The part of a rank: in one piece of a file. */
static int find_part(const struct folder *folder, int rank,
                     const struct dcp_tensor *first, const struct dcp_tensor **out,
                     struct dcp_error *err)
{
    const struct dcp_catalog *own = folder->ranks[rank];
    int at = dcp_catalog_find(own, first->name);

    *out = at < 0 ? NULL : &own->tensors[at];
    if (at < 0)
        return refuse(first, DCP_E_CORRUPT, "is not in the files of all ranks", err);
    const struct dcp_piece *piece = &own->pieces[(*out)->first_piece];
    if ((*out)->n_pieces != 1 || piece->file < 0 || piece->codec != DCP_CODEC_NONE ||
        piece->region.kind != DCP_WHOLE)
        return refuse(first, DCP_E_UNSUPPORTED, "does not lie plainly in its file", err);
    if ((*out)->dtype != first->dtype || (*out)->ndim != first->ndim)
        return refuse(first, DCP_E_CORRUPT, "has another form in another rank", err);
    return DCP_OK;
}

/* Adds up the dimension that is split; the other must agree. */
static int measure(const struct folder *folder, const struct dcp_tensor *first,
                   struct merged *out, struct dcp_error *err)
{
    int split = out->split == DCP_SPLIT_ROWS      ? 0
                : out->split == DCP_SPLIT_COLUMNS ? 1
                                                  : -1;

    for (int d = 0; d < first->ndim; d++)
        out->shape[d] = d == split ? 0 : first->shape[d];
    for (int rank = 0; rank < folder->world_size; rank++) {
        const struct dcp_tensor *part;
        DCP_TRY(find_part(folder, rank, first, &part, err));
        for (int d = 0; d < first->ndim; d++) {
            bool ok = d == split
                          ? dcp_add_i64(out->shape[d], part->shape[d], &out->shape[d])
                          : part->shape[d] == first->shape[d];
            if (!ok)
                DCP_TRY(refuse(first, DCP_E_CORRUPT, "does not fit together", err));
        }
    }
    if (!dcp_axes_heads_ok(out->axes, out->shape[0], out->heads))
        return refuse(first, DCP_E_CORRUPT, "does not divide into heads", err);
    for (int rank = 0; rank < folder->world_size && out->axes != DCP_AXES_SAME; rank++) {
        const struct dcp_tensor *part;
        DCP_TRY(find_part(folder, rank, first, &part, err));
        if (part->shape[0] % (out->shape[0] / out->heads))
            DCP_TRY(refuse(first, DCP_E_CORRUPT, "is split within a head", err));
    }
    return DCP_OK;
}

/* Which of the family's tensors it is, and its whole shape. */
static int merge(const struct folder *folder, const struct dcp_tensor *first,
                 struct merged *out, struct dcp_error *err)
{
    int64_t dim = 0, heads = 0;

    *out = (struct merged){ .ndim = first->ndim, .dtype = first->dtype };
    if (!dcp_names_match(folder->family, DCP_NAMES_META, first->name, &out->match) ||
        first->ndim < 1 || first->ndim > 2)
        return refuse(first, DCP_E_UNSUPPORTED, "is not a tensor of Llama", err);
    out->axes = dcp_names_axes_of(&out->match, first->ndim);
    out->split = out->match.row->split;
    dcp_model_config_int(folder->params, "dim", NULL, &dim);
    dcp_model_config_int(folder->params, "n_heads", NULL, &heads);
    out->heads = heads;
    if (out->axes == DCP_AXES_K_ROWS &&
        !dcp_model_config_int(folder->params, "n_kv_heads", NULL, &out->heads))
        out->heads = heads;
    if (first->ndim == 1 && out->split == DCP_SPLIT_COLUMNS)
        out->split = DCP_SPLIT_NOT;
    if (out->split == DCP_SPLIT_EITHER) /* Llama 3 splits the vocabulary */
        out->split = first->ndim == 2 && first->shape[1] == dim ? DCP_SPLIT_ROWS
                                                                : DCP_SPLIT_COLUMNS;
    return measure(folder, first, out, err);
}

/* The pieces of one rank; *at is where its part begins, in the split dimension. */
static int add_part(const struct folder *folder, struct dcp_catalog *catalog, int index,
                    const struct merged *merged, int rank, int first_file, int64_t *at,
                    struct dcp_error *err)
{
    char meta[DCP_NAMES_MAX_BYTES];

    dcp_names_spell(&merged->match, DCP_NAMES_META, meta);
    int found = dcp_catalog_find(folder->ranks[rank], meta);
    const struct dcp_tensor *part = &folder->ranks[rank]->tensors[found];
    const struct dcp_piece *piece = &folder->ranks[rank]->pieces[part->first_piece];
    int64_t columns = part->ndim == 2 ? part->shape[1] : 1;
    bool by_rows = merged->split == DCP_SPLIT_ROWS;
    const struct dcp_axes_extent extent = {
        .file = first_file + rank,
        .offset = piece->offset,
        .first_row = by_rows ? *at : 0,
        .first_column = merged->split == DCP_SPLIT_COLUMNS ? *at : 0,
        .n_rows = part->shape[0],
        .n_columns = columns,
        .row_stride = piece->stride ? piece->stride[0] : columns,
        .column_stride = piece->stride && part->ndim == 2 ? piece->stride[1] : 1,
    };
    *at += by_rows ? part->shape[0] : columns;
    return dcp_axes_add(catalog, index, &extent, merged->axes, merged->heads, false, err);
}

static int add_tensor(const struct folder *folder, struct dcp_catalog *catalog,
                      const struct dcp_tensor *first, int first_file,
                      struct dcp_error *err)
{
    char name[DCP_NAMES_MAX_BYTES];
    struct merged merged;
    int64_t at = 0;
    int index;

    if (dcp_names_dropped(folder->family, first->name))
        return DCP_OK;
    DCP_TRY(merge(folder, first, &merged, err));
    dcp_names_spell(&merged.match, DCP_NAMES_HF, name);
    DCP_TRY(dcp_catalog_add_tensor(catalog,
                                   &(struct dcp_tensor){ .name = name,
                                                         .dtype = merged.dtype,
                                                         .ndim = merged.ndim,
                                                         .shape = merged.shape },
                                   &index, err));
    int n = merged.split == DCP_SPLIT_NOT ? 1 : folder->world_size; /* else replicas */
    for (int rank = 0; rank < n; rank++)
        DCP_TRY(add_part(folder, catalog, index, &merged, rank, first_file, &at, err));
    return DCP_OK;
}

static int add_tensors(const struct folder *folder, struct dcp_catalog *catalog,
                       struct dcp_error *err)
{
    const struct dcp_catalog *own = folder->ranks[0];
    int first_file = (int)catalog->n_files;

    for (int rank = 0; rank < folder->world_size; rank++)
        DCP_TRY(folder->ranks[rank]->n_files == 1
                    ? dcp_merge_files(catalog, folder->ranks[rank], err)
                    : dcp_error_set(err, DCP_E_CORRUPT, "a rank has no file"));
    for (size_t t = 0; t < own->n_tensors; t++)
        DCP_TRY(add_tensor(folder, catalog, &own->tensors[t], first_file, err));
    return DCP_OK;
}

/* -- the configuration --------------------------------------------------------------- */

/* Where a number of dimensions is said only by a tensor. */
static int64_t dimension(const struct dcp_catalog *catalog, const char *name, int d)
{
    int at = dcp_catalog_find(catalog, name);

    return at >= 0 && catalog->tensors[at].ndim == 2 ? catalog->tensors[at].shape[d] : 0;
}

/* Whether the layers that params.json counts are there, and no more. */
static bool has_layers(const struct dcp_catalog *catalog, int64_t layers)
{
    char last[64], next[64];

    snprintf(last, sizeof last, "model.layers.%" PRId64 ".input_layernorm.weight",
             layers - 1);
    snprintf(next, sizeof next, "model.layers.%" PRId64 ".input_layernorm.weight",
             layers);
    return dcp_catalog_find(catalog, last) >= 0 && dcp_catalog_find(catalog, next) < 0;
}

/* Nothing says how long a context a model was made for but its other numbers. */
static int64_t context_of(int64_t vocabulary, double theta, double epsilon, bool scaled)
{
    if (vocabulary > LLAMA3_VOCAB)
        return scaled ? 131072 : 8192;
    if (theta > 10000)
        return 16384;
    return epsilon <= 1e-6 ? 2048 : 4096;
}

static json_t *make_scaling(const json_t *params, int64_t dim)
{
    double factor, high;

    if (!dcp_model_config_real(params, "rope_scaling_factor", &factor))
        factor = dim <= 3072 ? 32 : 8; /* Llama 3.2's small models, and all others */
    if (!dcp_model_config_real(params, "rope_high_freq_factor", &high))
        high = 4;
    return json_pack("{s:s,s:f,s:f,s:f,s:i}", "rope_type", "llama3", "factor", factor,
                     "low_freq_factor", 1.0, "high_freq_factor", high,
                     "original_max_position_embeddings", 8192);
}

static int add_config(const struct folder *folder, struct dcp_catalog *catalog,
                      struct dcp_error *err)
{
    const json_t *params = folder->params;
    bool scaled = json_is_true(json_object_get(params, "use_scaled_rope"));
    int64_t vocabulary = dimension(catalog, "model.embed_tokens.weight", 0);
    int64_t inner = dimension(catalog, "model.layers.0.mlp.gate_proj.weight", 0);
    int64_t rows = dimension(catalog, "model.layers.0.self_attn.q_proj.weight", 0);
    int64_t dim, layers, heads, kv_heads, head_dim;
    double theta, epsilon;
    bool tied = dcp_catalog_find(catalog, "lm_head.weight") < 0;

    if (!dcp_model_config_int(params, "dim", NULL, &dim) ||
        !dcp_model_config_int(params, "n_layers", NULL, &layers) ||
        !dcp_model_config_int(params, "n_heads", NULL, &heads) ||
        !dcp_model_config_real(params, "norm_eps", &epsilon) || !vocabulary || !inner ||
        !has_layers(catalog, layers))
        return dcp_error_set(err, DCP_E_CORRUPT,
                             "'" PARAMS "' and the tensors do not make a Llama model");
    if (!dcp_model_config_int(params, "n_kv_heads", NULL, &kv_heads))
        kv_heads = heads;
    if (!dcp_model_config_int(params, "head_dim", NULL, &head_dim))
        head_dim = dim / heads;
    if (rows / heads != head_dim || rows % heads ||
        dimension(catalog, "model.layers.0.self_attn.k_proj.weight", 0) / kv_heads !=
            head_dim ||
        dimension(catalog, "model.embed_tokens.weight", 1) != dim) {
        dcp_error_set(err, DCP_E_CORRUPT,
                      "the tensors are not as wide as '" PARAMS "' says");
        dcp_error_hint(err, "are all of the files consolidated.*.pth there?");
        return DCP_E_CORRUPT;
    }
    if (!dcp_model_config_real(params, "rope_theta", &theta))
        theta = 10000;
    bool is_3 = vocabulary > LLAMA3_VOCAB;
    json_t *config = json_pack(
        "{s:[s],s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:s,s:b,s:b,s:b,s:i,s:i}",
        "architectures", folder->family->architecture, "model_type",
        folder->family->model_type, "vocab_size", (json_int_t)vocabulary, "hidden_size",
        (json_int_t)dim, "intermediate_size", (json_int_t)inner, "num_hidden_layers",
        (json_int_t)layers, "num_attention_heads", (json_int_t)heads,
        "num_key_value_heads", (json_int_t)kv_heads, "max_position_embeddings",
        (json_int_t)context_of(vocabulary, theta, epsilon, scaled), "rms_norm_eps",
        epsilon, "rope_theta", theta, "hidden_act", "silu", "attention_bias", 0,
        "mlp_bias", 0, "tie_word_embeddings", tied, "bos_token_id", is_3 ? 128000 : 1,
        "eos_token_id", is_3 ? 128001 : 2);
    if (config && ((rows != dim &&
                    json_object_set_new(config, "head_dim", json_integer(head_dim))) ||
                   (scaled && json_object_set_new(config, "rope_scaling",
                                                  make_scaling(params, dim))))) {
        json_decref(config);
        config = NULL;
    }
    return dcp_training_add(catalog, DCP_TRAINING_MODEL_CONFIG, config, err);
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    struct folder folder = { .source = source, .family = dcp_names_family("llama") };

    catalog->format = dcp_format_meta_llama.name;
    int rc = read_params(source, &folder.params, err);
    if (!rc)
        rc = open_ranks(&folder, err);
    if (!rc)
        rc = add_tensors(&folder, catalog, err);
    if (!rc)
        rc = add_config(&folder, catalog, err);
    if (!rc)
        rc = dcp_training_add(catalog, "meta.params", json_incref(folder.params), err);
    for (int rank = 0; folder.ranks && rank < folder.world_size; rank++)
        dcp_catalog_free(folder.ranks[rank]);
    free(folder.ranks);
    json_decref(folder.params);
    return rc;
}

const struct dcp_format dcp_format_meta_llama = {
    .name = "meta-llama",
    .help = "Llama as Meta publishes it: params.json, consolidated.*.pth",
    .suffixes = "",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_IS_DIR,
    .probe = probe,
    .index = index_source,
};
