/* globals: for those who read and write pickles. The judgement is <dcp/globals.h>. */
#ifndef DCP_FORMATS_PICKLE_GLOBALS_H
#define DCP_FORMATS_PICKLE_GLOBALS_H

#include "pickle.h"
#include <dcp/globals.h>
#include <jansson.h>

/* "module.name", or "module:Outer.name" in a class: Outer may have dots itself. */
struct dcp_global_parts {
    const char *module; /* n_module bytes */
    size_t n_module;
    const char *name; /* with the classes around it */
    bool nested;
};
/* False when a pickle cannot name it so. */
bool dcp_global_split(const char *text, struct dcp_global_parts *out);

/* Whether a class is an Enum of checkpoints, whose members some Pythons pickle as
 * getattr(Class, 'NAME'). */
bool dcp_global_is_enum(const char *module, const char *name);

/* What a JSON value names, with the paths in it. Errors: MEMORY, those of take. */
int dcp_json_globals(json_t *value, const struct dcp_global_visit *take,
                     struct dcp_error *err);

#endif
