/* balance: replicas are written once. Each goes to one of the ranks that hold it, so that
 * the bytes a rank writes come out even; large ones are cut by rows. Pure, the same on
 * every rank. */
#ifndef DCP_CORE_PLAN_BALANCE_H
#define DCP_CORE_PLAN_BALANCE_H

#include <dcp/tensor.h>

/* Rewrites the pieces of a sorted catalog, and sorts it again. Errors: MEMORY. */
int dcp_balance(struct dcp_catalog *catalog, struct dcp_error *err);

#endif
