/* gguf: probe, and a file as a catalog, under its own names or those of Hugging Face. */
#include "gguf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "formats/common/training.h"
#include "formats/models/axes.h"
#include "formats/models/config.h"
#include <stdio.h>
#include <string.h>

enum { MAGIC_BYTES = 4, BID = 8 * MAGIC_BYTES };

static int probe(const struct dcp_source *source)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    char magic[MAGIC_BYTES];

    return !source->is_dir && !dcp_input_open(&in, source, NULL, NULL) &&
                   !dcp_input_read(&in, 0, magic, sizeof magic, NULL) &&
                   !memcmp(magic, "GGUF", sizeof magic)
               ? BID
               : 0;
}

/* Where a tensor has its place in Hugging Face's model, and in which order. */
struct place {
    char name[DCP_NAMES_MAX_BYTES]; /* empty: it is said in config.json */
    enum dcp_names_axes axes;
    int64_t heads;
};

/* False: this tensor has no place. */
static bool find_place(const struct dcp_gguf_tensor *tensor,
                       const struct dcp_names_family *family, const json_t *config,
                       struct place *out)
{
    struct dcp_names_match match;

    *out = (struct place){ .heads = 1 };
    if (!strcmp(tensor->name, DCP_GGUF_ROPE_FREQS))
        return json_object_get(config, "rope_scaling") != NULL;
    if (!dcp_names_match(family, DCP_NAMES_GGUF, tensor->name, &match) ||
        !dcp_names_spell(&match, DCP_NAMES_HF, out->name))
        return false;
    out->axes = dcp_names_axes_of(&match, tensor->ndim);
    if (out->axes == DCP_AXES_SAME || out->axes == DCP_AXES_TRANSPOSED)
        return true;
    return (tensor->ndim == 1 || tensor->ndim == 2) &&
           dcp_gguf_heads(config, out->axes, tensor->shape[0], &out->heads);
}

/* The places of all tensors; *out is NULL when one has none. */
static int find_places(const struct dcp_gguf *gguf, const struct dcp_names_family *family,
                       const json_t *config, struct place **out, struct dcp_error *err)
{
    *out = dcp_mem_calloc(gguf->n_tensors, sizeof **out);
    if (!*out)
        return dcp_error_memory(err, "names of tensors");
    for (size_t i = 0; i < gguf->n_tensors; i++)
        if (!find_place(&gguf->tensors[i], family, config, &(*out)[i])) {
            free(*out);
            *out = NULL;
            break;
        }
    return DCP_OK;
}

static int add_tensor(struct dcp_catalog *catalog, int file,
                      const struct dcp_gguf_tensor *tensor, const struct place *place,
                      struct dcp_error *err)
{
    bool transposed = place && place->axes == DCP_AXES_TRANSPOSED;
    const int64_t turned[] = { tensor->shape[1], tensor->shape[0] };
    int index;

    if (place && !place->name[0])
        return DCP_OK;
    DCP_TRY(dcp_catalog_add_tensor(
        catalog,
        &(struct dcp_tensor){ .name = place ? place->name : tensor->name,
                              .dtype = tensor->dtype,
                              .ndim = tensor->ndim,
                              .shape = transposed ? turned : tensor->shape,
                              .is_meta = tensor->quantized != NULL,
                              .quantized = tensor->quantized,
                              .quantized_bytes = tensor->size_bytes },
        &index, err));
    return tensor->quantized ? DCP_OK
                             : dcp_axes_add_whole(catalog, index, file, tensor->offset,
                                                  place ? place->axes : DCP_AXES_SAME,
                                                  place ? place->heads : 1, false, err);
}

static int fill(struct dcp_catalog *catalog, const struct dcp_gguf *gguf,
                const struct dcp_input *in, const struct dcp_source *source,
                struct dcp_error *err)
{
    const json_t *architecture = json_object_get(gguf->metadata, DCP_GGUF_ARCHITECTURE);
    const struct dcp_names_family *family =
        dcp_names_gguf_family(json_string_value(architecture));
    DCP_CLEANUP_JSON json_t *config = NULL;
    DCP_CLEANUP_FREE struct place *places = NULL;
    int file;

    if (family)
        DCP_TRY(dcp_gguf_to_config(gguf, in, family, &config, err));
    if (config)
        DCP_TRY(find_places(gguf, family, config, &places, err));
    DCP_TRY(dcp_catalog_add_file(catalog,
                                 &(struct dcp_file){ .name = dcp_input_base(in, source),
                                                     .size_bytes = in->size_bytes },
                                 &file, err));
    for (size_t i = 0; i < gguf->n_tensors; i++)
        DCP_TRY(add_tensor(catalog, file, &gguf->tensors[i], places ? &places[i] : NULL,
                           err));
    DCP_TRY(
        dcp_training_add(catalog, DCP_GGUF_METADATA, json_incref(gguf->metadata), err));
    if (places)
        return dcp_training_add(catalog, DCP_TRAINING_MODEL_CONFIG, json_incref(config),
                                err);
    return DCP_OK;
}

static int index_source(const struct dcp_source *source, struct dcp_catalog *catalog,
                        struct dcp_error *err)
{
    DCP_CLEANUP_INPUT struct dcp_input in = { 0 };
    DCP_CLEANUP_GGUF struct dcp_gguf gguf = { 0 };

    DCP_TRY(dcp_input_open(&in, source, NULL, err));
    DCP_TRY(dcp_gguf_read(&in, &gguf, err));
    catalog->format = dcp_format_gguf.name;
    catalog->version = gguf.version == 2 ? "v2" : "v3";
    return fill(catalog, &gguf, &in, source, err);
}

const struct dcp_format dcp_format_gguf = {
    .name = "gguf",
    .help = "GGUF of llama.cpp: one file, not quantized",
    .suffixes = ".gguf",
    .flags = DCP_FORMAT_READS | DCP_FORMAT_WRITES | DCP_FORMAT_TIES,
    .probe = probe,
    .index = index_source,
    .disposition = dcp_gguf_disposition,
    .assign = dcp_gguf_assign,
};
