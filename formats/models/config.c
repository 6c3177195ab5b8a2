/* config: finding and reading the configuration of a model. */
#include "config.h"
#include "base/json.h"
#include "base/str.h"
#include "formats/common/training.h"
#include <string.h>

#define OLD_OBJECT "config" /* its name in steps of earlier versions */

static int find_object(const struct dcp_catalog *catalog)
{
    int at = dcp_catalog_find_object(catalog, DCP_TRAINING_MODEL_CONFIG);

    return at < 0 ? dcp_catalog_find_object(catalog, OLD_OBJECT) : at;
}

bool dcp_model_config_text(const struct dcp_catalog *catalog,
                           const struct dcp_target_options *options, const char **out,
                           size_t *out_size_bytes)
{
    int at = find_object(catalog);

    if (options && options->config_json) {
        *out = options->config_json;
        *out_size_bytes = strlen(options->config_json);
        return true;
    }
    if (at < 0 || catalog->objects[at].kind != DCP_OBJECT_JSON)
        return false;
    *out = catalog->objects[at].data;
    *out_size_bytes = catalog->objects[at].size_bytes;
    return true;
}

int dcp_model_config_read(const struct dcp_catalog *catalog,
                          const struct dcp_target_options *options, const char *what,
                          json_t **out, struct dcp_error *err)
{
    const char *text;
    size_t n;

    *out = NULL;
    if (!dcp_model_config_text(catalog, options, &text, &n)) {
        dcp_error_set(err, DCP_E_MISMATCH,
                      "%s needs a model configuration, and the source has none", what);
        dcp_error_hint(err, "--model-config FILE gives one; --to safetensors writes the "
                            "weights without");
        return DCP_E_MISMATCH;
    }
    int rc = dcp_json_parse(text, n, "the model configuration", out, err);
    if (!rc && !json_is_object(*out))
        rc = dcp_error_set(err, DCP_E_MISMATCH,
                           "the model configuration is no JSON object");
    return rc;
}

void dcp_model_config_hold(struct dcp_catalog *catalog)
{
    int at = find_object(catalog);

    if (at >= 0)
        dcp_catalog_mark_stored(catalog, catalog->objects[at].name);
}

const struct dcp_names_family *dcp_model_config_family(const json_t *config)
{
    return dcp_names_family(json_string_value(json_object_get(config, "model_type")));
}

bool dcp_model_config_is_base(const json_t *config, const struct dcp_names_family *family)
{
    const json_t *classes = json_object_get(config, "architectures");
    const char *class = json_string_value(json_array_get(classes, 0));

    return class && !strcmp(class, family->base);
}

bool dcp_model_config_tied(const json_t *config, const struct dcp_names_family *family)
{
    const json_t *tie = json_object_get(config, "tie_word_embeddings");

    return json_is_boolean(tie) ? json_is_true(tie) : family->tied;
}

bool dcp_model_config_int(const json_t *config, const char *key, const char *other,
                          int64_t *out)
{
    const json_t *value = json_object_get(config, key);

    if (!json_is_integer(value) && other)
        value = json_object_get(config, other);
    *out = json_integer_value(value);
    return json_is_integer(value) && *out > 0;
}

bool dcp_model_config_real(const json_t *config, const char *key, double *out)
{
    const json_t *value = json_object_get(config, key);

    *out = json_number_value(value);
    return json_is_number(value);
}

int dcp_model_config_check(const json_t *config, const char *key,
                           const char *const *values, const char *what,
                           struct dcp_error *err)
{
    const json_t *member = json_object_get(config, key);
    const char *value = json_string_value(member);
    char shown[80];

    if (!member || json_is_null(member))
        return DCP_OK;
    for (; value && *values; values++)
        if (!strcmp(value, *values))
            return DCP_OK;
    return dcp_error_set(err, DCP_E_MISMATCH, "%s cannot hold: a model with %s '%s'",
                         what, key,
                         dcp_str_escape(shown, sizeof shown, value ? value : "?"));
}

int dcp_model_config_tied_head(const struct dcp_catalog *catalog, bool *out_tied,
                               char head[DCP_NAMES_MAX_BYTES],
                               char embedding[DCP_NAMES_MAX_BYTES], struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *config = NULL;
    int rc = dcp_training_read(catalog, DCP_TRAINING_MODEL_CONFIG, &config, err);
    const struct dcp_names_family *family = rc ? NULL : dcp_model_config_family(config);

    *out_tied = family && dcp_model_config_tied(config, family) &&
                dcp_names_translate(family, DCP_NAMES_GGUF, DCP_NAMES_HF, "output.weight",
                                    head) &&
                dcp_names_translate(family, DCP_NAMES_GGUF, DCP_NAMES_HF,
                                    "token_embd.weight", embedding);
    return rc;
}
