/* families: the table. */
#include "family.h"
#include "gpt2.h"
#include <string.h>

static const struct model_family *const families[] = { &gpt2_family };

const struct model_family *model_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i]->name, name))
            return families[i];
    return NULL;
}

const char *model_family_names(void)
{
    return "'gpt2'";
}

int model_config_check(const struct model_config *config, struct dcp_error *err)
{
    const struct model_family *family = model_family_find(config->family);

    return family ? family->check(config, err)
                  : dcp_error_set(err, DCP_E_UNSUPPORTED,
                                  "models of the family '%.15s' are not known; %s is",
                                  config->family, model_family_names());
}
