/* llmc: the files of llm.c. A model is one file: a header of 256 integers of 32 bits and
 * 16 arrays, each with all layers of a tensor. A run is a folder: model_00000100.bin, for
 * each rank state_00000100_00000.bin with the optimizer, and DONE_00000100 when all is
 * there. Source: train_gpt2.cu (gpt2_write_to_checkpoint, save_state, write_checkpoint),
 * llmc/zero.cuh, llmc/dataloader.h and train_gpt2.py of karpathy/llm.c.
 *
 * Matrices stand as (out, in), so those of Hugging Face's Conv1D are transposed. The
 * vocabulary is padded with rows of zeros, which the catalog does not have. */
#ifndef DCP_FORMATS_LLMC_LLMC_H
#define DCP_FORMATS_LLMC_LLMC_H

#include "formats/common/input.h"
#include <dcp/format.h>
#include <jansson.h>

extern const struct dcp_format dcp_format_llmc;

#define DCP_LLMC_HEADER_BYTES 1024
#define DCP_LLMC_MODEL_MAGIC 20240326
#define DCP_LLMC_STATE_MAGIC 20240527
#define DCP_LLMC_MAX_WORLD_SIZE 99999
#define DCP_LLMC_STATE "llmc.state" /* object: what the states say beside tensors */
#define DCP_LLMC_LOADER                                             \
    "llmc.loader" /* object: the data loader of each rank, as bytes \
                   */
#define DCP_LLMC_MODEL                                              \
    "llmc.model" /* object: what the program would choose otherwise \
                  */

enum { DCP_LLMC_N_ARRAYS = 16, DCP_LLMC_VOCAB_MULTIPLE = 128 };

struct dcp_llmc_model {
    enum dcp_dtype dtype; /* F32 or BF16 */
    int64_t context, vocab, layers, heads, channels, padded_vocab;
};

/* One of the arrays, in elements. */
struct dcp_llmc_array {
    const char *name;                   /* of Hugging Face, '#' is the layer */
    int64_t layers;                     /* 1 for an array of no layer */
    int64_t rows, columns, stored_rows; /* of one layer, in the file's order; stored with
                                         * padding */
    bool transposed, is_matrix;
    uint64_t offset; /* of its first element in the model */
};

/* Sets the array's shape and place. */
void dcp_llmc_array(const struct dcp_llmc_model *model, int index,
                    struct dcp_llmc_array *out);
/* Elements of one layer of an array, as they are stored. */
uint64_t dcp_llmc_layer_elems(const struct dcp_llmc_array *array);
/* Elements of all arrays; false when that overflows, or the numbers make no model. */
bool dcp_llmc_elems(const struct dcp_llmc_model *model, uint64_t *out);
/* Its name in Hugging Face's model. */
void dcp_llmc_name(const struct dcp_llmc_array *array, int64_t layer, char *out,
                   size_t cap);

/* Reads the header of a model file and checks its size. Errors: CORRUPT, UNSUPPORTED
 * (another version), IO. */
int dcp_llmc_read_model(const struct dcp_input *in, struct dcp_llmc_model *out,
                        struct dcp_error *err);
/* Adds the file with its tensors, and the objects model_config and llmc.model. */
int dcp_llmc_index_model(struct dcp_catalog *catalog, const struct dcp_input *in,
                         const char *name, const struct dcp_llmc_model *model,
                         struct dcp_error *err);

/* For each tensor of a catalog where it belongs: `array` and layer, -1: nowhere. */
struct dcp_llmc_slot {
    int array;
    int64_t layer;
};
/* The model that a catalog's weights make, and the slot of every tensor (caller frees).
 * All weights must be there, in one dtype; `what` names the target. Errors: MISMATCH,
 * CORRUPT, MEMORY. */
int dcp_llmc_find_model(const struct dcp_catalog *catalog,
                        const struct dcp_target_options *options, const char *what,
                        struct dcp_llmc_model *out, struct dcp_llmc_slot **out_slots,
                        struct dcp_error *err);
/* Adds the model file: its header, places the pieces of the weights, zeros for the
 * padding. */
int dcp_llmc_place_model(struct dcp_target *target, const char *name,
                         const struct dcp_llmc_model *model,
                         const struct dcp_llmc_slot *slots, struct dcp_error *err);
/* Appends a header of 256 integers. */
int dcp_llmc_add_header(struct dcp_target *target, int file, const int32_t *numbers,
                        struct dcp_error *err);

enum dcp_disposition dcp_llmc_disposition(const struct dcp_catalog *src,
                                          const struct dcp_identity *of_src,
                                          const struct dcp_catalog *target,
                                          const struct dcp_tensor *tensor);

#endif
