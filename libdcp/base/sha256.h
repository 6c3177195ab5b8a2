/* sha256: a digest that nobody can forge, unlike those of hash.h, and what is built on
 * it: proofs that a secret is known. By OpenSSL's libcrypto. */
#ifndef DCP_BASE_SHA256_H
#define DCP_BASE_SHA256_H

#include <dcp/error.h>
#include <stdbool.h>
#include <stddef.h>

#define DCP_SHA256_BYTES 32
#define DCP_SHA256_HEX (2 * DCP_SHA256_BYTES + 1) /* with the NUL */

struct dcp_sha256;

/* NULL: out of memory. */
struct dcp_sha256 *dcp_sha256_new(void);
void dcp_sha256_add(struct dcp_sha256 *sha256, const void *data, size_t size_bytes);
/* The digest of what was added; begins anew. False: out of memory, now or before. */
bool dcp_sha256_end(struct dcp_sha256 *sha256, unsigned char out[DCP_SHA256_BYTES]);
void dcp_sha256_free(struct dcp_sha256 *sha256);

/* HMAC-SHA256. False: out of memory. */
bool dcp_sha256_hmac(const void *key, size_t key_bytes, const void *data,
                     size_t size_bytes, unsigned char out[DCP_SHA256_BYTES]);
/* Takes as long for equal bytes as for others. */
bool dcp_sha256_equal(const unsigned char a[DCP_SHA256_BYTES],
                      const unsigned char b[DCP_SHA256_BYTES]);
void dcp_sha256_text(const unsigned char in[DCP_SHA256_BYTES], char out[DCP_SHA256_HEX]);

/* Bytes that nobody can guess. Errors: IO. */
int dcp_random(void *out, size_t size_bytes, struct dcp_error *err);

#endif
