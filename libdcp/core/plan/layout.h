/* layout: what the rules of layouts take. */
#ifndef DCP_CORE_PLAN_LAYOUT_H
#define DCP_CORE_PLAN_LAYOUT_H

#include <dcp/error.h>

/* Whether there is such a layout, for that many ranks. Errors: USAGE. */
int dcp_layout_check(const char *layout, int world_size, struct dcp_error *err);

#endif
