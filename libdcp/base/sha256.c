#include "sha256.h"

#include "hex.h"
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

struct dcp_sha256 {
    EVP_MD_CTX *ctx;
    bool failed;
};

struct dcp_sha256 *dcp_sha256_new(void)
{
    struct dcp_sha256 *sha256 = calloc(1, sizeof *sha256);
    if (sha256)
        sha256->ctx = EVP_MD_CTX_new();
    if (sha256 && sha256->ctx && EVP_DigestInit_ex(sha256->ctx, EVP_sha256(), NULL) == 1)
        return sha256;
    dcp_sha256_free(sha256);
    return NULL;
}

void dcp_sha256_add(struct dcp_sha256 *sha256, const void *data, size_t size_bytes)
{
    sha256->failed |= EVP_DigestUpdate(sha256->ctx, data, size_bytes) != 1;
}

bool dcp_sha256_end(struct dcp_sha256 *sha256, unsigned char out[DCP_SHA256_BYTES])
{
    bool ok = EVP_DigestFinal_ex(sha256->ctx, out, NULL) == 1 && !sha256->failed;
    sha256->failed = EVP_DigestInit_ex(sha256->ctx, EVP_sha256(), NULL) != 1;
    return ok;
}

void dcp_sha256_free(struct dcp_sha256 *sha256)
{
    if (sha256)
        EVP_MD_CTX_free(sha256->ctx);
    free(sha256);
}

bool dcp_sha256_hmac(const void *key, size_t key_bytes, const void *data,
                     size_t size_bytes, unsigned char out[DCP_SHA256_BYTES])
{
    return HMAC(EVP_sha256(), key, (int)key_bytes, data, size_bytes, out, NULL) != NULL;
}

bool dcp_sha256_equal(const unsigned char a[DCP_SHA256_BYTES],
                      const unsigned char b[DCP_SHA256_BYTES])
{
    return CRYPTO_memcmp(a, b, DCP_SHA256_BYTES) == 0;
}

void dcp_sha256_text(const unsigned char in[DCP_SHA256_BYTES], char out[DCP_SHA256_HEX])
{
    dcp_hex(out, in, DCP_SHA256_BYTES);
}

int dcp_random(void *out, size_t size_bytes, struct dcp_error *err)
{
    unsigned char *at = out;
    while (size_bytes) {
        ssize_t n = getrandom(at, size_bytes, 0);
        if (n < 0 && errno != EINTR)
            return dcp_error_sys(err, DCP_E_IO, errno, "cannot get random bytes");
        at += n > 0 ? n : 0;
        size_bytes -= n > 0 ? (size_t)n : 0;
    }
    return DCP_OK;
}
