/* finish: what the coordinator does once every shard is durable: fingerprints, the
 * companion file, the manifest, the commit, the pointer for people, retention. Runs on
 * the pool; touches no comm. */
#ifndef DCP_CORE_FINISH_H
#define DCP_CORE_FINISH_H

#include "parity.h"
#include "prune.h"
#include "publish.h"
#include "write.h"
#include <dcp/checkpoint.h>

struct dcp_finish {
    const struct dcp_context *ctx; /* borrowed */
    struct dcp_save_options options;
    struct dcp_companion companion; /* copies of the caller's strings */
    bool has_companion;
    char *name, *prefix; /* "step-00001200", ".tmp-step-00001200/" */
    enum dcp_read_back read_back;
    struct dcp_target_options target_options;
    struct dcp_catalog *catalog;
    struct dcp_write *write;
    struct dcp_publish publish; /* rank 0's */
    uint64_t *parts;            /* of the fingerprints, of all ranks */
    struct dcp_parity *parity;  /* NULL: none */
};

/* finish->catalog is set and stays. Copies the options. Errors: MEMORY. */
int dcp_finish_init(struct dcp_finish *finish, const struct dcp_context *ctx,
                    const struct dcp_save_options *options, const char *name,
                    struct dcp_error *err);
/* How large the companion gets, but for its headers; 0 without one. */
uint64_t dcp_finish_companion_bytes(const struct dcp_finish *finish);
/* Publishes. The step exists when it returns 0; failures of the pointer and of retention
 * do not undo that, they are logged. */
int dcp_finish_run(struct dcp_finish *finish, struct dcp_error *err);
/* Frees all, the catalog too, and removes a temporary folder that was not published. */
void dcp_finish_fini(struct dcp_finish *finish);

#endif
