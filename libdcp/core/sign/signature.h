/* signature: what dcp_sign and dcp_check_signature share. docs/FORMAT.md §12 is the
 * specification.
 */
#ifndef DCP_CORE_SIGN_SIGNATURE_H
#define DCP_CORE_SIGN_SIGNATURE_H

#include "base/buf.h"
#include "base/ed25519.h"
#include <dcp/signature.h>

#define SIGNATURE_FILE "manifest.json.sig"
#define SIGNATURE_TEMPORARY "." SIGNATURE_FILE ".tmp" /* see `replace` of a store */
#define SIGNATURE_FIRST "libdcp signature, version 1\n"
#define SIGNATURE_MARK "ed25519 "              /* a line of a signature begins with it */
#define SIGNATURE_MAX 64                       /* lines */
#define SIGNATURE_MAX_BYTES ((size_t)64 << 20) /* of the file: 600,000 others */

struct dcp_keys {
    struct dcp_ed25519_key *items;
    size_t n;
};

/* The file, and where what is signed ends. */
struct dcp_signature_lines {
    char *text;
    size_t signed_bytes;
    size_t n; /* lines with a signature, 1 to SIGNATURE_MAX */
};

/* The lines that are signed, from the files as they are: the first line, and the SHA-256
 * and name of each file but SIGNATURE_FILE and SIGNATURE_TEMPORARY, in the byte order of
 * names. With a catalog of the step (names are added to its arena) the files are those
 * that it names, and what it says they are: else UNSUPPORTED (a file more), CORRUPT.
 * Other errors: those of dcp_sign. */
int dcp_signature_list(const struct dcp_source *source, struct dcp_catalog *catalog,
                       const struct dcp_progress *progress, struct dcp_buf *out,
                       struct dcp_signature *out_facts, struct dcp_error *err);

/* The file, every line of which has its form; NOT_FOUND without one. Caller owns *out.
 * Errors: CORRUPT, IO, MEMORY. */
int dcp_signature_read(const struct dcp_source *source, struct dcp_signature_lines *out,
                       struct dcp_error *err);
void dcp_signature_fini(struct dcp_signature_lines *lines);
#define DCP_CLEANUP_SIGNATURE __attribute__((cleanup(dcp_signature_fini)))
/* A line with a signature: the name of its key, and the signature in base64. */
void dcp_signature_line(const struct dcp_signature_lines *lines, size_t i,
                        char out_key[DCP_ED25519_ID], char out_text[DCP_ED25519_TEXT]);
void dcp_signature_add(struct dcp_buf *out, const char *key, const char *text);

#endif
