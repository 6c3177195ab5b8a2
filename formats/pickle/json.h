/* json: a pickle's tree as JSON that loses nothing: as py.h spells it, and what a hook
 * has for a node that it takes over. */
#ifndef DCP_FORMATS_PICKLE_JSON_H
#define DCP_FORMATS_PICKLE_JSON_H

#include "pickle.h"
#include "py.h"
#include <jansson.h>

#define DCP_PICKLE_JSON_MAX_DEPTH 60 /* base/json.h reads no deeper ones */
#define DCP_PICKLE_JSON_MAX_VALUES \
    (4u << 20) /* shared nodes count as often as they stand */
#define DCP_PICKLE_JSON_MAX_INT_BYTES 1024

/* Called for objects, persistent ids and globals before they are converted. Sets *out to
 * take one over. `path` is where the node stands: keys and positions joined by '.'; the
 * state of an object, and the tables of an nn.Module in it, add no part. */
#define DCP_PICKLE_JSON_NO_NAME \
    "\xff" /* in a path, for a key that is empty or holds NUL */
struct dcp_pickle_hook {
    int (*take)(void *self, const struct dcp_pickle_node *node, const char *path,
                json_t **out, struct dcp_error *err); /* or NULL */
    void *self;
    struct dcp_pickle_used *used; /* or NULL */
};
/* How much of the limits is used, for a hook that converts parts of what it takes: hooks
 * with the same one share them. Begins as zero. */
struct dcp_pickle_used {
    size_t n_values;
    int depth; /* where the part that is converted next stands */
};

/* hook may be NULL; the arena is for scratch. *out is freed with json_decref. Errors:
 * CORRUPT (a persistent id that nobody took, a key twice), UNSUPPORTED (a limit), MEMORY,
 * those of the hook. */
int dcp_pickle_to_json(const struct dcp_pickle_node *root, struct dcp_arena *arena,
                       const struct dcp_pickle_hook *hook, json_t **out,
                       struct dcp_error *err);

/* Two's complement, little-endian, to decimal and back; false when it is none or too
 * long. The arena owns what is made. */
const char *dcp_pickle_long_text(struct dcp_arena *arena, const unsigned char *bytes,
                                 size_t n);
bool dcp_pickle_long_parse(struct dcp_arena *arena, const char *text,
                           const unsigned char **out, size_t *out_n);

#endif
