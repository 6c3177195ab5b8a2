/* config: config.json, whose model_type says the family. */
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "family.h"
#include <stdio.h>

char *model_config_json(const struct model_config *config, enum dcp_dtype dtype)
{
    const struct model_family *family = model_family_find(config->family);
    DCP_CLEANUP_JSON json_t *json = family ? family->json(config, dtype) : NULL;

    return json ? dcp_json_text(json, 2) : NULL;
}

int model_config_parse(const char *text, size_t size_bytes,
                       struct model_config *out_config, struct dcp_error *err)
{
    DCP_CLEANUP_JSON json_t *json = NULL;
    struct model_config config = { 0 };
    struct dcp_error why = { 0 };
    const char *type;
    char shown[64];

    DCP_TRY(dcp_json_parse(text, size_bytes, MODEL_CONFIG_FILE, &json, err));
    DCP_TRY(dcp_json_get_text(json, "model_type", MODEL_CONFIG_FILE, &type, err));
    const struct model_family *family = model_family_find(type);
    if (!family)
        return dcp_error_set(err, DCP_E_UNSUPPORTED,
                             "%s: a model of the type '%s'; %s is supported",
                             MODEL_CONFIG_FILE, dcp_str_escape(shown, sizeof shown, type),
                             model_family_names());
    snprintf(config.family, sizeof config.family, "%s", type);
    DCP_TRY(family->parse(json, &config, err));
    if (model_config_check(&config, &why))
        return dcp_error_set(err, DCP_E_CORRUPT, "%s: %s", MODEL_CONFIG_FILE,
                             why.message);
    *out_config = config;
    return DCP_OK;
}
