/* files: what lies beside configuration and weights in a folder of Hugging Face, and
 * goes with them byte for byte into another one: the tokenizer, the chat template, what
 * generation and processors need, code of the model's own, licence and card. */
#ifndef DCP_FORMATS_HF_FILES_H
#define DCP_FORMATS_HF_FILES_H

#include <dcp/format.h>

#define DCP_HF_FILE "hf/"                 /* before the names of the objects */
#define DCP_HF_MAX_FILE_BYTES (64u << 20) /* of one of them */

/* Adds each as an object (dcp_object_file), and an empty one for each file of other
 * weights than the catalog's, which no target takes, so that it is told. weights: the
 * name of the file, or of the index, that was read. Errors: UNSUPPORTED (too large), IO,
 * MEMORY. */
int dcp_hf_files_index(const struct dcp_source *source, const char *weights,
                       struct dcp_catalog *catalog, struct dcp_error *err);
/* Adds the files of the objects that are carried. Errors: MEMORY. */
int dcp_hf_files_assign(struct dcp_target *target, struct dcp_error *err);

#endif
