/* parity: whether parity files are what was written. */
#ifndef DCP_CORE_VERIFY_PARITY_H
#define DCP_CORE_VERIFY_PARITY_H

#include "core/parity/reconstruction.h"

/* Whether a parity file begins and ends as it should: DCP_OK, CORRUPT or MEMORY. */
int dcp_parity_check_ends(const struct dcp_reconstruction *rebuilt,
                          const struct dcp_store *store, const char *prefix, int group,
                          int row);

/* Reads the parity files of a step and calls `add` for each place that is not good, a
 * file that is gone or not readable counts as one. Of the options `from` and `to` count.
 * Does nothing without parity. Errors: those of add; MEMORY. */
int dcp_verify_parity(const struct dcp_source *source, const struct dcp_catalog *catalog,
                      const struct dcp_verify_options *options,
                      int (*add)(void *self, const struct dcp_finding *finding,
                                 struct dcp_error *err),
                      void *self, uint64_t *out_bytes, struct dcp_error *err);

#endif
