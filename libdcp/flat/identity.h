/* identity: whether a file is still what it was when a checkpoint was opened there.
 * Programs that save by a rename put another one in its place, and what was indexed says
 * nothing of that. Inodes do not tell: there are file systems that number them anew. */
#ifndef DCP_FLAT_IDENTITY_H
#define DCP_FLAT_IDENTITY_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stdint.h>

struct dcp_flat_identity {
    char *path; /* absolute; NULL: nothing is known of it, or it is a folder */
    int64_t size_bytes, changed_s, changed_ns;
};

/* Caller owns, dcp_flat_identity_fini. */
void dcp_flat_identity_take(struct dcp_flat_identity *out, const char *path);
void dcp_flat_identity_fini(struct dcp_flat_identity *identity);
/* What is gone may still be read by who has it open. Errors: NOT_FOUND (replaced). */
int dcp_flat_identity_check(const struct dcp_flat_identity *identity,
                            struct dcp_error *err);

#endif
