/* roles_own: what finding the model and finding optimizers share. */
#ifndef DCP_FORMATS_COMMON_ROLES_OWN_H
#define DCP_FORMATS_COMMON_ROLES_OWN_H

#include "roles.h"

enum { DCP_MAX_CONTAINERS = 64 }; /* of optimizers, and candidates for the model's */

/* A container is a name up to its length, without the dot that follows. */
struct dcp_container {
    const char *name;
    size_t n;
    size_t n_named; /* parameters of the optimizer that stand in it */
    size_t n_alike; /* and have the shape of their moments, too */
};

/* Adds one unless it is in the list, or the list is full. */
void dcp_container_add(struct dcp_container *list, size_t *n, const char *name,
                       size_t len);
/* What follows the container in a name, or NULL. */
const char *dcp_container_inside(const struct dcp_container *c, const char *name);

bool dcp_roles_is_joint(const struct dcp_roles_hints *hints, int tensor, size_t at);
bool dcp_roles_is_number(const char *text, size_t n);

/* The container of the weights that are trained, once the roles of optimizers are set;
 * empty where the weights have names of their own, or where several fit equally well.
 * Errors: MEMORY. */
int dcp_roles_find_model(const struct dcp_catalog *catalog,
                         const struct dcp_roles_hints *hints, struct dcp_container *out,
                         struct dcp_error *err);

#endif
