/* roles: what tensors are to training, from names that are paths into a state dict.
 *
 * An optimizer stands in a container P, "optim": its tensors are named
 * P.state.<param>.<key>
 * ("exp_avg", "exp_avg_sq", "step", …; Megatron: P.state.<key>.<param>), and beside them
 * are names P.param_groups.… . The model stands in a container C, "model" or none:
 * C.<param> are its tensors. Both are found here, and role and param are set. */
#ifndef DCP_FORMATS_COMMON_ROLES_H
#define DCP_FORMATS_COMMON_ROLES_H

#include <dcp/tensor.h>

/* What a tensor is, from its name: "optimizer.<role>.<param>" (dcp_tensor_default_name)
 * gives that role and parameter, everything else is a weight. *out_param points into
 * name. */
enum dcp_role dcp_role_of_name(const char *name, const char **out_param);

/* What else is known of the names. */
struct dcp_roles_hints {
    const char *const *beside; /* names of what is no tensor */
    size_t n_beside;
    /* Whether the dot at that place of a tensor's name stands between the parts of its
     * path; NULL: every dot may. */
    bool (*is_joint)(void *self, int tensor, size_t at);
    void *self;
};

/* Texts belong to the catalog. */
struct dcp_roles {
    const char *model; /* C; "": the weights' names are theirs alone */
    const char *optim; /* P; "": it stands at the top; NULL: there is none */
};

/* Sets role and param of all tensors. In the first optimizer a role belongs to one tensor
 * of a parameter; what else stands in optimizers has the role optim, and its own name for
 * a parameter where that is said already, or a number of another optimizer than the
 * first; what stands in neither is "other". Errors: MEMORY. */
int dcp_roles_find(struct dcp_catalog *catalog, const struct dcp_roles_hints *hints,
                   struct dcp_roles *out, struct dcp_error *err);

/* Whether a tensor of a model is a buffer whatever else is known: of integers, or with
 * the name that a known module gives to one. */
bool dcp_roles_is_buffer(const struct dcp_tensor *tensor);
/* For formats that do not say which tensors of a model are buffers, once all tensors,
 * pieces and objects are there: sets the roles MODEL and BUFFER. What the optimizer knows
 * is trained; of what it does not know, and of models without one, names tell, and
 * whether a sharded model has a tensor in one piece; catalog->assumed says what nothing
 * proves. Errors: CORRUPT (the object "optimizer"), MEMORY. */
int dcp_roles_find_buffers(struct dcp_catalog *catalog, struct dcp_error *err);

/* For files that hold nothing but names and arrays: where a name says
 * P.state.<param>.exp_avg that is an optimizer, though no groups stand beside it. Takes
 * catalogs as they are whose optimizer is known already, or that have none. Finds the
 * buffers, too. Errors: as dcp_roles_find_buffers. */
int dcp_roles_find_plain(struct dcp_catalog *catalog, struct dcp_error *err);

/* The key of a tensor in an optimizer's state: what follows "<param>." in its name, or
 * precedes ".<param>"; "step", say; its last part, where a number stands for the weight.
 * Empty: its name tells none. Points into the name. */
void dcp_roles_key(const struct dcp_tensor *tensor, const char **out, size_t *out_n);
/* What a key tells that dcp_roles_find reads; optim: nothing. */
enum dcp_role dcp_roles_of_key(const char *key, size_t n);

#endif
