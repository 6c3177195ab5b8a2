/* delta: whether a delta gives what it stands for, to the last byte. */
#ifndef DCP_CORE_VERIFY_DELTA_H
#define DCP_CORE_VERIFY_DELTA_H

#include <dcp/checkpoint.h>

/* Of a source that is a delta of another format than steps, whose own digests were held
 * already: reads every file of it, also those without tensors, and calls `add` for each
 * that has not its digest. *out_proved: it is such a delta, so that digests vouch for all
 * of it. Does nothing else. Errors: those of add; MEMORY. */
int dcp_verify_delta(const struct dcp_source *source, struct dcp_catalog *catalog,
                     int (*add)(void *self, const struct dcp_finding *finding,
                                struct dcp_error *err),
                     void *self, bool *out_proved, uint64_t *out_bytes,
                     struct dcp_error *err);

#endif
