/* own: what making and finishing parts have in common. Included by parts.c and finish.c
 * only. */
#ifndef DCP_CORE_PARTS_OWN_H
#define DCP_CORE_PARTS_OWN_H

#include "parts.h"
#include "receipt.h"

#define DCP_RECEIPT_MOST_BYTES ((size_t)1 << 30)

/* The receipt of a part that is done, whose files are there. NOT_FOUND: it is not done,
 * and err says why; caller frees otherwise. Errors: also IO, MEMORY. */
int dcp_parts_receipt(const struct dcp_parts *parts, const struct dcp_staging *staging,
                      int part, struct dcp_receipt *out, struct dcp_error *err);
/* Holds the job that the folder says against ours. Errors: MISMATCH, CORRUPT, NOT_FOUND
 * (it says none yet), IO. */
int dcp_parts_check_job(const struct dcp_parts *parts, const struct dcp_staging *staging,
                        struct dcp_error *err);

#endif
