#include "ed25519.h"

#include "mem.h"
#include "sha256.h"
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>

/* base64 of 64 bytes ends in two '='. */
#define DECODED_BYTES 66

static int add_bio(struct dcp_buf *out, BIO *bio)
{
    char *data = NULL;
    long n = BIO_get_mem_data(bio, &data);
    dcp_buf_add(out, data, n > 0 ? (size_t)n : 0);
    return out->failed ? DCP_E_MEMORY : DCP_OK;
}

int dcp_ed25519_make(struct dcp_buf *out_secret, struct dcp_buf *out_public,
                     struct dcp_error *err)
{
    EVP_PKEY *pair = NULL;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, NULL);
    BIO *secret = BIO_new(BIO_s_mem()), *public = BIO_new(BIO_s_mem());
    bool ok = ctx && secret && public && EVP_PKEY_keygen_init(ctx) == 1 &&
              EVP_PKEY_keygen(ctx, &pair) == 1 &&
              PEM_write_bio_PrivateKey(secret, pair, NULL, NULL, 0, NULL, NULL) == 1 &&
              PEM_write_bio_PUBKEY(public, pair) == 1;
    int rc = ok ? DCP_OK : dcp_error_set(err, DCP_E_IO, "cannot make a key");
    if (!rc && (add_bio(out_secret, secret) || add_bio(out_public, public)))
        rc = dcp_error_memory(err, "a key");
    BIO_free(secret);
    BIO_free(public);
    EVP_PKEY_free(pair);
    EVP_PKEY_CTX_free(ctx);
    return rc;
}

static bool get_key(EVP_PKEY *pkey, struct dcp_ed25519_key *out)
{
    size_t n = sizeof out->bytes;
    return EVP_PKEY_id(pkey) == EVP_PKEY_ED25519 &&
           EVP_PKEY_get_raw_public_key(pkey, out->bytes, &n) == 1 &&
           n == sizeof out->bytes;
}

int dcp_ed25519_read(const char *pem, size_t size_bytes, const char *what,
                     struct dcp_ed25519_key **out, size_t *out_n, struct dcp_error *err)
{
    BIO *bio = BIO_new_mem_buf(pem, (int)size_bytes);
    struct dcp_ed25519_key *keys = NULL;
    size_t n = 0, cap = 0;
    EVP_PKEY *pkey;
    int rc = bio ? DCP_OK : dcp_error_memory(err, what);
    while (!rc && (pkey = PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL))) {
        struct dcp_ed25519_key *grown = dcp_mem_grow(keys, &cap, n + 1, sizeof *keys);
        keys = grown ? grown : keys;
        if (!grown)
            rc = dcp_error_memory(err, what);
        else if (!get_key(pkey, &keys[n++]))
            rc = dcp_error_set(err, DCP_E_USAGE, "'%s' has a key that is not Ed25519",
                               what);
        EVP_PKEY_free(pkey);
    }
    BIO_free(bio);
    if (!rc && !n) {
        dcp_error_set(err, DCP_E_USAGE, "'%s' has no public key in PEM", what);
        dcp_error_hint(err, "'dcp-reshard keygen FILE' makes a pair: FILE and FILE.pub");
        rc = DCP_E_USAGE;
    }
    if (rc)
        free(keys);
    *out = rc ? NULL : keys;
    *out_n = rc ? 0 : n;
    return rc;
}

/* Nobody is asked for one. */
static int no_password(char *out, int size, int writes, void *self)
{
    (void)out;
    (void)size;
    (void)writes;
    (void)self;
    return 0;
}

int dcp_ed25519_sign(const char *pem, size_t pem_bytes, const char *what,
                     const void *data, size_t size_bytes, char out_text[DCP_ED25519_TEXT],
                     struct dcp_ed25519_key *out_key, struct dcp_error *err)
{
    unsigned char signature[DCP_ED25519_SIGNATURE_BYTES];
    size_t n = sizeof signature;
    BIO *bio = BIO_new_mem_buf(pem, (int)pem_bytes);
    EVP_PKEY *pkey = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int rc = DCP_OK;
    if (!bio || !ctx)
        rc = dcp_error_memory(err, "a signature");
    else if (!pkey || !get_key(pkey, out_key)) {
        rc = dcp_error_set(err, DCP_E_USAGE,
                           "'%s' has no secret Ed25519 key in PEM, or an encrypted one",
                           what);
        dcp_error_hint(err, "'dcp-reshard keygen FILE' makes one");
    } else if (EVP_DigestSignInit(ctx, NULL, NULL, NULL, pkey) != 1 ||
               EVP_DigestSign(ctx, signature, &n, data, size_bytes) != 1 ||
               n != sizeof signature)
        rc = dcp_error_memory(err, "a signature");
    else
        EVP_EncodeBlock((unsigned char *)out_text, signature, (int)sizeof signature);
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(pkey);
    BIO_free(bio);
    return rc;
}

bool dcp_ed25519_check(const struct dcp_ed25519_key *key, const void *data,
                       size_t size_bytes, const char *text)
{
    unsigned char signature[DECODED_BYTES];
    if (strlen(text) != DCP_ED25519_TEXT - 1 ||
        EVP_DecodeBlock(signature, (const unsigned char *)text, DCP_ED25519_TEXT - 1) !=
            DECODED_BYTES)
        return false;
    EVP_PKEY *pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, key->bytes,
                                                 sizeof key->bytes);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = pkey && ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pkey) == 1 &&
                EVP_DigestVerify(ctx, signature, DCP_ED25519_SIGNATURE_BYTES, data,
                                 size_bytes) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(pkey);
    return good;
}

void dcp_ed25519_id(const struct dcp_ed25519_key *key, char out[DCP_ED25519_ID])
{
    unsigned char digest[DCP_SHA256_BYTES];
    char text[DCP_SHA256_HEX] = "";
    struct dcp_sha256 *sha256 = dcp_sha256_new();
    if (sha256)
        dcp_sha256_add(sha256, key->bytes, sizeof key->bytes);
    if (sha256 && dcp_sha256_end(sha256, digest))
        dcp_sha256_text(digest, text);
    dcp_sha256_free(sha256);
    memcpy(out, text, DCP_ED25519_ID - 1);
    out[DCP_ED25519_ID - 1] = '\0';
}
