/* balance: replicas are written once. Each goes to one of the ranks that hold it, so that
 * the bytes a rank writes come out even; large ones are cut by rows. Pure. */
#ifndef DCP_CORE_PLAN_BALANCE_H
#define DCP_CORE_PLAN_BALANCE_H

#include <dcp/tensor.h>

/* Rewrites the pieces of a sorted catalog, and sorts it again. Errors: MEMORY. */
int dcp_balance(struct dcp_catalog *catalog, struct dcp_error *err);

/* A region of a tensor that n ranks hold. */
struct dcp_replica {
    int tensor;
    struct dcp_region region;
    uint64_t bytes;
    const int *ranks; /* ascending */
    size_t n;
    size_t place; /* among all, by tensor and region */
};

/* Deals replicas to their ranks, of which each has load[rank] bytes already of `total`
 * that all write: adds a piece or several for each to the catalog. Reorders replicas.
 * Errors: MEMORY. */
int dcp_balance_deal(struct dcp_catalog *catalog, struct dcp_replica *replicas, size_t n,
                     uint64_t *load, uint64_t total, struct dcp_error *err);

#endif
