/* thin: a step whose optimizer state is to go is replaced by one of its weights alone. At
 * every instant a complete step has its name. */
#ifndef DCP_CORE_RUN_THIN_H
#define DCP_CORE_RUN_THIN_H

#include <dcp/checkpoint.h>

/* Makes the files of the weights of `step` under `prefix`, durable and proved. */
typedef int dcp_thin_make(const struct dcp_store *store, const char *step,
                          const char *prefix, struct dcp_error *err);

/* Why a step keeps its optimizer state, as far as can be told without trying; GOES: it
 * need not. */
enum dcp_stay dcp_thin_judge(const struct dcp_store *store, const struct dcp_step *step,
                             struct dcp_error *err);
/* Replaces it, for who holds the lease. Who reads it meanwhile, marks it, signs it or
 * makes a delta on it has it as it was: the work is thrown away. STUCK: err says why. */
enum dcp_stay dcp_thin(const struct dcp_store *store, const struct dcp_step *step,
                       dcp_thin_make *make, struct dcp_error *err);

#endif
