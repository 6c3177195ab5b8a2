/* presets: the names other programs use, for --rename. */
#include <dcp/rename.h>
#include <stddef.h>

static const struct dcp_name_preset *const presets[] = { NULL };

const struct dcp_name_preset *const *dcp_name_presets(void)
{
    return presets;
}
