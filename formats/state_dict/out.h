/* out: what a distributed checkpoint that is written will hold: its keys, and the
 * items that are no tensors of the catalog. */
#ifndef DCP_FORMATS_STATE_DICT_OUT_H
#define DCP_FORMATS_STATE_DICT_OUT_H

#include "base/map.h"
#include "keys.h"
#include "tree.h"
#include <dcp/format.h>

/* A key: of a tensor, or of an item. */
struct dcp_out_key {
    const char *key, *path;
    int tensor;   /* -1: an item, */
    size_t item;  /* this one; */
    bool is_step; /* which is a 0-d tensor, not an object */
};
/* An archive in the file of rank 0. Several keys may share one: their values are equal.
 */
struct dcp_out_item {
    const void *data; /* belongs to the catalog */
    size_t size_bytes;
    const char *json; /* the value; NULL: it came as an archive, or is a step: */
    int64_t step;
    uint64_t offset;
};
struct dcp_out {
    struct dcp_catalog *catalog;
    const char *target; /* what it is for messages: "a distributed checkpoint" */
    struct dcp_keys keys;
    struct dcp_tree tree;      /* the paths of a file of torch.save, which go first */
    bool own_model, own_optim; /* but not for these: their keys are made */
    const char *groups, *optim_of_tree; /* the object "optimizer" in the tree: the object
                                         * of its groups, its container; NULL: it is not
                                         * there */
    const char *spelled_before; /* the optimizer's container of the source, where another
                                 * is asked for; or NULL */
    json_t *params; /* names by the numbers that its states have; NULL: they stay */
    json_t *steps;  /* weights with a step that is not the optimizer's, by name */
    struct dcp_out_key *list;
    struct dcp_out_item *items;
    size_t n, cap, n_items, cap_items;
    struct dcp_map taken;  /* numbers of keys */
    struct dcp_map values; /* numbers of items, by the JSON of their values */
    json_t *ours; /* members of the attribute "libdcp": objects, steps, tied, made,
                     params, optimizer */
};

/* options: of the target, or NULL; what: it for messages, static. dcp_out_fini also after
 * a failure. Errors: MISMATCH
 * ("cannot hold: …"), CORRUPT (an object that is no JSON), MEMORY. */
int dcp_out_make(struct dcp_catalog *catalog, const struct dcp_target_options *options,
                 const char *what, struct dcp_out *out, struct dcp_error *err);
void dcp_out_fini(struct dcp_out *out);
#define DCP_CLEANUP_OUT DCP_CLEANUP(dcp_out_fini)

/* For out*.c. Adds a key; MISMATCH when it is taken. */
int dcp_out_add(struct dcp_out *out, const struct dcp_out_key *key,
                struct dcp_error *err);
bool dcp_out_has(const struct dcp_out *out, const char *key);
/* An archive; *out_item is its number. Takes over the buffer's bytes. */
int dcp_out_add_item(struct dcp_out *out, const void *data, size_t size_bytes,
                     size_t *out_item, struct dcp_error *err);
/* Sets a member of an object in `ours`. Takes the value; false: out of memory. */
bool dcp_out_note(struct dcp_out *out, const char *object, const char *name,
                  json_t *value);
/* What a state says of a weight that is no tensor, {"RMS": 0.25}. */
typedef int (*dcp_out_state_fn)(struct dcp_out *out, const char *param,
                                const char *member, json_t *value, struct dcp_error *err);
/* Whether an object of the tree stands among the states of its optimizer, and these get
 * names for numbers; calls fn for each of its values. Errors: CORRUPT, MEMORY, of fn. */
int dcp_out_state(struct dcp_out *out, const struct dcp_object *object,
                  dcp_out_state_fn fn, bool *out_found, struct dcp_error *err);
/* What follows "P.state." in the name of an object, of the optimizer's container before
 * it was spelled anew; NULL: it is no such, or was not. */
const char *dcp_out_state_before(const struct dcp_out *out, const char *object);
/* Sets `params` and `steps`, of the optimizer's groups with names and with numbers. */
int dcp_out_state_load(struct dcp_out *out, json_t *named, json_t *numbered,
                       struct dcp_error *err);
/* "P.state.<param>.<member>"; belongs to the catalog, NULL: out of memory. */
const char *dcp_out_state_key(struct dcp_out *out, const char *param, const char *member);
/* Which keys are made, and how: as the options ask; else a file of torch.save keeps its
 * own, but for the numbers of an optimizer, which become names; else as the source's
 * "dcp.keys" says; and weights without an optimizer get no container. Errors: MISMATCH
 * (what is asked for needs names or keys that nobody knows), CORRUPT, MEMORY. */
int dcp_out_spell(struct dcp_out *out, const struct dcp_target_options *options,
                  struct dcp_error *err);
/* Whether the key of a tensor is made, not the tree's: of a tree with several optimizers
 * one alone is spelled; whether an object of the tree is said by what is made. */
bool dcp_out_spells(const struct dcp_out *out, const struct dcp_tensor *tensor);
bool dcp_out_replaced(const struct dcp_out *out, const char *object);
/* All objects of the catalog. */
int dcp_out_objects(struct dcp_out *out, struct dcp_error *err);

#endif
