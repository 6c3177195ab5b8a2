/* signature: what dcp_sign and dcp_check_signature share. */
#ifndef DCP_CORE_SIGNATURE_H
#define DCP_CORE_SIGNATURE_H

#include "base/buf.h"
#include "base/ed25519.h"
#include <dcp/signature.h>

#define SIGNATURE_FILE "manifest.json.sig"
#define SIGNATURE_FIRST "libdcp signature, version 1\n"
#define SIGNATURE_MARK "ed25519 " /* a line of a signature begins with it */
#define SIGNATURE_MAX_BYTES ((size_t)256 << 20)

struct dcp_keys {
    struct dcp_ed25519_key *items;
    size_t n;
};

/* The lines that are signed, from the files as they are: the first line, and the SHA-256
 * and name of each file but SIGNATURE_FILE, in the order of names. Errors: those of
 * dcp_sign. */
int dcp_signature_list(const struct dcp_source *source,
                       const struct dcp_progress *progress, struct dcp_buf *out,
                       struct dcp_signature *out_facts, struct dcp_error *err);
/* The file; NOT_FOUND without one. *out_signed: how many of its bytes are signed. Errors:
 * CORRUPT, IO, MEMORY. */
int dcp_signature_read(const struct dcp_source *source, char **out, size_t *out_signed,
                       struct dcp_error *err);

#endif
