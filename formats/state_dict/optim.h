/* optim: parameter groups of a distributed checkpoint, to the object "optimizer" of
 * common/training.h and back. */
#ifndef DCP_FORMATS_STATE_DICT_OPTIM_H
#define DCP_FORMATS_STATE_DICT_OPTIM_H

#include "keys.h"

/* An object under its key, as it was read. */
struct dcp_entry {
    const char *name, *path; /* belong to the meta */
    json_t *value;           /* NULL: it is raw */
    struct dcp_buf raw;
    int rank;   /* whose metadata names it */
    bool taken; /* it is part of another object */
};

/* Makes the groups of the optimizer in keys->optim from its entries, takes these, and
 * says how they are spelled. *out is NULL when there are none, or not all can be
 * understood; else a new array. Errors: MEMORY. */
int dcp_optim_groups(struct dcp_keys *keys, const struct dcp_catalog *catalog,
                     struct dcp_entry *entries, size_t n, json_t **out,
                     struct dcp_error *err);
/* Sets the group of every tensor by its parameter. Errors: MEMORY. */
int dcp_optim_mark(struct dcp_catalog *catalog, json_t *groups, struct dcp_error *err);
/* Calls put for every option of every group, under its key and path (keys.h).
 * Options that PyTorch's Adam has and the groups lack are added to groups of other
 * origin; decoupled: as in AdamW. The value is borrowed. Errors: those of put, MEMORY. */
int dcp_optim_each(const struct dcp_keys *keys, struct dcp_catalog *catalog,
                   json_t *groups, bool decoupled,
                   int (*put)(void *self, const char *key, const char *path,
                              json_t *value, struct dcp_error *err),
                   void *self, struct dcp_error *err);

#endif
