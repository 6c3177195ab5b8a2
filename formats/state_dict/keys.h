/* keys: how a distributed checkpoint spells its keys, and their paths in the state
 * dict. A catalog knows a tensor by role and param; the rest is what PyTorch does when
 * nothing else is said, or else stands in the object "dcp.keys":
 *
 *   {"model": "app.model", "optim": "app.optim",   containers; "" is the top
 *    "groups": "flat", "whole", "none",  how parameter groups are spelled, see below
 *    "nested": true,                  it was a state dict; false: without paths
 *    "style": "2.6",                  of the items, when not the newest: torch/item.h
 *    "classes": "2.2",                TensorProperties is where PyTorch 2.0 to 2.3 has it
 *    "names": {made: real},           keys that are not made from role and param
 *    "paths": {key: ["a", 0, "b"]},   paths that cannot be told from the key
 *    "items": {object: "archive", "value" or "placed"}}  objects that are the bytes of an
 *                                     archive, a dict in one item, or a value whose parts
 *                                     have keys of their own
 *
 * and further attributes of Metadata, which may name any class, in "dcp.attributes", so
 * that the keys stay where those are left out.
 *
 * Keys of an optimizer in P: P.state.<param>.<key>, P.param_groups.<i>.<option>, each
 * part a part of the path. Flat: P.state.<param>.<key>, P.param_groups.<param>.<option>,
 * and all behind P is one part. */
#ifndef DCP_FORMATS_STATE_DICT_KEYS_H
#define DCP_FORMATS_STATE_DICT_KEYS_H

#include "formats/torch/item.h"

#define DCP_KEYS "dcp.keys"
#define DCP_ATTRIBUTES "dcp.attributes"

/* A path is a key in which these stand for the dots between its parts. */
#define DCP_PATH_KEY '\x1f'   /* before a key of a dict */
#define DCP_PATH_INDEX '\x1e' /* before a position in a list */

enum dcp_keys_groups {
    DCP_GROUPS_NESTED,
    DCP_GROUPS_FLAT,
    DCP_GROUPS_WHOLE,
    DCP_GROUPS_NONE,
    DCP_N_GROUPS
};

struct dcp_keys {
    const char *model, *optim; /* belong to the catalog */
    enum dcp_keys_groups groups;
    enum dcp_torch_style style;
    bool old_classes;
    bool is_dict, flat;                         /* "nested" is said, and is false */
    json_t *names, *paths, *items, *attributes; /* objects, NULL: empty */
};

/* What PyTorch does. */
void dcp_keys_init(struct dcp_keys *keys);
void dcp_keys_fini(struct dcp_keys *keys);
#define DCP_CLEANUP_KEYS DCP_CLEANUP(dcp_keys_fini)
/* From the catalog's objects, when it has them. Errors: CORRUPT, MEMORY. */
int dcp_keys_load(struct dcp_keys *keys, struct dcp_catalog *catalog,
                  struct dcp_error *err);
/* Adds the objects, unless they would say nothing. Errors: MEMORY. */
int dcp_keys_save(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                  struct dcp_error *err);

/* "<container>.<rest>"; "<rest>" when the container is the top. Belongs to the catalog;
 * NULL: out of memory. */
const char *dcp_keys_join(struct dcp_catalog *catalog, const char *container,
                          const char *rest);
/* The key of a tensor, made from role and param; then with `names`. Belong to the
 * catalog; NULL: out of memory. */
const char *dcp_keys_made(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                          const struct dcp_tensor *tensor);
const char *dcp_keys_real(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                          const struct dcp_tensor *tensor);
/* The path of a key: from `paths`, or as guessed. Belongs to the catalog; NULL: out of
 * memory. */
const char *dcp_keys_path(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                          const char *key, bool is_weight);
/* Remembers real paths and names that are not the guessed ones. False: out of memory. */
bool dcp_keys_learn_path(struct dcp_keys *keys, const char *key, const char *path,
                         bool is_weight);
bool dcp_keys_learn_name(struct dcp_keys *keys, const char *made, const char *real);
bool dcp_keys_learn_item(struct dcp_keys *keys, const char *object, const char *what);

/* What follows "<container>." in a key, or NULL. */
const char *dcp_keys_inside(const char *container, const char *key);

#endif
