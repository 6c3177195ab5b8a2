/* finish: what the coordinator does once every shard is durable: fingerprints, the
 * consolidated export, the manifest, the commit, the pointer for people, retention. Runs
 * on the pool; touches no comm. */
#ifndef DCP_CORE_WRITE_FINISH_H
#define DCP_CORE_WRITE_FINISH_H

#include "core/parity/parity.h"
#include "core/run/prune.h"
#include "core/run/publish.h"
#include "delta.h"
#include <dcp/checkpoint.h>

/* Warnings that were given: each is given once. */
struct dcp_told {
    uint64_t digests[16];
    size_t n;
};

struct dcp_finish {
    const struct dcp_context *ctx; /* borrowed */
    struct dcp_told *told;         /* borrowed */
    struct dcp_save_options options;
    char *export_name, *export_format; /* copies of what the caller gave */
    int export_dtype;
    bool has_consolidated;
    char *name;      /* "step-00001200" */
    char prefix[96]; /* ".tmp-step-00001200/", once rank 0 has told it */
    enum dcp_read_back read_back;
    struct dcp_target_options target_options;
    struct dcp_catalog *catalog;
    struct dcp_target target; /* of the catalog */
    struct dcp_write *write;
    struct dcp_publication publish; /* rank 0's */
    uint64_t *parts;                /* of the fingerprints, of all ranks */
    uint64_t fingerprint;           /* of the state, once it is published */
    const char *base;               /* the step to be a delta on, borrowed; NULL: none */
    const struct dcp_catalog *base_catalog; /* borrowed */
    int number;                             /* which save on it this is, from 1 */
    struct dcp_coded_file *coded;           /* rank 0's: files that became deltas */
    size_t n_coded, cap_coded;
    struct dcp_error unfit;             /* rank 0's: why not all did */
    uint64_t base_bytes, written_bytes; /* rank 0's: see dcp_save_result */
    struct dcp_parity *parity;          /* NULL: none */
};

/* finish->catalog is set and stays. Copies the options. Errors: MEMORY. */
int dcp_finish_init(struct dcp_finish *finish, const struct dcp_context *ctx,
                    const struct dcp_save_options *options, const char *name,
                    struct dcp_error *err);
/* What dead savers left goes, and once the step is published what retention says, see
 * dcp_prune_held. What cannot be done is told once, and fails nothing. */
void dcp_finish_prune(const struct dcp_finish *finish, bool published);
/* How large the consolidated export gets, but for its headers; 0 without one. */
uint64_t dcp_finish_consolidated_bytes(const struct dcp_finish *finish);
/* Publishes. The step exists when it returns 0; failures of the pointer and of retention
 * do not undo that, they are logged. */
int dcp_finish_run(struct dcp_finish *finish, struct dcp_error *err);
/* Frees all, the catalog too, and removes a temporary folder that was not published. */
void dcp_finish_fini(struct dcp_finish *finish);

#endif
