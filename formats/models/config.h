/* config: config.json of Hugging Face, as a target finds it in a catalog or is
 * given it, and its members. */
#ifndef DCP_FORMATS_MODELS_CONFIG_H
#define DCP_FORMATS_MODELS_CONFIG_H

#include "names.h"
#include <dcp/format.h>
#include <jansson.h>

/* The text of the configuration: what the options say (may be NULL), or else the
 * catalog's object. False: there is none. Borrowed from either. */
bool dcp_model_config_text(const struct dcp_catalog *catalog,
                           const struct dcp_target_options *options, const char **out,
                           size_t *out_size_bytes);
/* The same, parsed; freed with json_decref. `what` names the target: "a GGUF file".
 * Errors: MISMATCH (there is none, or it is no JSON object), CORRUPT, MEMORY. */
int dcp_model_config_read(const struct dcp_catalog *catalog,
                          const struct dcp_target_options *options, const char *what,
                          json_t **out, struct dcp_error *err);

/* The target is made by it, or by one that was given in its stead. */
void dcp_model_config_hold(struct dcp_catalog *catalog);

/* The family of its model_type, or NULL. */
const struct dcp_names_family *dcp_model_config_family(const json_t *config);
/* Whether the model is the family's base, without a head: its names have no prefix. */
bool dcp_model_config_is_base(const json_t *config,
                              const struct dcp_names_family *family);
/* Whether the head shares the embedding's bytes. */
bool dcp_model_config_tied(const json_t *config, const struct dcp_names_family *family);

/* When the catalog's model configuration says that the head is the embedding: the names
 * of both, static; else NULL. Errors: CORRUPT, MEMORY. */
int dcp_model_config_tied_head(const struct dcp_catalog *catalog, bool *out_tied,
                               char head[DCP_NAMES_MAX_BYTES],
                               char embedding[DCP_NAMES_MAX_BYTES],
                               struct dcp_error *err);

/* A positive integer, or a number, under its name or (may be NULL) an older one; false
 * when there is none. */
bool dcp_model_config_int(const json_t *config, const char *key, const char *other,
                          int64_t *out);
bool dcp_model_config_real(const json_t *config, const char *key, double *out);
/* A member must have one of these values (NULL-terminated) when it is there: "a GGUF file
 * cannot hold: …". Errors: MISMATCH. */
int dcp_model_config_check(const json_t *config, const char *key,
                           const char *const *values, const char *what,
                           struct dcp_error *err);

#endif
