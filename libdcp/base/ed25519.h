/* ed25519: signatures (RFC 8032), with keys in PEM as `openssl genpkey -algorithm
 * ed25519` makes them. By OpenSSL's libcrypto. */
#ifndef DCP_BASE_ED25519_H
#define DCP_BASE_ED25519_H

#include "buf.h"
#include <stdbool.h>
#include <stddef.h>

#define DCP_ED25519_KEY_BYTES 32
#define DCP_ED25519_SIGNATURE_BYTES 64
#define DCP_ED25519_TEXT 89 /* a signature in base64, with the NUL */
#define DCP_ED25519_ID 17   /* the name of a key, with the NUL */

struct dcp_ed25519_key { /* the public one */
    unsigned char bytes[DCP_ED25519_KEY_BYTES];
};

/* A new pair, as two PEM texts. Errors: IO (libcrypto could not), MEMORY. */
int dcp_ed25519_make(struct dcp_buf *out_secret, struct dcp_buf *out_public,
                     struct dcp_error *err);
/* All public keys of a PEM text; caller frees *out. `what` names the text. Errors: USAGE
 * (there is none, or one of another kind), MEMORY. */
int dcp_ed25519_read(const char *pem, size_t size_bytes, const char *what,
                     struct dcp_ed25519_key **out, size_t *out_n, struct dcp_error *err);
/* Signs with the secret key of a PEM text. Errors: USAGE (there is none, or it is
 * encrypted), MEMORY. */
int dcp_ed25519_sign(const char *pem, size_t pem_bytes, const char *what,
                     const void *data, size_t size_bytes, char out_text[DCP_ED25519_TEXT],
                     struct dcp_ed25519_key *out_key, struct dcp_error *err);
/* False: that is not the signature of these bytes by this key. */
bool dcp_ed25519_check(const struct dcp_ed25519_key *key, const void *data,
                       size_t size_bytes, const char *text);
/* The first 16 hexadecimal digits of the key's SHA-256; "" when memory ran out. */
void dcp_ed25519_id(const struct dcp_ed25519_key *key, char out[DCP_ED25519_ID]);

#endif
