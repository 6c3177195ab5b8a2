/* signature: who made a native step, proved by Ed25519 over the SHA-256 of every file of
 * it. The digests of the format find accidents; only this finds a forger. FORMAT.md §12
 * is the specification. */
#ifndef DCP_SIGNATURE_H
#define DCP_SIGNATURE_H

#include <dcp/format.h>
#include <dcp/log.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Public keys of those whose steps are taken. */
struct dcp_keys;

/* The keys of a PEM file, as `openssl pkey -pubout` writes them, one behind the other;
 * caller owns. Errors: USAGE (there is none), NOT_FOUND, IO, MEMORY. */
DCP_PUBLIC int dcp_keys_read(const char *path, struct dcp_keys **out_keys,
                             struct dcp_error *err);
DCP_PUBLIC void dcp_keys_free(struct dcp_keys *keys);
/* Whether a PEM file has a secret key to sign with, before there is anything to sign.
 * Errors: USAGE (there is none), NOT_FOUND, IO, MEMORY. */
DCP_PUBLIC int dcp_keys_check(const char *path, struct dcp_error *err);
/* Makes a pair: `path`, for its user alone, and `path`.pub. Errors: EXISTS, IO, MEMORY.
 */
DCP_PUBLIC int dcp_keys_make(const char *path, struct dcp_error *err);

struct dcp_signature {
    char key[17];                 /* the name of the key */
    uint64_t n_files, size_bytes; /* that were hashed */
};

/* Signs the native step that a source is, with the secret key of a PEM file: reads all of
 * it, holds every file against the manifest, and writes manifest.json.sig beside that. A
 * signature of the same files by another key stays. Errors: CORRUPT (a file is missing or
 * corrupt), USAGE (no key), UNSUPPORTED (no native step, a file in its folder that is
 * none of its, 64 signatures of others, or a store that cannot be written), INTERRUPTED,
 * IO, MEMORY. */
DCP_PUBLIC int dcp_sign(const struct dcp_source *source, const char *key_path,
                        const struct dcp_progress *progress, struct dcp_signature *out,
                        struct dcp_error *err);
/* Whether one of the keys signed the step as it lies there: reads all of it. Errors:
 * MISMATCH (not signed, by none of these keys, or no native step), CORRUPT (a file
 * differs, is missing, or was added later), INTERRUPTED, IO, MEMORY. */
DCP_PUBLIC int dcp_check_signature(const struct dcp_source *source,
                                   const struct dcp_keys *keys,
                                   const struct dcp_progress *progress,
                                   struct dcp_signature *out, struct dcp_error *err);

/* The names of the keys by which a step says that it is signed, one a line, as they stand
 * there: nothing is checked. Caller frees; NULL: none, or no memory. */
DCP_PUBLIC char *dcp_signers(const struct dcp_source *source);

#ifdef __cplusplus
}
#endif
#endif
